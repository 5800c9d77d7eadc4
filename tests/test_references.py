"""Lookahead and clairvoyant: copies roll forward exactly, nothing leaks from the future, and they do better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import draw_case
from test_accrual import OBJECTIVES

import pdenv
from pdenv import references
from pdenv.errors import InputError
from pdenv.references.kernels import ACTION, compiled, no_actions
from pdenv.references.lookahead import Lookahead
from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.records import empty_records
from pdenv.sim.state import OUTSIDE_ROUTE, TERMS

GPU = TERMS.index("gpu")


def at_decision(seed: int, aim: Objective, number: int) -> Simulation | None:
    """A run of a drawn case at its `number`-th route decision, answered by its rule so far; None: it has fewer."""
    case = draw_case(np.random.default_rng(seed))
    sim = Simulation(
        case.cluster, case.arrivals, case.blocks, rule="least-work", outside=OUTSIDE_ROUTE, objective=aim, accruing=True
    )
    sim.charge(0, len(case.arrivals))
    for k in range(number + 1):
        if not sim.step():
            return None
        compiled().base_route(sim.block.handle())
        if k == number:
            return sim
    return None


def rolled(sim: Simulation) -> float:
    """What a copy of the run, with the answer in its header, costs from now to its end, GPUs left out."""
    records = empty_records(len(sim.arrivals))
    copy = sim.block.copied({"record": records})
    actions = no_actions(1)
    for name in ACTION.names[1:]:
        actions[name][0] = sim.block.header[f"act_{name}"]
    compiled().imagine(
        copy.handle(), actions, 0, 0, len(sim.arrivals), sim.records, records, empty_records(1),
        False, np.zeros(0), np.ones((1, 1)),
    )  # fmt: skip
    other = sim.copy()
    other.block, other.records = copy, records
    other.run()
    return float(compiled().spent(other.block.handle(), np.nan))


@pytest.mark.parametrize("mode", OBJECTIVES)
def test_a_copy_costs_what_the_run_goes_on_to_cost(mode):
    checked = 0
    for seed in range(60):
        aim = replace(OBJECTIVES[mode], gpu_s=0.0)
        sim = at_decision(seed, aim, number=5 + seed % 20)
        if sim is None:
            continue
        sim.accrued()
        predicted = rolled(sim)
        sim.block.header["outside"] = 0
        sim.run()
        terms = sim.accrued()
        assert predicted == pytest.approx(terms.sum() - terms[GPU], rel=1e-9, abs=1e-9), seed
        checked += 1
    assert checked >= 30


def test_imagined_lengths_are_longer_than_what_is_emitted_and_nothing_of_the_run_changes():
    sim = at_decision(7, OBJECTIVES["joint"], number=12)
    before = sim.block.bytes.copy()
    ratios = np.sort(np.random.default_rng(0).lognormal(0.0, 0.5, (1, 64)), axis=1)
    records = empty_records(len(sim.arrivals))
    copy = sim.block.copied({"record": records})
    compiled().imagine(
        copy.handle(), no_actions(1), 0, 3, len(sim.arrivals), sim.records, records, empty_records(1),
        True, np.zeros(0), ratios,
    )  # fmt: skip
    here = copy.views["request"]["id"] >= 0
    assert (copy.views["request"]["output"][here] > copy.views["request"]["emitted"][here]).all()
    assert (copy.views["request"]["output"][here] != sim.block.views["request"]["output"][here]).any()
    assert (sim.block.bytes == before).all()


def decisions_of(name: str, outputs: int, later: float) -> list[tuple[int, ...]]:
    """Where the first 40 requests of a small scenario go; true lengths and arrivals after them are as given."""
    scenario = pdenv.load_scenario("toy", {"workload.rate_per_s": 8, "window.requests": 60})
    load = pdenv.workload.build(scenario)
    rows = load.arrivals[:200].copy()
    rows["output_tokens"], rows["predicted_tokens"] = outputs, 400
    rows["arrival_s"][40:] = rows["arrival_s"][39] + later + np.arange(160) * later
    load = replace(load, arrivals=rows)
    sim, advance = references.prepare(name, scenario, scenario.cluster(), load)
    assert isinstance(advance.__self__, Lookahead)
    advance(float(rows["arrival_s"][39]) - 1e-6)
    return [(r["prefill"], r["decode"], r["wire_precision"]) for r in sim.records[:39]]


def test_lookahead_sees_neither_true_lengths_nor_arrivals_to_come():
    few = decisions_of("lookahead", 5000, 0.1)
    assert few == decisions_of("lookahead", 9000, 3.0)
    assert len(set(few)) > 1


def test_the_same_seed_decides_alike():
    scenario = pdenv.load_scenario("toy", {"workload.rate_per_s": 8, "window.requests": 40})
    runs = [pdenv.simulate(scenario, "lookahead", seed=s).summary["cost"]["mean"] for s in (1, 1)]
    assert runs[0] == runs[1]


def test_lookahead_switches_off_what_is_not_worth_its_price():
    changes = {"workload.kind": "poisson", "workload.rate_per_s": 0.2, "window.requests": 60}
    scenario = pdenv.load_scenario("burst-scaling", changes)
    fixed, elastic = (pdenv.simulate(scenario, name).summary for name in ("greedy", "lookahead(greedy)"))
    assert elastic["gpu_hours"] < 0.8 * fixed["gpu_hours"]
    assert elastic["cost"]["mean"] < 0.9 * fixed["cost"]["mean"]


@pytest.mark.slow
def test_references_do_better_than_the_rule_under_them():
    scenario = pdenv.load_scenario("operating-point", {"window.requests": 500})
    cost = {
        name: np.mean([pdenv.simulate(scenario, name, window=w).summary["cost"]["mean"] for w in range(3)])
        for name in ("greedy", "lookahead", "clairvoyant")
    }
    assert cost["lookahead"] < cost["greedy"] and cost["clairvoyant"] < cost["greedy"], cost


def test_names():
    assert references.parse("lookahead") == ("lookahead", "greedy")
    assert references.parse("clairvoyant(three-part)") == ("clairvoyant", "three-part")
    assert not references.is_reference("lookahea") and not references.is_reference("greedy")
    with pytest.raises(InputError, match=r"did you mean .greedy."):
        pdenv.simulate("toy", "lookahead(greedi)")
    with pytest.raises(InputError):
        references.parse("clairvoyan")
