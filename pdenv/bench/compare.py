"""Policies side by side on the same arrivals: every policy sees the same windows, seeds and lengths."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from pdenv import __version__, workload
from pdenv.bench.plugins import Contender, Given, find, parameters_of
from pdenv.bench.results import (
    CDF_SHARES,
    METRICS,
    Comparison,
    Entry,
    Failure,
    Overall,
    Run,
    Standing,
    load,
    mean_interval,
)
from pdenv.bench.runner import BACKENDS, Job, Store, run_all
from pdenv.bench.tune import stored_params
from pdenv.errors import InputError, nearest
from pdenv.policies import policy_names
from pdenv.run import Series, whole_number
from pdenv.scenario import Scenario, load_scenario

DEFAULT_POLICIES = ("three-part", "greedy", "least-work", "round-robin", "colocated")
DEFAULT_SCENARIO = "operating-point"

#: Whose versions are noted.
_NOTED = ("numpy", "numba", "scipy")


def chosen_policies(policies: Sequence[str] | str) -> list[str]:
    """Names, each once, in the order given; ["all"] for all.

    Raises:
        InputError: none, or something that is no name.
    """
    names = policies.split(",") if isinstance(policies, str) else list(policies)
    if not all(isinstance(name, str) for name in names):
        message = "are compared by name, or module:Class; or offer yours in the entry-point group pdenv.policies"
        raise InputError(message, where="policies")
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        raise InputError("no policy named; for example three-part,greedy", where="policies")
    for name in names:
        if not name.isprintable():
            raise InputError(f"{name!r} is no name of a policy", where="policies")
    return names


def _loaded(scenarios: Sequence[Scenario | str | Path] | Scenario | str | Path) -> list[Scenario]:
    given = [scenarios] if isinstance(scenarios, Scenario | str | Path) else list(scenarios)
    loaded = [s if isinstance(s, Scenario) else load_scenario(s) for s in given]
    if not loaded:
        raise InputError("no scenario named; for example operating-point", where="scenarios")
    names = [s.name for s in loaded]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two scenarios are named '{name}'; give them different names", where="scenarios")
    return loaded


def _suite(name: str, scenarios: Any, **fixed: Any) -> tuple[Any, list[Scenario]]:
    """A suite, and those of its scenarios that were asked for."""
    from pdenv.bench.suite import load_suite

    suite = load_suite(name)
    for option, (value, default) in fixed.items():
        if value != default:
            raise InputError(f"is fixed in suite {suite.version}; leave it out", where=option)
    if scenarios is None:
        return suite, _loaded(suite.scenarios)
    wanted = _loaded(scenarios)
    for scenario in wanted:
        if scenario.name not in suite.scenarios:
            message = f"suite {suite.version} has no '{scenario.name}'{nearest(scenario.name, suite.scenarios)}"
            raise InputError(message, where="scenarios")
        if scenario != load_scenario(scenario.name):
            message = f"'{scenario.name}' is not as suite {suite.version} has it; leave out what changes it"
            raise InputError(message, where="scenarios")
    return suite, wanted


def _all_of(suite: Any, scenario: Scenario) -> tuple[str, ...]:
    """What "all" means."""
    if suite is None:
        return policy_names()
    from pdenv.bench.suite import policies_of

    return tuple(policies_of(suite, scenario.name))


def _versions() -> dict[str, str]:
    found = {"pdenv": __version__, "python": platform.python_version()}
    for name in _NOTED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def compare(
    scenarios: Sequence[Scenario | str | Path] | Scenario | str | Path | None = None,
    policies: Sequence[str] | str | None = None,
    *,
    suite: str | None = None,
    tuned: bool | str | Path = True,
    windows: int | None = None,
    jobs: int = 1,
    backend: str = "local",
    seed: int | None = None,
    trace: str | None = None,
    rate_scale: float | str = 1.0,
    params: dict[str, float] | None = None,
    finished: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    command: str = "",
) -> Comparison:
    """Run every policy on the same windows of every scenario.

    A policy that fails in a window is marked, and the comparison goes on.

    Args:
        scenarios: default: those of the suite, else operating-point.
        policies: names, or one comma-separated string; `docs/benchmark.md` lists what can be named. "all" for all,
            which in a suite are its heuristics for each scenario. Default: all in a suite, else the best known.
        suite: a frozen set of scenarios with its seed and windows, such as "v1".
        tuned: a folder that `pdenv tune` has written: heuristics run with the parameters in it. True: in a suite with
            those that it holds; False: with their defaults.
        windows: disjoint stretches of the workload, from two on with intervals (default: the suite's, else 1). A
            trace is taken whole for one window, and cut into windows of the scenario's size for more.
        jobs: processes. The numbers do not depend on it.
        backend: "local", or "ray" for a Ray cluster.
        seed: of arrivals and policies (default: the suite's, else 0).
        params: parameters of policies; each policy takes those that it has, and "greedy.decode_weight" is for greedy
            alone.
        finished: folder in which each finished run is kept at once, and is looked for first.
        progress: called with (runs done, runs in all, scenario and policy of the latest).
        command: how the comparison can be had again.

    Raises:
        InputError: an unknown name, a number out of range, a scenario or trace that cannot run.
    """
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    if backend not in BACKENDS:
        raise InputError(f"no backend '{backend}'{nearest(str(backend), BACKENDS)}", where="backend")
    frozen = None
    if suite is None:
        loaded = _loaded(DEFAULT_SCENARIO if scenarios is None else scenarios)
    else:
        frozen, loaded = _suite(suite, scenarios, trace=(trace, None), rate_scale=(rate_scale, 1.0))
    windows = _at_least_1((1 if frozen is None else frozen.windows) if windows is None else windows, "windows")
    jobs = _at_least_1(jobs, "jobs")
    seed = whole_number((0 if frozen is None else frozen.seed) if seed is None else seed, "seed")
    wanted = chosen_policies((DEFAULT_POLICIES if frozen is None else "all") if policies is None else policies)

    names = {s.name: _names_for(wanted, frozen, s) for s in loaded}
    contenders = {name: find(name) for name in dict.fromkeys(name for own in names.values() for name in own)}
    own = parameters_of(list(contenders.values()), params or {})
    pairs = [(s, contenders[name]) for s in loaded for name in names[s.name]]
    stored = _stored(tuned, frozen, pairs)
    span: Literal["whole", "window"] = "whole" if windows == 1 else "window"
    for s in loaded:  # the last window of a trace tells whether all of them fit
        if trace is not None or s.workload.kind == "trace":
            workload.build(s, seed=seed, window=windows - 1, trace=trace, rate_scale=rate_scale, span=span)
    for s, who in pairs:
        who.check(Given(s, 0, seed, own[who.name], trace, rate_scale, span))
    todo = [
        Job(who, Given(s, window, seed, stored.get((s.name, who.name), {}) | own[who.name], trace, rate_scale, span))
        for s, who in pairs
        for window in range(windows)
    ]
    store = None if finished is None else Store(Path(finished))
    return Comparison(
        scenarios=[s.name for s in loaded],
        entries=[_entry(contender, own[name], stored) for name, contender in contenders.items()],
        windows=windows,
        seed=seed,
        runs=run_all(todo, jobs, backend, store, progress or (lambda done, total, label: None)),
        suite=None if frozen is None else frozen.version,
        command=command,
        versions=_versions(),
        started=started,
    )


def _at_least_1(value: Any, name: str) -> int:
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"is {value!r}; it must be a whole number of at least 1", where=name)
    return int(value)


def _stored(
    tuned: bool | str | Path, suite: Any, pairs: list[tuple[Scenario, Contender]]
) -> dict[tuple[str, str], dict[str, float]]:
    """(scenario, policy) → the parameters that are held for a heuristic, or for the base rule of a reference."""
    folder = None if isinstance(tuned, bool) else Path(tuned)
    if folder is not None and not folder.is_dir():
        raise InputError("there is no such folder; pdenv tune writes one", where=str(folder))
    held = suite if folder is None and tuned else folder
    if held is None:
        return {}
    stored = {
        (scenario.name, who.name): found
        for scenario, who in pairs
        if who.rule is not None and (found := stored_params(held, scenario, who.rule))
    }
    if folder is not None and not stored:
        message = "holds nothing that was tuned for these policies in these scenarios as they are now"
        raise InputError(message, where=str(folder))
    return stored


def _names_for(wanted: list[str], suite: Any, scenario: Scenario) -> list[str]:
    """The policies of a scenario; "all" may stand among others."""
    names: list[str] = []
    for name in wanted:
        names += _all_of(suite, scenario) if name == "all" else (name,)
    return list(dict.fromkeys(names))


def _entry(contender: Contender, params: dict[str, float], stored: dict[tuple[str, str], dict[str, float]]) -> Entry:
    tuned = {scenario: found for (scenario, name), found in stored.items() if name == contender.name}
    return Entry(contender.name, contender.kind, params, bool(tuned), contender.source, tuned)


__all__ = [
    "CDF_SHARES",
    "DEFAULT_POLICIES",
    "METRICS",
    "Comparison",
    "Entry",
    "Failure",
    "Overall",
    "Run",
    "Series",
    "Standing",
    "compare",
    "load",
    "mean_interval",
]
