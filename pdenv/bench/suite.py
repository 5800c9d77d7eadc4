"""Suites: the scenarios, windows and seed that a published comparison has to use, by version.

A suite names presets. Their digests freeze them: a preset that changes after the version was frozen is refused.
`python -m pdenv.bench.suite freeze v1` writes the digests of the presets as they are.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from pdenv.atomic import write_text
from pdenv.errors import InputError, nearest
from pdenv.scenario import Scenario, load_scenario
from pdenv.sim import rules

SUITES = Path(__file__).parent / "suites"

#: Routing rules that are compared with every scaler where a scenario scales.
SCALED_ROUTES = ("least-work", "kv-aware", "greedy", "size-interval", "three-part")


@dataclass(frozen=True)
class Suite:
    """A version of the benchmark.

    Attributes:
        version: its name, such as "v1".
        scenarios: presets, in the order in which they are reported.
        controls: those of them in which nothing is to be won.
        windows: of the test split, from 0.
        seed: of the workload and of the policies.
        digests: SHA-256 of each scenario, as `digest_of` gives it.
    """

    version: str
    scenarios: tuple[str, ...]
    controls: tuple[str, ...]
    windows: int
    seed: int
    digests: dict[str, str]


def suite_names() -> tuple[str, ...]:
    """Versions that there are, sorted."""
    return tuple(sorted(path.stem for path in SUITES.glob("*.yaml")))


def load_suite(name: str) -> Suite:
    """The suite of this name.

    Raises:
        InputError: there is none, or a preset is not what it was when the suite was frozen.
    """
    suite = _read(name)
    for scenario in suite.scenarios:
        if digest_of(load_scenario(scenario)) != suite.digests.get(scenario):
            message = f"preset '{scenario}' is not the one that suite {name} was frozen with"
            raise InputError(f"{message}; restore it, or freeze a new version", where=f"suite {name}")
    return suite


def _read(name: str) -> Suite:
    if name not in suite_names():
        raise InputError(f"no suite '{name}'{nearest(name, suite_names())}", where="suite")
    tree = yaml.safe_load((SUITES / f"{name}.yaml").read_text(encoding="utf-8"))
    return Suite(
        version=name,
        scenarios=tuple(tree["scenarios"]),
        controls=tuple(tree["controls"]),
        windows=tree["windows"],
        seed=tree["seed"],
        digests=dict(tree.get("digests") or {}),
    )


def digest_of(scenario: Scenario) -> str:
    """SHA-256 of a scenario as YAML with all its defaults, in hexadecimal."""
    return hashlib.sha256(scenario.to_yaml().encode()).hexdigest()


def policies_of(suite: Suite, scenario_name: str) -> tuple[str, ...]:
    """Compiled schedulers that "all" means in a scenario: those that can differ from the others in it.

    `conditional` needs co-located instances beside the pools, `admission` that requests may be rejected. Where pools
    scale, the rules of `SCALED_ROUTES` come with every scaler as well.

    Raises:
        InputError: the suite has no such scenario.
    """
    if scenario_name not in suite.scenarios:
        message = f"has no scenario '{scenario_name}'{nearest(scenario_name, suite.scenarios)}"
        raise InputError(message, where=f"suite {suite.version}")
    scenario = load_scenario(scenario_name)
    idle = set()
    if not scenario.colocated:
        idle.add("conditional")
    if not scenario.control.allow_reject:
        idle.add("admission")
    plain = tuple(name for name in rules.RULES if name not in idle)
    return plain + (_compositions() if scenario.scaling.interval_s > 0.0 else ())


def _compositions() -> tuple[str, ...]:
    """ROUTE+SCALER for each of `SCALED_ROUTES`, without those that a plain name stands for."""
    return tuple(
        f"{route}+{scaler.name}"
        for route in SCALED_ROUTES
        for scaler in rules.SCALERS.values()
        if scaler.name != "fixed" and scaler.number != rules.RULES[route].scaler
    )


def freeze(name: str) -> Path:
    """Write the digests of a suite's presets as they are now; the file that was written."""
    suite = _read(name)
    path = SUITES / f"{name}.yaml"
    head = path.read_text(encoding="utf-8").partition("digests:")[0]
    digests = {scenario: digest_of(load_scenario(scenario)) for scenario in suite.scenarios}
    write_text(path, head + yaml.safe_dump({"digests": digests}, sort_keys=False))
    return path


def main(arguments: list[str]) -> int:
    """`freeze NAME`; the exit code."""
    if len(arguments) != 2 or arguments[0] != "freeze":
        print(f"usage: python -m pdenv.bench.suite freeze {'|'.join(suite_names())}", file=sys.stderr)
        return 2
    try:
        print(f"wrote {freeze(arguments[1])}")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
