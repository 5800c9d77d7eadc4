"""Conservation in every run: bytes, tokens, GPUs, statuses and clocks, looked at all the way through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from driving import answer, run_engine
from small import make_arrivals, make_cluster, make_profile
from strategies import Case, draw_case

from pdenv.sim.audit import audit, audit_end
from pdenv.sim.engine import Simulation
from pdenv.sim.records import COMPLETED, STATUSES, WAITING

SLICES = 20
CASES = range(60)


def run_in_slices(case: Case, times_s: np.ndarray, look) -> Simulation:
    """Run a scripted case, stopping at each time to `look(sim)`."""
    sim = Simulation(case.cluster, case.arrivals, case.blocks, rule=None, pool=16)
    for until_s in (*times_s, np.inf):
        while sim.step(until_s):
            answer(sim, case.script)
        look(sim)
    return sim


def observe(sim: Simulation) -> None:
    audit(sim)
    sim.totals()
    sim._kernels.largest_port_excess(sim.block.handle())


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("seed", CASES)
def test_a_run_conserves_everything_and_does_not_mind_being_watched(seed):
    """The same run in one piece and in slices with every law checked after each: bit-identical records."""
    case = draw_case(seed)
    whole = run_engine(case)
    times = np.linspace(0.0, whole.now, SLICES) if np.isfinite(whole.now) else np.zeros(1)
    watched = run_in_slices(case, times, observe)
    assert same_bits(whole.records, watched.records)
    assert whole.now == watched.now
    if not np.any(watched.records["status"] == WAITING):
        audit_end(watched)


@pytest.mark.parametrize("seed", range(12))
def test_totals_are_those_of_the_records(seed):
    """Totals do not depend on when they were read, and only grow."""
    case = draw_case(seed)
    whole = run_engine(case).totals()
    seen = []
    sim = run_in_slices(case, np.linspace(0.0, whole.time_s, SLICES), lambda sim: seen.append(sim.totals()))
    last = sim.totals()
    for name in ("busy_s", "stalled_s", "active_s", "billed_s", "queue_s", "memory_byte_s"):
        for pool in ("prefill", "decode", "colocated"):
            series = np.array([getattr(totals, pool)[name] for totals in seen])
            scale = max(1.0, float(np.abs(series).max(initial=0.0)))
            assert np.all(np.diff(series, axis=0) >= -1e-9 * scale), f"{name} of {pool} fell"
            np.testing.assert_allclose(getattr(last, pool)[name], getattr(whole, pool)[name], rtol=1e-9, atol=1e-9)
    assert np.array_equal(last.gap_counts, whole.gap_counts)
    assert last.gap_sum_s == pytest.approx(whole.gap_sum_s, rel=1e-9)
    for pool in ("prefill", "decode", "colocated"):
        rows = getattr(last, pool)
        assert np.all(rows["busy_s"] <= rows["active_s"] + 1e-9), f"{pool} is busy while it is off"
        assert np.all(rows["active_s"] <= rows["billed_s"] + 1e-9)
        assert np.all(rows["billed_s"] <= last.time_s + 1e-9)


def test_gaps_add_up_to_the_time_between_first_and_last_token():
    profile = make_profile(0.01, 1e-4, 0.0, 0.004, 0.001)
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.02, 400))
    arrivals = make_arrivals(times, rng.integers(1, 300, 400), rng.integers(1, 60, 400))
    cluster = make_cluster(profile, pairs=2, nic_bytes_per_s=1e7, layerwise=True, reserve=0, layers=4)
    sim = Simulation(cluster, arrivals, rule="least-requests")
    assert sim.run()
    audit_end(sim)
    spoken = sim.records["finish_s"] - sim.records["first_token_s"]
    assert sim.totals().gap_sum_s == pytest.approx(float(spoken.sum()), rel=1e-9)
    assert sim.totals().gap_counts.sum() == int((arrivals["output_tokens"] - 1).sum())


# ---- no deadlock ---------------------------------------------------------------------------------------------------


def finish(cluster, arrivals: np.ndarray) -> Simulation:
    """Every request must end, in bounded time."""
    sim = Simulation(cluster, arrivals, rule="round-robin")
    for until_s in np.linspace(0.0, 1e4, 200):
        sim.run(until_s)
        audit(sim)
    assert sim.run(), f"stuck at {sim.now} s with {[STATUSES[s] for s in np.unique(sim.records['status'])]}"
    audit_end(sim)
    return sim


TIGHT = make_profile(0.01, 1e-4, 0.0, 0.01, 0.001)


@pytest.mark.parametrize("reserve", [0, 1, 2])
@pytest.mark.parametrize("layerwise", [False, True])
def test_prompts_that_nearly_fill_the_pool(reserve, layerwise):
    """Memory for 1,000 tokens, prompts of 990 that grow to 995, mixed with short ones: all complete."""
    prompts = np.tile([990, 10, 990, 500, 5], 20)
    outputs = np.tile([6, 9, 6, 30, 60], 20)
    cluster = make_cluster(
        TIGHT,
        nic_bytes_per_s=1e6,
        staging_bytes=1000 * 1000,
        decode_bytes=1000 * 1000,
        reserve=reserve,
        layerwise=layerwise,
        layers=4,
    )
    sim = finish(cluster, make_arrivals(np.arange(100) * 0.02, prompts, outputs))
    assert np.all(sim.records["status"] == COMPLETED)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_memory_reserved_at_dispatch_for_prompts_that_sjf_puts_last(chunked, swap):
    """Decode memory is promised to long prompts that short ones, waiting for memory in staging, overtake."""
    rng = np.random.default_rng(5)
    n = 150
    prompts = rng.choice([20, 50, 400, 900], n, p=[0.4, 0.3, 0.2, 0.1])
    cluster = make_cluster(
        TIGHT,
        pairs=2,
        nic_bytes_per_s=1e6,
        staging_bytes=1000 * 1000,
        decode_bytes=1000 * 1000,
        prefill={"sjf": True, "chunked": chunked, "max_batch_tokens": 256},
        reserve=0,
        swap=swap,
        swap_bytes_per_s=1e7,
    )
    sim = finish(cluster, make_arrivals(np.sort(rng.uniform(0, 3, n)), prompts, rng.integers(1, 80, n)))
    assert np.all(sim.records["status"] == COMPLETED)


def test_sequences_that_outgrow_an_instance_alone_fail_and_the_others_go_on():
    """400 + 700 tokens do not fit 1,000; the rest must not wait for ever behind them."""
    outputs = np.tile([700, 10, 50], 20)
    cluster = make_cluster(TIGHT, nic_bytes_per_s=1e7, decode_bytes=1000 * 1000)
    sim = finish(cluster, make_arrivals(np.arange(60) * 0.01, 400, outputs))
    statuses = [STATUSES[s] for s in sim.records["status"]]
    assert statuses == ["failed_oom", "completed", "completed"] * 20


def test_prompts_too_large_for_staging_or_for_decode_memory_are_refused_on_arrival():
    cluster = make_cluster(TIGHT, staging_bytes=500 * 1000, decode_bytes=800 * 1000)
    smaller_decode = replace(cluster, decode=(replace(cluster.decode[0], kv_bytes=300 * 1000),))
    arrivals = make_arrivals([0.0, 0.1, 0.2], [300, 301, 501], 1)
    for where, expected in (
        (cluster, ["completed", "completed", "too_large"]),
        (smaller_decode, ["completed", "too_large", "too_large"]),
    ):
        sim = finish(where, arrivals)
        assert [STATUSES[s] for s in sim.records["status"]] == expected
        assert sim.records["finish_s"][2] == 0.2


@pytest.mark.parametrize("seed", [2, 5, 19, 50])
def test_a_copy_goes_on_like_the_original_and_leaves_it_alone(seed: int):
    case = draw_case(seed)
    sim = Simulation(case.cluster, case.arrivals, case.blocks, rule="least-work", pool=8)
    sim.run(float(case.arrivals["arrival_s"][len(case.arrivals) // 2]))
    before = sim.block.bytes.copy()
    twin = sim.copy()
    twin.run(1e4)
    assert np.array_equal(sim.block.bytes, before)
    sim.run(1e4)
    assert sim.now == twin.now
    for name in sim.records.dtype.names:
        assert np.array_equal(sim.records[name], twin.records[name], equal_nan=sim.records[name].dtype.kind == "f")
    for name in ("gap_counts", "port_bytes"):
        assert np.array_equal(getattr(sim.totals(), name), getattr(twin.totals(), name))
