"""Whether a suite's scenarios test what they claim: `python -m pdenv.bench.gates v1 [--windows 5] [--json FILE]`.

- *Sensitivity*: with decode half as fast, and with links half as wide, the best heuristic's cost moves by at least a
  tenth; else the scenario would not notice a scheduler that ignores that resource. Controls are excepted.
- *Gaming*: tricks that exploit the cost instead of scheduling well cost more than `three-part`, in every cost mode.
- *Operating line*: how busy each resource is under the best heuristic.

Heuristics run with what `pdenv tune` found for the suite's scenario, in changed copies of it too.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pdenv
from pdenv import catalog
from pdenv.atomic import write_text
from pdenv.bench.suite import Suite, load_suite, policies_of
from pdenv.bench.tricks import ALTERED, TRICKS, Trick, possible
from pdenv.bench.tune import stored_params
from pdenv.build_cluster import profile_of
from pdenv.errors import InputError
from pdenv.metrics import COST_MODES, to_json
from pdenv.policies import load_policy
from pdenv.run import Result, simulate
from pdenv.scenario import Scenario, load_scenario
from pdenv.scenario_parts import AnyGroup
from pdenv.topology import PRECISIONS, StepLaw

POOLS = ("prefill", "decode", "colocated")
FACTOR = 2.0
LEAST_CHANGE = 0.1  # of the best heuristic's cost
LEAST_LOSS = 0.01  # by which a trick is dearer than three-part
HONEST = "three-part"

#: `operating-point` by its definition, under the best heuristic: lowest and highest mean over the windows.
OPERATING_POINT = {
    "prefill_busy": (0.80, 1.0),
    "decode_memory": (0.40, 0.70),
    "bf16_network": (0.60, 0.90),
    "line_bytes_per_s": (100e9, 100e9),
}


# ---- derived scenarios ----------------------------------------------------------------------------------


def with_decode_slower(scenario: Scenario, factor: float) -> Scenario:
    """The same scenario with every decode iteration `factor` times as long.

    Each group gets an inline profile: the one that it had, with the decode law times `factor`. Prefill stays.
    """
    tree = scenario.model_dump(exclude_none=True)
    for pool in POOLS:
        for i, group in enumerate(getattr(scenario, pool)):
            name = f"{pool}-{i}-slower"
            tree["profiles"][name] = _slower_profile(scenario, group, factor)
            tree[pool][i]["profile"] = name
    return Scenario.model_validate(tree)


def _slower_profile(scenario: Scenario, group: AnyGroup, factor: float) -> dict[str, Any]:
    profile = profile_of(scenario, group)
    slopes = dict(zip(PRECISIONS, profile.decode.c_s, strict=True))
    return {
        "prefill": _law(profile.prefill, 1.0) | {"c_s": profile.prefill.c_s[0]},
        "decode": _law(profile.decode, factor) | {"c_s": {q: factor * slope for q, slope in slopes.items()}},
        "piggyback": profile.piggyback,
        "source": f"{profile.name}, decode {factor:g} times as long",
    }


def _law(law: StepLaw, factor: float) -> dict[str, Any]:
    if law.table_x:
        return {"table_x": law.table_x, "table_s": [factor * s for s in law.table_s]}
    return {"a_s": factor * law.a_s, "b_s": factor * law.b_s}


def with_links_narrower(scenario: Scenario, factor: float) -> Scenario:
    """The same scenario with every link but NVLink `factor` times as narrow: less of a line rate is achieved."""
    tree = scenario.model_dump(exclude_none=True)
    given = scenario.network.efficiency
    now = catalog.link(scenario.network.link).efficiency if given is None else given
    tree["network"]["efficiency"] = now / factor
    return Scenario.model_validate(tree)


DERIVED = {"decode": with_decode_slower, "links": with_links_narrower}


# ---- one scenario ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """The windows on which a suite's gates are measured."""

    suite: Suite
    count: int

    def params(self, scenario: Scenario, policy: str) -> dict[str, float]:
        """What tuning found for the policy in the suite's scenario of that name, which may since have been derived."""
        return stored_params(self.suite, scenario.name, policy)

    def run(self, scenario: Scenario, policy: str) -> list[Result]:
        """One run a window."""
        params = self.params(scenario, policy)
        return [
            simulate(scenario, policy, seed=self.suite.seed, window=window, params=params)
            for window in range(self.count)
        ]

    def costs(self, scenario: Scenario) -> dict[str, float]:
        """Mean cost of each heuristic of the suite."""
        return {name: mean_cost(self.run(scenario, name)) for name in policies_of(self.suite, scenario.name)}


