"""Arrival rates that change over time: their mean, their shape, their burstiness, and common random numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdenv.errors import InputError
from pdenv.scenario import load_scenario
from pdenv.workload import build, offered_prefill_load
from pdenv.workload.config import DiurnalConfig, OnOffConfig, TargetConfig, WindowConfig, WorkloadConfig
from pdenv.workload.generate import random_arrivals
from pdenv.workload.rhythm import Diurnal, OnOff

FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 10}
ON_OFF = {"kind": "on_off", "on_off": {"mean_on_s": 20, "mean_off_s": 60, "off_ratio": 0.25}}
DIURNAL = {"kind": "diurnal", "diurnal": {"amplitude": 0.8, "period_s": 100}}
KINDS = {"on_off": ON_OFF, "diurnal": DIURNAL}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scenario(kind: dict[str, Any], rate_per_s: float = 10.0, **window: float) -> Any:
    """What `build` reads of a scenario."""
    return SimpleNamespace(
        workload=WorkloadConfig.model_validate({"rate_per_s": rate_per_s, "lengths": FIXED} | kind),
        window=WindowConfig.model_validate(window or {"requests": 400, "warmup_s": 5.0, "drain_max_s": 20.0}),
        target=TargetConfig(),
        quality=SimpleNamespace(tiers={"all": SimpleNamespace(share=1.0)}),
        cluster=lambda: SimpleNamespace(prefill=(), colocated=(), block_tokens=512),
    )


def times_of(rhythm: Any, rate_per_s: float, duration_s: float, seed: int = 1) -> np.ndarray:
    window = WindowConfig(duration_s=duration_s, drain_max_s=0.0)
    return random_arrivals(rng(seed), rate_per_s, window, rhythm).times_s


# ---- on and off -----------------------------------------------------------------------------------------


def test_bursts_keep_the_mean_rate():
    """Over 5,000 cycles of 20 s + 60 s; the mean varies by about 2 % because the time spent in bursts does."""
    config = OnOffConfig(mean_on_s=20, mean_off_s=60, off_ratio=0.25)
    times = times_of(OnOff(config, rng(2)), 1.0, 400_000.0)
    assert len(times) / 400_000 == pytest.approx(1.0, rel=0.06)


def test_the_rates_in_and_between_bursts_are_those_of_the_docs():
    """High rate = mean × (20 + 60) / (20 + 60 × 0.25) = 16/7 of the mean; between bursts a quarter of that."""
    config = OnOffConfig(mean_on_s=2e4, mean_off_s=6e4, off_ratio=0.25)
    times = times_of(OnOff(config, rng(3)), 10.0, 400_000.0)
    per_100_s = np.bincount((times / 100).astype(int))[:-1] / 100
    high, low = 10 * 80 / 35, 2.5 * 80 / 35
    inside = per_100_s > (high + low) / 2
    assert per_100_s[inside].mean() == pytest.approx(high, rel=0.02)
    assert per_100_s[~inside].mean() == pytest.approx(low, rel=0.02)


def test_bursts_have_the_index_of_dispersion_of_their_process():
    """Counts in T: variance / mean = 1 + 2 p (1 − p) (h − l)² / (mean rate × γ) × (1 − (1 − e^(−γT)) / (γT)),
    with the rates h and l, the share p of time in bursts and γ = 1/on + 1/off (Heffes and Lucantoni 1986)."""
    config = OnOffConfig(mean_on_s=2, mean_off_s=6, off_ratio=0.0)
    rate, span = 5.0, 50.0
    times = times_of(OnOff(config, rng(4)), rate, 200_000.0)
    counts = np.bincount((times / span).astype(int))[:-1]
    p, gamma, high = 0.25, 1 / 2 + 1 / 6, 4 * rate
    burst = 2 * p * (1 - p) * high**2 / (rate * gamma) * (1 - (1 - math.exp(-gamma * span)) / (gamma * span))
    assert burst > 10
    assert counts.var() / counts.mean() == pytest.approx(1 + burst, rel=0.1)


def test_silence_between_bursts_is_silent():
    """A burst of mean 1 s and a pause of mean 1,000 s: nearly all gaps are short, the others are pauses."""
    config = OnOffConfig(mean_on_s=1, mean_off_s=1000)
    gaps = np.diff(times_of(OnOff(config, rng(5)), 0.1, 300_000.0))
    pauses = gaps[gaps > 1.0]
    assert gaps[gaps <= 1.0].mean() == pytest.approx(1 / 100, rel=0.05)  # 0.1/s × 1001/1 within bursts
    assert pauses.mean() == pytest.approx(1000, rel=0.2)


def test_a_window_starts_at_any_moment_of_the_process():
    config = OnOffConfig(mean_on_s=50, mean_off_s=150)
    first = [OnOff(config, rng(seed)).real_time(np.array([1e-9, 1.0]))[0] for seed in range(2000)]
    assert np.mean(np.array(first) < 1e-6) == pytest.approx(0.25, abs=0.03)


def test_endless_switching_is_refused():
    with pytest.raises(InputError, match=r"workload\.on_off: about .* bursts and pauses"):
        times_of(OnOff(OnOffConfig(mean_on_s=1e-3, mean_off_s=1e-3), rng()), 1e-4, 1e7)


# ---- diurnal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", [0.3, 1.0])
def test_the_rate_is_the_sine_of_the_docs(amplitude):
    period, phase = 100.0, 0.3
    config = DiurnalConfig(amplitude=amplitude, period_s=period, phase=phase)
    times = times_of(Diurnal(config, rng()), 50.0, 100 * period)
    found = np.histogram(times % period, bins=20, range=(0, period))[0] / (100 * period / 20)
    edges = 2 * math.pi * (np.linspace(0, 1, 21) + phase)
    wanted = 50.0 * (1 - amplitude * np.diff(np.cos(edges)) / np.diff(edges))
    assert found == pytest.approx(wanted, rel=0.04, abs=0.4)


def test_the_mean_rate_and_the_count_in_a_period_are_poissons():
    config = DiurnalConfig(amplitude=0.9, period_s=10.0)
    times = times_of(Diurnal(config, rng(6)), 20.0, 20_000.0)
    counts = np.bincount((times / 10).astype(int))[:-1]
    assert counts.mean() == pytest.approx(200, rel=0.01)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


def test_the_map_inverts_the_integral_of_the_rate():
    config = DiurnalConfig(amplitude=1.0, period_s=7.0, phase=0.0)
    steady = np.linspace(0.0, 30.0, 5001)
    t = Diurnal(config, rng()).real_time(steady)
    integral = t + 7.0 / (2 * math.pi) * (1 - np.cos(2 * math.pi * t / 7.0))
    assert integral == pytest.approx(steady, abs=1e-9)
    assert np.all(np.diff(t) > 0)


def test_a_phase_that_is_not_given_is_drawn_for_each_window():
    one, other = (build(scenario(DIURNAL), window=window).arrivals["arrival_s"] for window in (0, 1))
    fixed = {"kind": "diurnal", "diurnal": {**DIURNAL["diurnal"], "phase": 0.25}}
    assert not np.array_equal(one, build(scenario(fixed), window=0).arrivals["arrival_s"])
    assert not np.array_equal(one[:100], other[:100])


# ---- both -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_fixes_the_arrivals_and_windows_differ(kind):
    one, again, other = (build(scenario(KINDS[kind]), seed=s, window=w).arrivals for s, w in ((3, 0), (3, 0), (3, 1)))
    assert np.array_equal(one, again)
    assert not np.isin(other["arrival_s"], one["arrival_s"]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rhythm_leaves_lengths_and_predictions_as_they_were(kind):
    lengths = {"lengths": {"kind": "quantiles", "table": "azure-conv"}}
    steady, rhythmic = (build(scenario(k | lengths)).arrivals[:400] for k in ({}, KINDS[kind]))
    for name in ("prompt_tokens", "output_tokens", "predicted_tokens"):
        assert np.array_equal(steady[name], rhythmic[name])
    assert not np.array_equal(steady["arrival_s"], rhythmic["arrival_s"])


@pytest.mark.parametrize("kind", KINDS)
def test_another_rate_meets_the_same_bursts(kind):
    """Twice the rate doubles the count in every stretch of time, up to chance, where another rhythm would not."""
    spans = {"duration_s": 2000.0, "drain_max_s": 0.0}
    slow, fast = (build(scenario(KINDS[kind], rate, **spans)).arrivals["arrival_s"] for rate in (50.0, 100.0))
    counts = [np.histogram(times, bins=100, range=(0, 2000))[0] for times in (slow, fast)]
    assert np.corrcoef(counts)[0, 1] > 0.98
    assert counts[1].sum() / counts[0].sum() == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_measures_as_many_requests_as_it_says_and_load_goes_on(kind):
    window = {"requests": 300, "warmup_s": 30.0, "drain_max_s": 200.0}
    for index in range(20):
        load = build(scenario(KINDS[kind], **window), window=index)
        times = load.arrivals["arrival_s"]
        assert load.measured_to - load.measured_from == 300
        assert np.all(np.diff(times) >= 0)
        assert load.end_s + 200.0 - times[-1] < 150.0  # to within the longest pause


@pytest.mark.parametrize("kind", KINDS)
def test_auto_aims_the_mean_rate_at_the_load(kind):
    toy = load_scenario("toy", {f"workload.{key}": value for key, value in KINDS[kind].items()}
                        | {"window": {"duration_s": 20_000.0, "drain_max_s": 0.0}})  # fmt: skip
    load = build(toy, rate_scale="auto")
    assert offered_prefill_load(toy.cluster(), load.arrivals, load.end_s) == pytest.approx(0.5, rel=0.1)
    assert load.source.startswith(kind)
