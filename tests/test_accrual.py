"""Cost as it accrues adds up to the cost of the records, whenever and however often it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from driving import answer
from small import make_arrivals, make_cluster, make_profile
from strategies import Case, draw_case

from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.records import COMPLETED, MODES, REJECTED, UNFINISHED, WAITING
from pdenv.sim.state import TERMS

LIMITS = {"ttft_limit_s": 0.8, "tpot_limit_s": 0.02}
STEPS = {"ttft_step": 0.5, "ttft_slope_per_s": 0.3, "tpot_step": 0.7, "tpot_slope_per_s": 1.1}
PRICES = {"quality": (0.0, 0.3, 0.9, 0.4), "rejection": 5.0, "failure": 7.0, "gpu_s": 0.01, "churn": 0.2}
OBJECTIVES = {
    "joint": Objective(**LIMITS, **STEPS, **PRICES, w_prefill=1.0, w_transfer=1.5, w_decode=2.0),
    "standard": Objective(**LIMITS, **STEPS, **PRICES, w_prefill=0.0, w_transfer=0.0, w_decode=2.0, standard=True),
}


def terms_of_records(sim: Simulation, aim: Objective) -> dict[str, float]:
    """Every term of the cost from the records alone; what has not ended counts until now."""
    rows, arrivals = sim.records, sim.arrivals
    here = arrivals["arrival_s"] <= sim.now
    rows, arrivals = rows[here], arrivals[here]
    ended = ~np.isin(rows["status"], (WAITING, UNFINISHED))
    left = np.where(ended, rows["finish_s"], sim.now)
    t_p = np.where(np.isnan(rows["prefill_end_s"]), left, rows["prefill_end_s"])
    t_j = np.where(np.isnan(rows["decode_start_s"]), left, rows["decode_start_s"])
    first = rows["first_token_s"]
    n = arrivals["output_tokens"]
    m = n - 1 + (sim.cluster.decode_first & (rows["mode"] == MODES.index("pair")))
    decode = np.where(m > 0, (left - t_j) / np.maximum(m, 1), 0.0)
    emitting = np.where(np.isnan(first), 0.0, left - first)
    if aim.standard:
        decode = np.where(n > 1, emitting / np.maximum(n - 1, 1), 0.0)
    late = np.maximum(np.where(np.isnan(first), left, first) - arrivals["arrival_s"] - aim.ttft_limit_s, 0.0)
    over = np.where(n > 1, np.maximum(emitting - aim.tpot_limit_s * (n - 1), 0.0), 0.0)
    prices = np.array([*aim.quality, 0.0])
    totals = sim.totals()
    gpu_s = sum(
        float(instance.gpus * row["billed_s"])
        for pool in ("prefill", "decode", "colocated")
        for instance, row in zip(getattr(sim.cluster, pool), getattr(totals, pool), strict=True)
    )
    rejected = rows["status"] == REJECTED
    return {
        "prefill": aim.w_prefill * (t_p - arrivals["arrival_s"]).sum(),
        "transfer": aim.w_transfer * np.where(m > 0, t_j - t_p, 0.0).sum(),
        "decode": aim.w_decode * decode.sum(),
        "ttft_penalty": aim.ttft_step * (late > 0).sum() + aim.ttft_slope_per_s * late.sum(),
        "tpot_penalty": aim.tpot_step * (over > 0).sum() + aim.tpot_slope_per_s * over.sum(),
        "rejection_penalty": aim.rejection * rejected.sum(),
        "failure_penalty": aim.failure * (ended & ~rejected & (rows["status"] != COMPLETED)).sum(),
        "quality": np.maximum(prices[rows["wire_precision"]], prices[rows["store_precision"]]).sum(),
        "gpu": aim.gpu_s * gpu_s,
        "churn": aim.churn * totals.scalings,
    }


def run_accruing(case: Case, aim: Objective, times_s: Sequence[float] = ()) -> tuple[Simulation, np.ndarray]:
    """Run a scripted case; accrual is read at each decision and at each time; `(readings, TERMS)`."""
    sim = Simulation(case.cluster, case.arrivals, case.blocks, rule=None, pool=16, objective=aim, accruing=True)
    sim.charge(0, len(case.arrivals))
    read = []
    for until_s in (*times_s, np.inf):
        while sim.step(until_s):
            read.append(sim.accrued())
            answer(sim, case.script)
        read.append(sim.accrued())
    return sim, np.array(read)


def assert_terms(got: np.ndarray, expected: dict[str, float]) -> None:
    for name, value, want in zip(TERMS, got, expected.values(), strict=True):
        assert value == pytest.approx(want, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("mode", OBJECTIVES)
@pytest.mark.parametrize("seed", range(60))
def test_what_accrues_is_the_cost_of_the_records(seed, mode):
    """Every term, in cases that have preemptions, rejections, drains, N = 1 and decode-first among them."""
    case = draw_case(seed)
    sim, read = run_accruing(case, OBJECTIVES[mode])
    given_back = TERMS.index("quality")  # where a drain sends a request back to the gateway
    assert np.all(np.delete(read, given_back, axis=1) > -1e-9)
    if np.isfinite(sim.now):
        sim.close()
        assert_terms(read.sum(axis=0), terms_of_records(sim, OBJECTIVES[mode]))


@pytest.mark.parametrize("seed", range(12))
def test_what_has_accrued_is_right_at_any_time(seed):
    case = draw_case(seed)
    end_s = run_accruing(case, OBJECTIVES["joint"])[0].now
    for until_s in np.random.default_rng(seed).uniform(0.0, min(end_s, 100.0), 5):
        sim = Simulation(
            case.cluster, case.arrivals, case.blocks, rule=None, pool=16, objective=OBJECTIVES["joint"], accruing=True
        )
        sim.charge(0, len(case.arrivals))
        while sim.step(until_s):
            answer(sim, case.script)
        got = sim.accrued()
        sim.close()
        assert_terms(got, terms_of_records(sim, OBJECTIVES["joint"]))


@pytest.mark.parametrize("beta_per_s", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(8))
def test_splitting_an_interval_changes_nothing(seed, beta_per_s):
    """Discounted values of short intervals, discounted again to the start, are that of the whole."""
    case = draw_case(seed)
    start = Simulation(
        case.cluster, case.arrivals, case.blocks, "least-work", objective=OBJECTIVES["joint"], accruing=True
    )
    start.charge(0, len(case.arrivals), beta_per_s=beta_per_s)
    times = np.linspace(0.0, 3.0, 40)
    whole, parts = start.copy(), start.copy()
    whole.run(times[-1])
    total = np.zeros(len(TERMS))
    for before, until_s in pairwise(times):
        parts.run(until_s)
        total += np.exp(-beta_per_s * before) * parts.accrued()
    np.testing.assert_allclose(total, whole.accrued(), rtol=1e-9, atol=1e-10)


def test_discounted_cost_is_the_integral_by_hand():
    """One request: prefill 0.11 s, transfer, 9 iterations; c(s) = 1 until the first iteration, 1/9 after it."""
    profile = make_profile(0.01, 1e-3, 0.0, 0.02, 0.0)
    cluster = make_cluster(profile, pairs=1)
    arrivals = make_arrivals([0.0], [100], [10])
    aim = Objective()
    sim = Simulation(cluster, arrivals, rule="least-work", objective=aim, accruing=True)
    sim.charge(0, 1, beta_per_s=2.0)
    assert sim.run()
    row = sim.records[0]
    t_j, t_f = row["decode_start_s"], row["finish_s"]
    assert t_f - t_j == pytest.approx(9 * 0.02)
    expected = (1 - np.exp(-2.0 * t_j)) / 2 + (np.exp(-2.0 * t_j) - np.exp(-2.0 * t_f)) / 2 / 9
    assert sim.accrued().sum() == pytest.approx(expected, rel=1e-12)


def test_only_charged_requests_and_charged_time_count():
    profile = make_profile(0.01, 1e-3, 0.0, 0.02, 0.0)
    cluster = make_cluster(profile, pairs=1)
    arrivals = make_arrivals([0.0, 10.0, 20.0], [100, 100, 100], [10, 10, 10])
    aim = replace(Objective(), gpu_s=1.0)
    sim = Simulation(cluster, arrivals, rule="least-work", objective=aim, accruing=True)
    sim.charge(1, 2, since_s=5.0, until_s=15.0)
    assert sim.run()
    got = dict(zip(TERMS, sim.accrued(), strict=True))
    assert got["prefill"] == pytest.approx(0.11)
    assert got["gpu"] == pytest.approx(10.0 * sum(it.gpus for it in (*cluster.prefill, *cluster.decode)))