def mean_cost(runs: Sequence[Result], mode: str | None = None) -> float:
    """Mean over runs, cost units a request, in the scenario's own mode or another one."""
    costs = [run.summary["cost"] for run in runs]
    return float(np.mean([cost["mean"] if mode is None else cost["by_mode"][mode] for cost in costs]))


def gates_of(windows: Windows, name: str) -> dict[str, Any]:
    """Everything about one scenario of a suite, JSON-safe; `passed` tells whether its gates hold."""
    scenario, control = load_scenario(name), name in windows.suite.controls
    costs = windows.costs(scenario)
    best = min(costs, key=lambda policy: costs[policy])
    line = operating_line(scenario, windows.run(scenario, best))
    sensitivity = {kind: _sensitivity(windows, scenario, costs[best], kind) for kind in DERIVED}
    honest = windows.run(scenario, HONEST)
    gaming = {trick: _gaming(windows, scenario, trick, honest) for trick in TRICKS if possible(trick, scenario)}
    operating_point = _at_operating_point(line) if name == "operating-point" else None
    passed = all(ratio > 1.0 + LEAST_LOSS for ratios in gaming.values() for ratio in ratios.values())
    passed &= control or all(abs(part["change"]) >= LEAST_CHANGE for part in sensitivity.values())
    passed &= operating_point is None or all(operating_point.values())
    return {
        "control": control,
        "passed": bool(passed),
        "best": best,
        "cost": costs[best],
        "costs": costs,
        "operating_line": line,
        "operating_point": operating_point,
        "sensitivity": sensitivity,
        "gaming": gaming,
    }


def _sensitivity(windows: Windows, scenario: Scenario, cost: float, kind: str) -> dict[str, Any]:
    """How the best heuristic's cost moves when a resource is halved; another one may then be the best."""
    costs = windows.costs(DERIVED[kind](scenario, FACTOR))
    best = min(costs, key=lambda policy: costs[policy])
    return {"best": best, "cost": costs[best], "change": costs[best] / cost - 1.0}


def _gaming(windows: Windows, scenario: Scenario, trick: str, honest: Sequence[Result]) -> dict[str, float]:
    """Cost of a trick / cost of three-part, whose runs are `honest`, in each mode."""
    altered = _altered(scenario, trick)
    runs = [_tricked(windows, altered, TRICKS[trick], window) for window in range(windows.count)]
    return {mode: mean_cost(runs, mode) / mean_cost(honest, mode) for mode in COST_MODES}


def _altered(scenario: Scenario, trick: str) -> Scenario:
    """The scenario with what a trick needs allowed."""
    return load_scenario(scenario.name, ALTERED[trick]) if trick in ALTERED else scenario


def _tricked(windows: Windows, scenario: Scenario, trick: type[Trick], window: int) -> Result:
    seed = windows.suite.seed
    load = pdenv.workload.build(scenario, seed=seed, window=window)
    policy = trick(load_policy(HONEST, windows.params(scenario, HONEST)), load.warmup_s, load.end_s)
    return simulate(scenario, policy, seed=seed, window=window)


# ---- operating line -------------------------------------------------------------------------------------


