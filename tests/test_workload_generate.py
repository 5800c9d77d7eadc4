"""Generated requests: their laws, the fitted tables against the traces, and common random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from pdenv.errors import InputError
from pdenv.workload.config import (
    DiurnalConfig,
    FixedLengths,
    LengthsConfig,
    LognormalLengths,
    MixtureLengths,
    OnOffConfig,
    PredictorConfig,
    QuantileLengths,
    TargetConfig,
    WindowConfig,
    WorkloadConfig,
    fitted_names,
)
from pdenv.workload.generate import (
    EXTRA_REQUESTS,
    Streams,
    draw_classes,
    draw_lengths,
    extra_requests,
    fitted_table,
    mark_measured,
    predict_lengths,
    random_arrivals,
)

# mean, p50, p90, p99, max of the public traces
PROMPTS = {
    "azure-code": (2048, 1469, 5188, 7436, 7437),
    "azure-conv": (1155, 1020, 2735, 4142, 14050),
    "mooncake-conversation": (12035, 6909, 27367, 85400, 126195),
}
OUTPUTS = {
    "azure-code": (27.9, 13, 55, 251, 1899),
    "azure-conv": (211, 129, 424, 601, 1000),
    "mooncake-conversation": (343, 350, 597, 1119, 2000),
}
SPEARMAN = {"azure-code": -0.0215, "azure-conv": 0.0728, "mooncake-conversation": 0.0717}


def streams(seed: int = 0) -> Streams:
    return Streams.of(np.random.SeedSequence(seed))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ranks(values: np.ndarray) -> np.ndarray:
    order = np.argsort(values, kind="stable")
    out = np.empty(len(values))
    out[order] = np.arange(len(values))
    return out


# ---- lengths --------------------------------------------------------------------------------------------


def test_three_tables_are_fitted():
    assert fitted_names() == ("azure-code", "azure-conv", "mooncake-conversation")


@pytest.mark.parametrize("name", PROMPTS)
def test_fitted_lengths_have_the_statistics_of_the_trace(name):
    prompts, outputs = draw_lengths(QuantileLengths(kind="quantiles", table=name), 400_000, streams(1))
    for values, (mean, p50, p90, p99, largest) in ((prompts, PROMPTS[name]), (outputs, OUTPUTS[name])):
        assert values.mean() == pytest.approx(mean, rel=0.02)
        assert np.quantile(values, [0.5, 0.9, 0.99]) == pytest.approx([p50, p90, p99], rel=0.03)
        assert values.max() <= largest
        assert values.max() == pytest.approx(largest, rel=0.03)
        assert values.min() >= 1


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_and_output_have_the_rank_correlation_of_the_trace(name):
    prompts, outputs = draw_lengths(QuantileLengths(kind="quantiles", table=name), 400_000, streams(2))
    assert fitted_table(name).spearman == SPEARMAN[name]
    assert np.corrcoef(ranks(prompts), ranks(outputs))[0, 1] == pytest.approx(SPEARMAN[name], abs=0.006)


def test_lognormal_lengths_have_their_median_spread_and_cap():
    lengths = LognormalLengths(
        kind="lognormal",
        prompt_median_tokens=2000,
        prompt_sigma=0.5,
        output_median_tokens=500,
        output_sigma=1.0,
        output_max_tokens=1000,
    )
    prompts, outputs = draw_lengths(lengths, 200_000, streams(3))
    assert np.median(prompts) == pytest.approx(2000, rel=0.01)
    assert np.log(prompts).std() == pytest.approx(0.5, rel=0.01)
    assert np.median(outputs) == pytest.approx(500, rel=0.02)
    assert outputs.max() == 1000
    assert np.mean(outputs == 1000) == pytest.approx(0.244, abs=0.005)  # 1 − Φ(ln 2)
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.01


def test_fixed_lengths():
    prompts, outputs = draw_lengths(FixedLengths(kind="fixed", prompt_tokens=7, output_tokens=3), 4, streams())
    assert prompts.tolist() == [7] * 4
    assert outputs.tolist() == [3] * 4


SHORT_LAW = {"kind": "lognormal", "prompt_median_tokens": 200, "prompt_sigma": 0.5, "output_median_tokens": 100,
             "output_sigma": 0.5}  # fmt: skip
LONG_LAW = {"kind": "fixed", "prompt_tokens": 30_000, "output_tokens": 7}


def test_a_mixture_draws_from_its_parts_by_their_shares():
    parts = [{"share": 0.9, "lengths": SHORT_LAW}, {"share": 0.1, "lengths": LONG_LAW}]
    mixture = MixtureLengths.model_validate({"kind": "mixture", "parts": parts})
    prompts, outputs = draw_lengths(mixture, 100_000, streams(5))
    long = prompts == 30_000
    assert long.mean() == pytest.approx(0.1, abs=0.004)
    assert set(outputs[long]) == {7}
    assert np.median(prompts[~long]) == pytest.approx(200, rel=0.02)
    alone = draw_lengths(LognormalLengths.model_validate(SHORT_LAW), 100_000, streams(5))[0]
    assert np.array_equal(prompts[~long], alone[~long])  # the same deviates, whatever the shares


def test_more_requests_only_add_to_the_end():
    lengths = QuantileLengths(kind="quantiles", table="azure-conv")
    few, many = (draw_lengths(lengths, n, streams(4)) for n in (100, 1000))
    for a, b in zip(few, many, strict=True):
        assert np.array_equal(a, b[:100])


# ---- arrivals -------------------------------------------------------------------------------------------


def test_arrivals_are_poisson():
    arrivals = random_arrivals(rng(5), 40.0, WindowConfig(requests=200_000))
    gaps = np.diff(arrivals.times_s)
    assert gaps.mean() == pytest.approx(1 / 40, rel=4 / math.sqrt(len(gaps)))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.01)
    per_second = np.bincount(arrivals.times_s.astype(int))[:-1]
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("rate", [0.01, 3.0, 500.0])
def test_a_window_of_requests_measures_exactly_so_many_after_the_warmup(rate):
    window = WindowConfig(requests=2000, warmup_s=60.0)
    a = random_arrivals(rng(6), rate, window)
    assert a.measured_to - a.measured_from == 2000
    assert np.all(a.times_s[: a.measured_from] < 60.0)
    assert a.times_s[a.measured_from] >= 60.0
    assert a.times_s[a.measured_to - 1] == a.end_s
    assert a.measured_from == pytest.approx(60.0 * rate, abs=5 * math.sqrt(60.0 * rate) + 3)


def test_a_window_of_time_measures_what_arrives_in_it():
    a = random_arrivals(rng(7), 50.0, WindowConfig(duration_s=100.0, warmup_s=10.0, drain_max_s=5.0))
    measured = (a.times_s >= 10.0) & (a.times_s <= 110.0)
    assert a.end_s == 110.0
    assert np.flatnonzero(measured).tolist() == list(range(a.measured_from, a.measured_to))
    assert a.measured_to - a.measured_from == pytest.approx(5000, abs=5 * math.sqrt(5000))


def test_load_goes_on_for_the_drain_time_or_to_its_bound():
    short = random_arrivals(rng(8), 50.0, WindowConfig(duration_s=100.0, drain_max_s=20.0))
    assert len(short.times_s) - short.measured_to == pytest.approx(1000, abs=150)
    assert short.times_s[-1] <= 120.0
    bounded = random_arrivals(rng(8), 50.0, WindowConfig(duration_s=100.0, drain_max_s=1e8))
    assert len(bounded.times_s) - bounded.measured_to == EXTRA_REQUESTS
    assert extra_requests(1e6) == 500_000
    none = random_arrivals(rng(8), 50.0, WindowConfig(duration_s=100.0, drain_max_s=0.0))
    assert len(none.times_s) == none.measured_to


def test_marking_by_hand():
    times = np.array([0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 9.0])
    by_count = mark_measured(times, WindowConfig(requests=3, warmup_s=1.0, drain_max_s=1.0))
    assert (by_count.measured_from, by_count.measured_to, by_count.end_s) == (1, 4, 2.0)
    assert by_count.times_s.tolist() == [0.0, 1.0, 2.0, 2.0, 3.0]
    by_time = mark_measured(times, WindowConfig(duration_s=3.0, warmup_s=1.0, drain_max_s=4.0))
    assert (by_time.measured_from, by_time.measured_to, by_time.end_s) == (1, 6, 4.0)
    assert mark_measured(times, WindowConfig(requests=7, warmup_s=1.0)) is None
    assert mark_measured(times, WindowConfig(duration_s=9.5)) is None


def test_another_rate_only_stretches_the_arrivals():
    slow, fast = (random_arrivals(rng(9), rate, WindowConfig(requests=500)) for rate in (2.0, 3.0))
    assert slow.times_s[:500] * 2.0 == pytest.approx(fast.times_s[:500] * 3.0, rel=1e-12)


def test_a_window_too_large_for_memory_is_refused():
    with pytest.raises(InputError, match="window: about 1e\\+14 requests"):
        random_arrivals(rng(), 1e6, WindowConfig(duration_s=1e8))


# ---- classes and predictions ----------------------------------------------------------------------------


def test_classes_have_their_shares():
    classes = draw_classes([3.0, 0.0, 1.0], 100_000, rng(10))
    assert np.bincount(classes, minlength=3) / 1e5 == pytest.approx([0.75, 0.0, 0.25], abs=0.006)
    assert draw_classes([1.0], 5, rng()).tolist() == [0] * 5


def test_noisy_predictions_have_mean_one_error_of_the_given_spread():
    true = np.full(200_000, 100_000)
    predicted = predict_lengths(PredictorConfig(kind="noisy", sigma=0.5), true, 0.0, rng(11))
    assert predicted.mean() == pytest.approx(1e5, rel=0.005)
    assert np.log(predicted / true).std() == pytest.approx(0.5, rel=0.01)


def test_mean_and_oracle_predictions():
    true = np.array([1, 10, 400])
    assert predict_lengths(PredictorConfig(kind="oracle"), true, 7.0, rng()).tolist() == [1, 10, 400]
    assert predict_lengths(PredictorConfig(kind="mean"), true, 137.2, rng()).tolist() == [137] * 3
    assert predict_lengths(PredictorConfig(sigma=5.0), np.ones(1000, int), 7.0, rng()).min() == 1


def test_only_the_oracle_says_it_is_one():
    assert [PredictorConfig(kind=k).is_oracle for k in ("mean", "noisy", "oracle")] == [False, False, True]


# ---- configuration --------------------------------------------------------------------------------------

FIXED = {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 5}
GENERATED = {"rate_per_s": 1, "lengths": FIXED}


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (WorkloadConfig, {"kind": "poisson", "lengths": FIXED}, "kind: poisson needs rate_per_s"),
        (WorkloadConfig, {"kind": "poisson"}, "needs rate_per_s and lengths"),
        (WorkloadConfig, {"kind": "trace"}, "kind: trace needs trace"),
        (WorkloadConfig, {"rate_per_s": 0, "lengths": FIXED}, "greater than 0"),
        (WorkloadConfig, {"rate_per_s": math.nan, "lengths": FIXED}, "finite"),
        (
            WorkloadConfig,
            {"rate_per_s": 1, "lengths": {**FIXED, "prompt_tokens": 0}},
            "greater than or equal to 1",
        ),
        (WorkloadConfig, {"rate_per_s": 1, "lengths": {"kind": "zipf"}}, "zipf"),
        (WorkloadConfig, {"rate_per_s": 1, "lengths": FIXED, "rate": 2}, "Extra inputs"),
        (WorkloadConfig, {"rate_per_s": 1, "lengths": FIXED, "priority_shares": [0, 0]}, "above 0"),
        (WorkloadConfig, {**GENERATED, "kind": "on_off"}, "kind: on_off needs on_off"),
        (WorkloadConfig, {**GENERATED, "kind": "diurnal"}, "kind: diurnal needs diurnal"),
        (OnOffConfig, {"mean_on_s": 0, "mean_off_s": 1}, "greater than or equal to 0.001"),
        (OnOffConfig, {"mean_on_s": 1, "mean_off_s": 1, "off_ratio": 2}, "less than or equal to 1"),
        (DiurnalConfig, {"amplitude": 1.5, "period_s": 60}, "less than or equal to 1"),
        (DiurnalConfig, {"amplitude": 0.5, "period_s": 60, "phase": 1}, "less than 1"),
        (MixtureLengths, {"kind": "mixture", "parts": [{"share": 0.5, "lengths": FIXED}]}, "sum to 0.5"),
        (MixtureLengths, {"kind": "mixture", "parts": []}, "at least 1 item"),
        (QuantileLengths, {"kind": "quantiles", "table": "azure-cnv"}, "did you mean 'azure-conv'"),
        (PredictorConfig, {"kind": "noisy", "sigma": 0}, "makes an oracle"),
        (WindowConfig, {}, "either requests or duration_s"),
        (WindowConfig, {"requests": 1, "duration_s": 1}, "either requests or duration_s"),
        (TargetConfig, {"prefill_load": 0}, "greater than 0"),
    ],
)
def test_impossible_configuration_is_refused(model, data, words):
    with pytest.raises(ValidationError, match=words):
        model.model_validate(data)


def test_configuration_is_frozen_and_described_with_units():
    window = WindowConfig(requests=5)
    with pytest.raises(ValidationError, match="frozen"):
        window.requests = 6
    schemas = [TypeAdapter(t).json_schema() for t in (LengthsConfig, WorkloadConfig, WindowConfig, TargetConfig)]
    models = [m for s in schemas for m in (s, *s.get("$defs", {}).values()) if "properties" in m]
    fields = {name: field for model in models for name, field in model["properties"].items()}
    assert len(fields) >= 15
    assert all(len(field.get("description", "")) > 10 for field in fields.values())
