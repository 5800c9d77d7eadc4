"""The workload of a run: windows, splits, rate scaling to a load, seeds, and what a trace adds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdenv.errors import InputError
from pdenv.sim.records import ARRIVAL
from pdenv.topology import Cluster, PrefillInstance, Profile, StepLaw
from pdenv.workload import SPLITS, build, offered_prefill_load
from pdenv.workload.config import TargetConfig, WindowConfig, WorkloadConfig

LAW = StepLaw(a_s=0.01, b_s=1e-4, c_s=(1e-8, 0.0, 0.0, 0.0))
TWICE_AS_SLOW = StepLaw(a_s=0.02, b_s=2e-4, c_s=(2e-8, 0.0, 0.0, 0.0))


def prefill(profile: int = 0, **changes: Any) -> PrefillInstance:
    numbers = {
        "staging_bytes": 10**12,
        "kv_bytes_per_token": 1,
        "max_batch_tokens": 1000,
        "max_batch_requests": 64,
    }
    return PrefillInstance(profile=profile, gpus=8, **(numbers | changes))


def cluster(*instances: PrefillInstance, laws: tuple[StepLaw, ...] = (LAW, TWICE_AS_SLOW), **changes: Any) -> Cluster:
    return Cluster(
        layers=1,
        kv_bytes_per_token=(1, 1, 1, 1),
        profiles=tuple(Profile(prefill=law, decode=StepLaw()) for law in laws),
        prefill=instances or (prefill(),),
        decode=(),
        colocated=(),
        ports=(),
        paths=(),
        **changes,
    )


def scenario(
    workload: dict | None = None,
    window: dict | None = None,
    target: float | None = None,
    at: Cluster | None = None,
    tiers: dict[str, float] | None = None,
) -> Any:
    """What `build` reads of a scenario."""
    lengths = {"kind": "quantiles", "table": "azure-conv"}
    shares = tiers or {"internal": 0.25, "high-value": 0.75}
    return SimpleNamespace(
        workload=WorkloadConfig.model_validate({"rate_per_s": 5.0, "lengths": lengths} | (workload or {})),
        window=WindowConfig.model_validate(window or {"requests": 500, "drain_max_s": 20.0}),
        target=TargetConfig(prefill_load=target),
        quality=SimpleNamespace(tiers={name: SimpleNamespace(share=share) for name, share in shares.items()}),
        cluster=lambda: at or cluster(),
    )


def plain_trace(tmp_path: Path, n: int = 100, gap_s: float = 1.0) -> Path:
    rows = [f"{i * gap_s},{100 + i},{1 + i % 7}" for i in range(n)]
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


def requests(*prompts: int) -> np.ndarray:
    rows = np.zeros(len(prompts), ARRIVAL)
    rows["prompt_tokens"] = prompts
    return rows


# ---- offered load ---------------------------------------------------------------------------------------


def test_load_of_one_instance_by_hand():
    # 500 tokens: 0.01 + 0.05 + 0.0025; 2,500 tokens in chunks of 1,000: 0.03 + 0.25 + 0.0625.
    assert offered_prefill_load(cluster(), requests(500, 2500), span_s=1.0) == pytest.approx(0.0625 + 0.3425)


def test_an_exact_multiple_of_the_budget_has_no_empty_chunk():
    assert offered_prefill_load(cluster(), requests(2000), span_s=1.0) == pytest.approx(0.02 + 0.2 + 0.04)


def test_an_unchunked_prompt_pays_the_overhead_once():
    load = offered_prefill_load(cluster(prefill(chunked=False)), requests(2500), span_s=1.0)
    assert load == pytest.approx(0.01 + 0.25 + 0.0625)


def test_table_steps_interpolate_and_go_on_beyond_their_ends():
    law = StepLaw(table_x=(100.0, 200.0, 400.0), table_s=(0.1, 0.3, 0.4), c_s=(0.0, 0.0, 0.0, 0.0))
    for tokens, step_s in ((100, 0.1), (150, 0.2), (300, 0.35), (75, 0.05), (600, 0.5)):
        load = offered_prefill_load(cluster(laws=(law,)), requests(tokens), span_s=1.0)
        assert load == pytest.approx(step_s)


def test_capacities_of_active_instances_add_up():
    work_s = 0.0625
    pool = cluster(prefill(), prefill(1), prefill(active=False))
    # 1/w and 1/2w requests/s: the slower instance adds half a faster one.
    assert offered_prefill_load(pool, requests(500, 500, 500), span_s=1.0) == pytest.approx(3 * work_s / 1.5)


def test_load_without_capacity_time_or_requests():
    assert offered_prefill_load(cluster(prefill(active=False)), requests(5), 1.0) == np.inf
    assert offered_prefill_load(cluster(), requests(5), 0.0) == np.inf
    assert offered_prefill_load(cluster(), requests(), 1.0) == 0.0


# ---- rate scale -----------------------------------------------------------------------------------------


def test_auto_scale_of_a_generated_workload_reaches_the_target_load():
    made = scenario(target=0.85, window={"requests": 50_000}, at=cluster(prefill(), prefill(1)))
    load = build(made, rate_scale="auto")
    measured = load.arrivals[: load.measured_to]
    assert load.rate_scale != pytest.approx(1.0, abs=0.01)
    assert offered_prefill_load(made.cluster(), measured, load.end_s) == pytest.approx(0.85, rel=0.02)


def test_auto_scale_is_the_same_in_every_window_and_seed():
    made = scenario(target=0.85)
    scales = {build(made, seed=s, window=w, rate_scale="auto").rate_scale for s in (0, 1) for w in (0, 1)}
    assert len(scales) == 1


def test_auto_scale_of_a_trace_reaches_the_target_load(tmp_path):
    made = scenario(target=0.5)
    load = build(made, trace=plain_trace(tmp_path), rate_scale="auto")
    span_s = load.arrivals["arrival_s"][-1] - load.arrivals["arrival_s"][0]
    assert offered_prefill_load(made.cluster(), load.arrivals, span_s) == pytest.approx(0.5, rel=1e-12)


def test_a_factor_divides_the_times_of_a_trace(tmp_path):
    load = build(scenario(), trace=plain_trace(tmp_path), rate_scale=4.0)
    assert load.arrivals["arrival_s"] == pytest.approx(np.arange(100) / 4.0)
    assert load.rate_scale == 4.0


@pytest.mark.parametrize(
    ("made", "scale", "words"),
    [
        (scenario(), 0.0, "rate scale: 0.0 is not a factor"),
        (scenario(), float("nan"), "not a factor"),
        (scenario(), float("inf"), "not a factor"),
        (scenario(), "fast", "'fast' is not a factor"),
        (scenario(), "auto", "target.prefill_load"),
        (scenario(target=0.8, at=cluster(prefill(active=False))), "auto", "active prefill instance"),
    ],
)
def test_an_impossible_rate_scale_is_refused(made, scale, words):
    with pytest.raises(InputError, match=words):
        build(made, rate_scale=scale)


def test_numbers_of_numpy_are_factors_and_seeds(tmp_path):
    load = build(scenario(), seed=np.int64(2), rate_scale=np.float32(4.0))
    assert load.arrivals.tobytes() == build(scenario(), seed=2, rate_scale=4.0).arrivals.tobytes()
    assert load.rate_scale == 4.0 and type(load.rate_scale) is float


@pytest.mark.parametrize("scale", [1e-7, 1e-320])
def test_arrivals_too_late_for_the_clock_are_refused(tmp_path, scale):
    with pytest.raises(InputError, match="loses precision; raise the rate"):
        build(scenario(window={"requests": 1000}), rate_scale=scale)
    with pytest.raises(InputError, match="loses precision"):
        build(scenario(), trace=plain_trace(tmp_path), rate_scale=scale)


def test_dates_decades_apart_are_refused(tmp_path):
    path = tmp_path / "azure.csv"
    lines = ("TIMESTAMP,ContextTokens,GeneratedTokens", "1990-01-01 00:00:00,10,10", "2020-01-01 00:00:00,10,10")
    path.write_text("\n".join(lines))
    for span in ("whole", "window"):
        with pytest.raises(InputError, match=r"azure\.csv: the last request arrives after 1e\+08 s"):
            build(scenario(), trace=path, span=span)
    assert build(scenario(), trace=path, rate_scale=100.0).end_s == pytest.approx(10957 * 86400 / 100)


@pytest.mark.parametrize("window", [{"requests": 10}, {"duration_s": 10.0}])
@pytest.mark.parametrize(("scale", "words"), [(1e308, "arrival rate infinite"), (1e307, "more than 20,000,000")])
def test_a_rate_without_bound_is_refused(window, scale, words):
    with pytest.raises(InputError, match=words):
        build(scenario(window=window | {"warmup_s": 1.0}), rate_scale=scale)


# ---- generated windows ----------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_bytes():
    a, b = build(scenario(), seed=3, window=2), build(scenario(), seed=3, window=2)
    assert a.arrivals.tobytes() == b.arrivals.tobytes()
    assert len(np.unique(a.arrivals["prompt_tokens"])) > 50


def test_seeds_windows_and_splits_are_all_different():
    drawn = [
        build(scenario(), seed=seed, window=window, split=split).arrivals["arrival_s"][0]
        for seed in (0, 1)
        for window in (0, 1, 2)
        for split in SPLITS
    ]
    assert len(set(drawn)) == 2 * 3 * 3


def test_another_rate_keeps_lengths_tiers_priorities_and_predictions():
    made = scenario({"priority_shares": [1, 1]})
    slow, fast = (build(made, seed=1, rate_scale=x).arrivals[:500] for x in (1.0, 2.5))
    for name in ("prompt_tokens", "output_tokens", "predicted_tokens", "tier", "priority"):
        assert np.array_equal(slow[name], fast[name])
        assert len(np.unique(slow[name])) > 1
    assert slow["arrival_s"] == pytest.approx(fast["arrival_s"] * 2.5, rel=1e-12)


def test_another_length_law_or_predictor_keeps_the_rest():
    base = build(scenario(), seed=1).arrivals[:500]
    fixed = build(scenario({"lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 9}}), seed=1).arrivals[
        :500
    ]
    oracle = build(scenario({"predictor": {"kind": "oracle"}}), seed=1).arrivals[:500]
    for name in ("arrival_s", "tier"):
        assert np.array_equal(base[name], fixed[name])
    assert np.array_equal(base["output_tokens"], oracle["predicted_tokens"])


def test_tiers_follow_their_order_and_shares():
    load = build(scenario(window={"requests": 20_000}))
    assert load.tier_names == ("internal", "high-value")
    assert np.mean(load.arrivals["tier"] == 1) == pytest.approx(0.75, abs=0.015)


def test_the_mean_predictor_answers_the_mean_output_of_the_law():
    load = build(scenario({"predictor": {"kind": "mean"}}))
    assert set(load.arrivals["predicted_tokens"]) <= {210, 211, 212}


def test_the_source_names_the_workload_and_an_oracle():
    assert build(scenario()).source == "poisson 5/s, azure-conv"
    assert build(scenario({"predictor": {"kind": "oracle"}})).source.endswith("oracle lengths")


def test_an_empty_window_is_refused():
    with pytest.raises(InputError, match=r"no request arrives between 0 s and 0\.001 s"):
        build(scenario(window={"duration_s": 0.001}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": -1}, "seed: -1 is below 0"),
        ({"window": -1}, "window: -1 is below 0"),
        ({"span": "all"}, "span: 'all' is neither 'whole' nor 'window'"),
        ({"split": "tset"}, "did you mean 'test'"),
    ],
)
def test_an_impossible_argument_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        build(scenario(), **arguments)


# ---- traces ---------------------------------------------------------------------------------------------


def test_a_whole_trace_is_measured_from_the_warmup_to_its_end(tmp_path):
    load = build(scenario(window={"requests": 5, "warmup_s": 9.5}), trace=plain_trace(tmp_path))
    assert (load.measured_from, load.measured_to, len(load.arrivals)) == (10, 100, 100)
    assert (load.warmup_s, load.end_s) == (9.5, 99.0)
    assert load.arrivals["prompt_tokens"].tolist() == list(range(100, 200))
    assert load.source == "trace.csv"


def test_the_warmup_of_a_whole_trace_is_at_most_a_tenth_of_it(tmp_path):
    made = scenario(window={"requests": 5, "warmup_s": 60.0})
    load = build(made, trace=plain_trace(tmp_path), rate_scale=2.0)  # 49.5 s long
    assert (load.warmup_s, load.measured_from, load.end_s) == (pytest.approx(4.95), 10, 49.5)
    one = build(made, trace=plain_trace(tmp_path, n=1))
    assert (one.warmup_s, one.measured_from, one.measured_to) == (0.0, 0, 1)


def test_a_trace_of_the_scenario_is_read(tmp_path):
    path = plain_trace(tmp_path)
    load = build(scenario({"kind": "trace", "trace": str(path)}))
    assert len(load.arrivals) == 100


def test_windows_of_a_trace_are_disjoint_and_stay_in_their_split(tmp_path):
    path = plain_trace(tmp_path)
    made = scenario(window={"requests": 8, "warmup_s": 2.0, "drain_max_s": 3.0})
    measured: dict[int, str] = {}
    for split, count in (("train", 6), ("validation", 2), ("test", 2)):
        for window in range(count):
            load = build(made, trace=path, split=split, window=window, span="window")
            rows = load.arrivals[load.measured_from : load.measured_to]
            assert len(rows) == 8
            assert rows["arrival_s"][0] >= 2.0
            assert rows["arrival_s"][-1] == load.end_s
            assert load.arrivals["arrival_s"][-1] <= load.end_s + 3.0
            for prompt in rows["prompt_tokens"]:
                assert measured.setdefault(int(prompt), split + str(window)) == split + str(window)
    index = {s: [p - 100 for p, where in measured.items() if where.startswith(s)] for s in SPLITS}
    assert max(index["train"]) < 60 <= min(index["validation"])
    assert max(index["validation"]) < 80 <= min(index["test"])


def test_windows_of_a_trace_by_duration(tmp_path):
    made = scenario(window={"duration_s": 4.5, "drain_max_s": 0.0})
    path = plain_trace(tmp_path)
    first, second = (build(made, trace=path, window=w, span="window").arrivals for w in (0, 1))
    assert first["prompt_tokens"].tolist() == [180, 181, 182, 183, 184]
    assert second["prompt_tokens"].tolist() == [185, 186, 187, 188, 189]
    assert second["arrival_s"] == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5])


def test_a_window_that_the_trace_cannot_hold_is_refused(tmp_path):
    made = scenario(window={"requests": 8})
    with pytest.raises(InputError, match=r"the test part \(20 requests\) holds 2 windows of 8 requests"):
        build(made, trace=plain_trace(tmp_path), window=2, span="window")
    with pytest.raises(InputError, match="a whole trace is one window"):
        build(made, trace=plain_trace(tmp_path), window=1)


def mooncake_trace(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": 3000 * (i // 4), "input_length": 700, "output_length": 3, "hash_ids": [0, 5 * i + 5]}
        for i in range(40)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_blocks_of_a_window_are_those_of_its_requests(tmp_path):
    made = scenario(window={"requests": 4, "drain_max_s": 0.0})
    load = build(made, trace=mooncake_trace(tmp_path), span="window", window=1)
    rows = load.arrivals
    blocks = [load.blocks[s : s + c].tolist() for s, c in zip(rows["block_start"], rows["block_count"], strict=True)]
    assert blocks == [[0, 37], [0, 38], [0, 39], [0, 40]]  # requests 36 to 39


def test_jitter_follows_the_seed_and_nothing_else(tmp_path):
    path = mooncake_trace(tmp_path)
    times = [
        build(scenario(), trace=path, seed=seed, split=split).arrivals["arrival_s"].tolist()
        for seed, split in ((0, "train"), (0, "test"), (1, "test"))
    ]
    assert times[0] == times[1] != times[2]


def test_hashes_of_another_block_size_than_the_cache_are_refused(tmp_path):
    path = mooncake_trace(tmp_path)
    cached = cluster(prefill(prefix_cache_blocks=10), block_tokens=256)
    with pytest.raises(InputError, match=r"trace\.jsonl, field hash_ids: .*kv\.block_tokens=512"):
        build(scenario(at=cached), trace=path)
    assert len(build(scenario(at=cluster(block_tokens=256)), trace=path).arrivals) == 40


def test_the_parity_file_keeps_its_times(shared_dir):
    load = build(scenario(), trace=shared_dir / "parity" / "fixed_2k_r40.csv")
    assert load.arrivals["arrival_s"][0] == 0.046515178
    assert load.end_s == 50.819649670
    assert set(load.arrivals["prompt_tokens"]) == {1020}