def operating_line(scenario: Scenario, runs: Sequence[Result]) -> dict[str, Any]:
    """How busy each resource is, means over runs; None where a scenario or a policy has no such resource.

    `bf16_network` is what arrives as BF16 KV / what the narrowest cut between the pools achieves.
    """
    summaries = [run.summary for run in runs]
    tiers = {name for summary in summaries for name in summary["link_utilisation"]}
    cut = [summary["constraints"]["network"] for summary in summaries]
    return {
        "prefill_busy": _mean([summary["prefill_utilisation"] for summary in summaries]),
        "decode_memory": _mean([summary["decode_memory_utilisation"] for summary in summaries]),
        "links": {
            name: _mean([summary["link_utilisation"].get(name) for summary in summaries]) for name in sorted(tiers)
        },
        "bf16_network": _mean([_bf16_network(scenario, run) for run in runs]),
        "line_bytes_per_s": _mean([network["line_bytes_per_s"] for network in cut]),
        "colocated_busy": _mean([summary.get("colocated_utilisation") for summary in summaries]),
        "e2e_s": _mean([summary["e2e_s"]["mean"] for summary in summaries]),
        "window_s": _mean([summary["duration_s"] for summary in summaries]),
        "requests": _mean([summary["requests"] for summary in summaries]),
    }


def _bf16_network(scenario: Scenario, run: Result) -> float | None:
    load = run.workload
    achievable = scenario.min_cut_bytes_per_s()
    if achievable == 0.0:
        return None
    tokens = load.arrivals["prompt_tokens"][load.measured_from : load.measured_to].sum()
    return float(tokens * run.cluster.kv_bytes_per_token[0] / (load.end_s - load.warmup_s) / achievable)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _at_operating_point(line: dict[str, Any]) -> dict[str, bool]:
    """Which parts of the definition are met."""
    return {
        name: line[name] is not None and low * (1 - 1e-9) <= line[name] <= high * (1 + 1e-9)
        for name, (low, high) in OPERATING_POINT.items()
    }


# ---- the command ----------------------------------------------------------------------------------------


def measure(suite: Suite, windows: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(scenario, its gates) as they are measured."""
    at = Windows(suite, windows)
    for name in suite.scenarios:
        yield name, gates_of(at, name)


def _lines(name: str, gates: dict[str, Any]) -> Iterator[str]:
    verdict = "passed" if gates["passed"] else "FAILED"
    kind = ", control" if gates["control"] else ""
    yield f"{name}: {verdict}{kind}; best {gates['best']} {gates['cost']:.4g}"
    for resource, part in gates["sensitivity"].items():
        yield f"  {resource} halved: {part['change']:+.1%} (best {part['best']} {part['cost']:.4g})"
    for trick, ratios in gates["gaming"].items():
        yield f"  {trick}: " + ", ".join(f"{mode} ×{ratio:.3g}" for mode, ratio in ratios.items())
    for part, met in (gates["operating_point"] or {}).items():
        yield f"  {part} {gates['operating_line'][part]:.4g}: {'met' if met else 'NOT met'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a gate fails, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m pdenv.bench.gates", description=__doc__.partition("\n")[0])
    parser.add_argument("suite")
    parser.add_argument("--windows", type=int, default=5, help="windows of the suite, from the first (default 5)")
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args(arguments)
    if options.windows < 1:
        parser.error("--windows must be at least 1")
    try:
        suite = load_suite(options.suite)
    except InputError as error:
        parser.error(str(error))
    found = {}
    for name, gates in measure(suite, options.windows):
        found[name] = gates
        print("\n".join(_lines(name, gates)), flush=True)
    if options.json:
        write_text(options.json, to_json(_document(suite, options.windows, found)))
    return 0 if all(gates["passed"] for gates in found.values()) else 1


def _document(suite: Suite, windows: int, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "suite": suite.version,
        "seed": suite.seed,
        "windows": windows,
        "command": f"python -m pdenv.bench.gates {suite.version} --windows {windows}",
        "pdenv": pdenv.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "digests": suite.digests,
        "scenarios": found,
    }


if __name__ == "__main__":
    sys.exit(main())
