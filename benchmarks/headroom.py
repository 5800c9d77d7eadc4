"""How much a scheduler can still win in each scenario of a suite: `python benchmarks/headroom.py [--jobs 2]`.

Runs `three-part`, the best heuristic of `docs/results/suite-v1.json`, and both references rolling forward under that
heuristic, all with their tuned parameters, on the suite's windows. Finished runs are kept in `runs/headroom-v1`, so
that a run that was stopped goes on where it stood. Writes `docs/results/headroom-v1.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from suite_page import thin

from pdenv import atomic, references, workload
from pdenv.bench.compare import Comparison, compare
from pdenv.bench.suite import load_suite
from pdenv.metrics import to_json
from pdenv.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
WINDOWS = 10  # half of the suite's: a window of lookahead takes most of a minute
HONEST = "three-part"
NO_BASE = "colocated"  # runs on another cluster, so references cannot roll it forward


def best_heuristics(version: str) -> dict[str, str]:
    """Scenario → the cheapest heuristic that runs on the scenario's own cluster."""
    boards = json.loads((RESULTS / f"suite-{version}.json").read_text(encoding="utf-8"))["leaderboards"]
    return {
        name: next(row["policy"] for row in board if row["kind"] == "heuristic" and row["policy"] != NO_BASE)
        for name, board in boards.items()
    }


def measured(name: str, best: str, version: str, windows: int, jobs: int) -> Comparison:
    """The comparison of one scenario."""
    policies = dict.fromkeys((HONEST, best, f"lookahead({best})", f"clairvoyant({best})"))

    def progress(done: int, total: int, label: str) -> None:
        print(f"\r{name}: {done}/{total} {label:40}", end="", file=sys.stderr, flush=True)

    found = compare(
        [name], list(policies), suite=version, windows=windows, jobs=jobs,
        finished=ROOT / "runs" / f"headroom-{version}", progress=progress,
    )  # fmt: skip
    print(file=sys.stderr)
    return found


def merged(parts: list[Comparison], command: str) -> Comparison:
    """Comparisons of different scenarios as one."""
    first = parts[0]
    entries = {entry.name: entry for part in parts for entry in part.entries}
    return Comparison(
        scenarios=[name for part in parts for name in part.scenarios],
        entries=list(entries.values()),
        windows=first.windows,
        seed=first.seed,
        runs=[run for part in parts for run in part.runs],
        suite=first.suite,
        command=command,
        versions=first.versions,
        started=first.started,
    )


def decision_ms() -> float:
    """Processor time of a decision of lookahead on 4 + 4 instances under heavy-tailed prompts, ms."""
    changes = {
        "decode.0.count": 4,
        "workload.lengths": {"kind": "quantiles", "table": "mooncake-conversation"},
        "workload.rate_per_s": 4.4,
        "sla.ttft_s": 10,
        "window.requests": 300,
    }
    scenario = load_scenario("homogeneous", changes)
    load_ = workload.build(scenario)
    _sim, advance = references.prepare("lookahead", scenario, scenario.cluster(), load_)
    advance(load_.warmup_s)
    began, before = time.process_time(), advance.__self__.decisions  # type: ignore[attr-defined]
    advance(load_.end_s)
    return 1e3 * (time.process_time() - began) / (advance.__self__.decisions - before)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="v1")
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--scenarios", help="some of the suite's, comma-separated (default: all)")
    given = parser.parse_args()
    suite = load_suite(given.suite)
    best = best_heuristics(given.suite)
    chosen = given.scenarios.split(",") if given.scenarios else suite.scenarios
    parts = [measured(name, best[name], given.suite, given.windows, given.jobs) for name in chosen]
    command = f"python benchmarks/headroom.py --windows {given.windows}"
    found = thin(merged(parts, command)) | {"decision_ms": round(decision_ms(), 2)}
    atomic.write_text(RESULTS / f"headroom-{given.suite}.json", to_json(found))
    print(json.dumps(best, indent=1))


if __name__ == "__main__":
    main()
