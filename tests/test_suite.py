"""The suite: frozen presets, what "all" means in each, gates and the page of results."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pdenv.bench import gates, suite
from pdenv.bench.suite import Suite, digest_of, freeze, load_suite, policies_of, suite_names
from pdenv.bench.tricks import TRICKS, possible
from pdenv.errors import InputError
from pdenv.policies import load_policy
from pdenv.run import simulate
from pdenv.scenario import load_scenario
from pdenv.sim.rules import RULES, find_rule

ROOT = Path(__file__).resolve().parents[1]
V1 = load_suite("v1")
CONTROLS = ("homogeneous", "short-chat")
GATES = json.loads((ROOT / "docs" / "results" / "gates-v1.json").read_text(encoding="utf-8"))


def costs(scenario, policies, windows: int = 2, seed: int = 5) -> dict[str, float]:
    return {
        name: float(np.mean([simulate(scenario, name, seed, window=w).summary["cost"]["mean"] for w in range(windows)]))
        for name in policies
    }


# ---- what a suite is ------------------------------------------------------------------------------------


def test_v1_has_its_scenarios_and_controls():
    assert suite_names() == ("v1",)
    assert set(V1.scenarios) == {
        "operating-point", "homogeneous", "hetero-links", "hetero-gpus", "burst-scaling", "precision-budget",
        "stale-metrics", "short-chat",
    }  # fmt: skip
    assert V1.controls == CONTROLS
    assert V1.windows == 20


@pytest.mark.parametrize("name", V1.scenarios)
def test_presets_are_frozen_with_their_cost(name):
    scenario = load_scenario(name)
    assert digest_of(scenario) == V1.digests[name]
    assert scenario.cost.model_fields_set == set(type(scenario.cost).model_fields)  # none left to a default
    assert scenario.cost.mode == "joint"


def test_a_preset_that_changed_is_refused(monkeypatch):
    monkeypatch.setattr(suite, "load_scenario", lambda name: load_scenario(name, {"sla.ttft_s": 9.75}))
    with pytest.raises(InputError, match="preset 'operating-point' is not the one that suite v1 was frozen with"):
        load_suite("v1")


def test_a_digest_depends_on_every_number():
    scenario = load_scenario("toy")
    assert digest_of(scenario) == digest_of(load_scenario("toy"))
    assert digest_of(scenario) != digest_of(load_scenario("toy", {"window.drain_max_s": 61}))


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(InputError, match="no suite 'v2'; did you mean 'v1'"):
        load_suite("v2")


def test_freezing_writes_the_digests_and_keeps_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "SUITES", tmp_path)
    head = "# a comment\nwindows: 3\nseed: 4\nscenarios: [toy]\ncontrols: []\n"
    (tmp_path / "mine.yaml").write_text(head + "digests: {toy: old}\n")
    with pytest.raises(InputError, match="preset 'toy'"):
        load_suite("mine")
    path = freeze("mine")
    assert path.read_text().startswith(head)
    assert load_suite("mine") == Suite("mine", ("toy",), (), 3, 4, {"toy": digest_of(load_scenario("toy"))})


@pytest.mark.parametrize("name", V1.scenarios)
def test_windows_are_long_enough(name):
    """At least 2,000 requests, and ten mean end-to-end times."""
    line = GATES["scenarios"][name]["operating_line"]
    assert line["requests"] >= 2000
    assert line["window_s"] >= 10 * line["e2e_s"]


# ---- policies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", V1.scenarios)
def test_all_means_schedulers_that_exist_once_each(name):
    policies = policies_of(V1, name)
    assert len(policies) == len(set(policies))
    rules = [find_rule(policy) for policy in policies]
    assert len({(rule.route, rule.scaler) for rule in rules}) == len(rules)


def test_what_can_not_differ_is_left_out():
    assert set(RULES) - set(policies_of(V1, "hetero-links")) == {"conditional", "admission"}
    assert "conditional" in policies_of(V1, "short-chat")
    scaling = set(policies_of(V1, "burst-scaling"))
    assert {"greedy+queue", "three-part+forecast", "least-work+utilisation"} <= scaling
    assert not {"three-part+utilisation", "greedy+fixed"} & scaling
    assert not any("+" in policy for policy in policies_of(V1, "operating-point"))
    with pytest.raises(InputError, match="has no scenario 'toy'"):
        policies_of(V1, "toy")


# ---- derived scenarios ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toy", "hetero-gpus", "short-chat"])
def test_slower_decode_doubles_every_iteration_and_nothing_else(name):
    scenario = load_scenario(name)
    before, after = scenario.cluster(), gates.with_decode_slower(scenario, 2.0).cluster()
    for pool in ("prefill", "decode", "colocated"):
        for old, new in zip(getattr(before, pool), getattr(after, pool), strict=True):
            a, b = before.profiles[old.profile], after.profiles[new.profile]
            assert b.prefill.table_s == a.prefill.table_s and b.prefill.a_s == a.prefill.a_s
            assert b.prefill.c_s[0] == a.prefill.c_s[0]
            assert b.decode.c_s == tuple(2 * c for c in a.decode.c_s)
            assert b.decode.table_s == tuple(2 * s for s in a.decode.table_s)
            assert (b.decode.a_s, b.decode.b_s) == (2 * a.decode.a_s, 2 * a.decode.b_s)
            assert b.piggyback == a.piggyback
    assert after.ports == before.ports and after.paths == before.paths


def test_narrower_links_halve_every_port_but_nvlink():
    scenario = load_scenario("hetero-links")
    before, after = scenario.cluster(), gates.with_links_narrower(scenario, 2.0).cluster()
    ratios = {
        port.name: new.bytes_per_s / port.bytes_per_s for port, new in zip(before.ports, after.ports, strict=True)
    }
    assert {ratio for name, ratio in ratios.items() if "nvlink" not in name} == {0.5}
    assert {ratio for name, ratio in ratios.items() if "nvlink" in name} == {1.0}


# ---- gates ----------------------------------------------------------------------------------------------


def test_the_committed_gates_are_of_this_version_and_passed():
    assert GATES["digests"] == V1.digests
    assert {name: found["passed"] for name, found in GATES["scenarios"].items()} == dict.fromkeys(V1.scenarios, True)


@pytest.mark.parametrize("name", [name for name in V1.scenarios if name not in CONTROLS])
def test_halving_decode_or_links_moves_the_best_heuristic(name):
    scenario, policies = load_scenario(name), ("greedy", "pull", "three-part", "three-part+queue", "colocated")
    policies = tuple(policy for policy in policies if policy in policies_of(V1, name))
    best = min(costs(scenario, policies).values())
    for derive in gates.DERIVED.values():
        assert min(costs(derive(scenario, 2.0), policies).values()) > 1.1 * best


def test_operating_point_meets_its_definition_under_a_good_heuristic():
    scenario = load_scenario("operating-point")
    runs = [simulate(scenario, "greedy", seed=5, window=window) for window in range(4)]
    line = gates.operating_line(scenario, runs)
    assert 0.80 < line["prefill_busy"] < 1.0
    assert 0.40 <= line["decode_memory"] < 0.70
    assert 0.60 <= line["bf16_network"] <= 0.90
    assert line["line_bytes_per_s"] == 100e9


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("name", ["hetero-links", "burst-scaling", "short-chat"])
def test_tricks_do_not_pay(name, trick):
    scenario = load_scenario(name, {"window.requests": 300, "window.warmup_s": 20, "window.drain_max_s": 120})
    if not possible(trick, scenario):
        assert (name, trick) == ("burst-scaling", "always-int4")
        return
    short = load_scenario(name, {**gates.ALTERED.get(trick, {}), "window": scenario.window.model_dump()})
    load = simulate(scenario, "three-part", seed=3)
    policy = TRICKS[trick](load_policy("three-part"), load.workload.warmup_s, load.workload.end_s)
    tricked = simulate(short, policy, seed=3).summary["cost"]["by_mode"]
    for mode, cost in load.summary["cost"]["by_mode"].items():
        assert tricked[mode] > cost, mode


def test_the_honest_trick_is_the_scheduler_itself():
    """What the tricks change is all that they change: without a change the cost is that of the compiled rule."""
    from pdenv.bench.tricks import Trick

    scenario = load_scenario("toy")
    honest = simulate(scenario, Trick(load_policy("three-part"), 0.0, 1.0), seed=1).summary["cost"]["mean"]
    assert honest == pytest.approx(simulate(scenario, "three-part", seed=1).summary["cost"]["mean"], rel=1e-9)


# ---- what the scenarios claim ---------------------------------------------------------------------------


def test_rules_that_look_at_load_tie_in_homogeneous():
    found = costs("homogeneous", ("least-requests", "least-tokens", "least-work", "kv-aware", "greedy", "three-part"))
    assert max(found.values()) < 1.05 * min(found.values())


def test_colocated_serving_beats_the_pools_in_short_chat_on_as_many_gpus():
    cluster = load_scenario("short-chat").cluster()
    assert sum(i.gpus for i in (*cluster.prefill, *cluster.decode)) == sum(i.gpus for i in cluster.colocated)
    found = costs("short-chat", ("round-robin", "least-work", "topology-score", "three-part", "colocated"))
    assert found.pop("colocated") < 0.85 * min(found.values())


def test_disaggregation_beats_its_colocated_twin_where_it_is_the_subject():
    for name in ("operating-point", "hetero-links", "hetero-gpus", "precision-budget", "stale-metrics"):
        found = costs(name, ("greedy", "three-part", "colocated"))
        assert min(found["greedy"], found["three-part"]) < 0.95 * found["colocated"], name


def test_topology_matters_in_hetero_links_and_speed_in_hetero_gpus():
    links, gpus = (costs(name, ("least-requests", "least-work", "greedy")) for name in ("hetero-links", "hetero-gpus"))
    assert links["greedy"] < 0.7 * links["least-work"]
    assert gpus["greedy"] < 0.9 * gpus["least-requests"]


def test_fixed_pools_fall_behind_the_bursts_of_burst_scaling():
    found = costs("burst-scaling", ("greedy", "greedy+queue", "three-part+forecast"))
    assert max(found["greedy+queue"], found["three-part+forecast"]) < 0.3 * found["greedy"]


def test_compression_is_needed_in_precision_budget():
    found = costs("precision-budget", ("kv-aware", "three-part"))
    assert found["three-part"] < 0.5 * found["kv-aware"]


def test_old_metrics_cost_something_in_stale_metrics():
    stale = costs("stale-metrics", ("least-requests", "greedy"))
    fresh = costs(load_scenario("stale-metrics", {"control.scrape_interval_s": 0, "control.scrape_delay_s": 0}), stale)
    assert all(stale[name] > 1.05 * fresh[name] for name in stale)


# ---- the page -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite_page", ROOT / "benchmarks" / "suite_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["suite_page"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["docs/suite.md", "README.md", "agents/README.md"])
def test_tables_say_what_the_results_say(page_maker, path):
    page = (ROOT / path).read_text(encoding="utf-8")
    assert ROOT / path in page_maker.PAGES
    assert page_maker.MISSING not in page
    assert page == page_maker.filled(page), "write it again: python benchmarks/suite_page.py"


def test_the_page_has_a_section_and_its_tables_for_every_scenario():
    page = (ROOT / "docs" / "suite.md").read_text(encoding="utf-8")
    for name in V1.scenarios:
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert f"<!-- line {name} -->" in section and f"<!-- leaderboard {name} -->" in section
        assert "**Stresses**" in section and "**Should win**" in section


def test_tables_by_hand(page_maker):
    board = [
        {"policy": "three-part", "kind": "heuristic", "cost": {"mean": 2.0, "low": 1.9, "high": 2.1},
         "relative": {"mid": 1.25, "low": 1.2, "high": 1.3}},
        {"policy": "greedy", "kind": "heuristic", "cost": {"mean": 1.6, "low": 1.5, "high": 1.7}, "relative": None},
        {"policy": "lookahead", "kind": "reference", "cost": {"mean": 1.2, "low": 1.1, "high": 1.3},
         "relative": {"mid": 0.75, "low": 0.7, "high": 0.8}},
    ]  # fmt: skip
    found = {"leaderboards": {"toy": board}, "versions": {"pdenv": "1.0"}, "command": "pdenv compare",
             "costs": {"toy": {"greedy": [1.6] * 3}},
             "started": "2026-01-02T03:04:05"}  # fmt: skip
    lines = page_maker.headroom_table(found).splitlines()
    assert lines[2] == (
        "| `toy` | 2.00 [1.90, 2.10] | `greedy` 1.60 [1.50, 1.70] | 1.20 [1.10, 1.30], **25 % [20, 30]** | – | 3 |"
    )
    assert lines[-1] == "`pdenv compare`, pdenv 1.0, 2026-01-02."
    assert [page_maker.number(x) for x in (0.0234, 0.999, 1.26, 12.34, 1234.5, None)] == [
        "0.0234", "0.999", "1.26", "12.3", "1,234", "–",
    ]  # fmt: skip
