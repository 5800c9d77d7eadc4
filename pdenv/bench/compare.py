"""Policies side by side on the same arrivals: every policy sees the same windows, seeds and lengths."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pdenv.definitions import DEFINITIONS
from pdenv.errors import InputError
from pdenv.policies import check_policy, parameters_of_each, policy_names
from pdenv.run import simulate, whole_number
from pdenv.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_POLICIES = ("three-part", "greedy", "least-work", "round-robin", "colocated")

#: Columns of a comparison, and where a summary holds them.
METRICS: dict[str, tuple[str, ...]] = {
    "cost": ("cost", "mean"),
    "joint_tpot_s": ("joint_tpot_s", "mean"),
    "prefill_part_s": ("joint_tpot_s", "prefill_mean"),
    "transfer_part_s": ("joint_tpot_s", "transfer_mean"),
    "decode_part_s": ("joint_tpot_s", "decode_mean"),
    "tpot_s": ("tpot_s", "mean"),
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "slo_attainment": ("slo_attainment",),
    "goodput_rps": ("goodput_rps",),
    "prefill_utilisation": ("prefill_utilisation",),
    "prefill_demanded_utilisation": ("prefill_demanded_utilisation",),
    "decode_memory_utilisation": ("decode_memory_utilisation",),
    "network_utilisation": ("network_utilisation",),
    "min_cut_utilisation": ("link_utilisation", "min_cut"),
    "compressed_share": ("compressed_share",),
    "requests": ("requests",),
    "completed": ("completed",),
    "gpu_hours": ("gpu_hours",),
    "cost_usd": ("cost_usd",),
}

#: What stands in for a pool's number where there are no pools.
COLOCATED = {
    "prefill_utilisation": "colocated_utilisation",
    "decode_memory_utilisation": "colocated_memory_utilisation",
}

#: Cumulative shares at which a run's TTFT and standard TPOT are kept for plots.
CDF_SHARES = np.linspace(0.0, 1.0, 201)

#: Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    scenario: Scenario
    policy: str
    window: int
    seed: int
    trace: str | None
    rate_scale: float | str
    span: Literal["whole", "window"]
    params: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What a comparison keeps of one run: small, so that workers can send it back."""

    scenario: str
    policy: str
    window: int
    summary: dict[str, Any]
    ttft_cdf_s: list[float]  # at CDF_SHARES; empty without a sample
    tpot_cdf_s: list[float]


@dataclass(frozen=True)
class Standing:
    """One policy in one scenario over all windows."""

    policy: str
    mean: dict[str, float | None]  # a value for each of METRICS
    ci95: dict[str, float | None]  # half width of the 95 % t-interval; None for a single window
    runs: list[Run]


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, in order of scenario, policy and window."""

    scenarios: list[str]
    policies: list[str]
    windows: int
    seed: int
    runs: list[Run]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat row a (scenario, policy, window): the METRICS."""
        head = ("scenario", "policy", "window")
        return [{name: getattr(run, name) for name in head} | _metrics(run.summary) for run in self.runs]

    def to_frame(self) -> pd.DataFrame:
        """`rows` as a pandas DataFrame (pandas is not a dependency of this package)."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def leaderboard(self, scenario: str) -> list[Standing]:
        """Policies by mean cost, cheapest first."""
        standings = []
        for policy in self.policies:
            runs = [run for run in self.runs if (run.scenario, run.policy) == (scenario, policy)]
            intervals = {name: mean_interval([_metrics(run.summary)[name] for run in runs]) for name in METRICS}
            mean = {name: interval[0] for name, interval in intervals.items()}
            standings.append(Standing(policy, mean, {name: i[1] for name, i in intervals.items()}, runs))
        return sorted(standings, key=lambda s: math.inf if s.mean["cost"] is None else s.mean["cost"])

    def warnings(self) -> list[str]:
        """One line a kind of warning, as its first run worded it, with the policies it concerns."""
        first: dict[str, str] = {}
        policies: dict[str, list[str]] = {}
        for run in self.runs:
            for line in run.summary["warnings"]:
                kind = re.sub(r"\d[\d.e+-]*", "#", f"{run.scenario}: {line}")  # windows differ in numbers only
                first.setdefault(kind, f"{run.scenario}: {line}")
                policies.setdefault(kind, []).append(run.policy)
        named = {kind: list(dict.fromkeys(who)) for kind, who in policies.items()}
        return [
            line if len(named[kind]) == len(self.policies) else f"{line} ({', '.join(named[kind])})"
            for kind, line in first.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` writes: leaderboards, every run's summary, and the definitions once."""
        boards = {
            name: [
                {"policy": s.policy} | {m: {"mean": s.mean[m], "ci95": s.ci95[m]} for m in METRICS}
                for s in self.leaderboard(name)
            ]
            for name in self.scenarios
        }
        runs = [{k: v for k, v in run.summary.items() if k != "definitions"} for run in self.runs]
        return {
            "scenarios": self.scenarios,
            "policies": self.policies,
            "windows": self.windows,
            "seed": self.seed,
            "leaderboards": boards,
            "runs": runs,
            "definitions": DEFINITIONS,
        }


def _metrics(summary: dict[str, Any]) -> dict[str, Any]:
    row = {}
    for name, path in METRICS.items():
        value: Any = summary
        for key in path:
            value = value.get(key)
        row[name] = summary.get(COLOCATED.get(name, "")) if value is None else value
    return row


def mean_interval(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and half width of its 95 % t-interval; a None among the values leaves no mean."""
    if not values or any(value is None for value in values):
        return None, None
    n = len(values)
    if n == 1:
        return values[0], None
    degrees = n - 1
    t = _T95[degrees - 1] if degrees <= len(_T95) else 1.95996 + 2.3723 / degrees + 2.823 / degrees**2
    sample = np.array(values, dtype=np.float64)
    return float(sample.mean()), float(t * sample.std(ddof=1) / math.sqrt(n))


def _cdf(values: np.ndarray) -> list[float]:
    sample = values[~np.isnan(values)]
    return np.quantile(sample, CDF_SHARES).tolist() if sample.size else []


def _run(job: Job) -> Run:
    result = simulate(
        job.scenario,
        job.policy,
        seed=job.seed,
        trace=job.trace,
        rate_scale=job.rate_scale,
        window=job.window,
        span=job.span,
        params=job.params,
    )
    measured = slice(result.workload.measured_from, result.workload.measured_to)
    return Run(
        job.scenario.name,
        job.policy,
        job.window,
        result.summary,
        _cdf(result.times.ttft_s[measured]),
        _cdf(result.times.tpot_s[measured]),
    )


def _start_worker() -> None:
    """An interrupted worker ends without a traceback of its own, and one whose parent is gone ends too."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process within a second after its parent, which a kill leaves no time to end its workers."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _run_parallel(jobs: list[Job], workers: int) -> Iterator[tuple[int, Run]]:
    """(index, run) as they finish. Workers are gone when this ends, however it ends."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        futures = {pool.submit(_run, job): i for i, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError(
            "a worker process ended early: out of memory, or a script that calls compare(jobs=…) outside "
            '`if __name__ == "__main__":`; jobs=1 needs no workers',
            where="jobs",
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


def _chosen_policies(policies: Sequence[str] | str) -> list[str]:
    names = policies.split(",") if isinstance(policies, str) else list(policies)
    if not all(isinstance(name, str) for name in names):
        message = "are compared by name; offer yours in the entry-point group pdenv.policies, or give it to simulate"
        raise InputError(message, where="policies")
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if names == ["all"]:
        return list(policy_names())
    if not names:
        raise InputError("no policy named; for example three-part,greedy", where="policies")
    for name in names:
        check_policy(name)
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


def compare(
    scenarios: Sequence[Scenario | str | Path] | Scenario | str | Path = "operating-point",
    policies: Sequence[str] | str = DEFAULT_POLICIES,
    *,
    windows: int = 1,
    jobs: int = 1,
    seed: int = 0,
    trace: str | None = None,
    rate_scale: float | str = 1.0,
    params: dict[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Run every policy on the same windows of every scenario.

    Args:
        policies: names, or one comma-separated string; "all" for all.
        windows: disjoint stretches of the workload, from two on with intervals. A trace is taken whole for one
            window, and cut into windows of the scenario's size for more.
        jobs: processes. The numbers do not depend on it.
        params: parameters of policies; each policy takes those that it has.
        progress: called with (runs done, runs in all).

    Raises:
        InputError: an unknown name, a number out of range, a scenario or trace that cannot run.
    """
    for name, value in (("windows", windows), ("jobs", jobs)):
        if not isinstance(value, Integral) or value < 1:
            raise InputError(f"is {value!r}; it must be a whole number of at least 1", where=name)
    windows, jobs, seed = int(windows), int(jobs), whole_number(seed, "seed")
    loaded, chosen = _loaded(scenarios), _chosen_policies(policies)
    own = parameters_of_each(chosen, params or {})
    span: Literal["whole", "window"] = "whole" if windows == 1 else "window"
    todo = [
        Job(scenario, policy, window, seed, trace, rate_scale, span, own[policy])
        for scenario in loaded
        for policy in chosen
        for window in range(windows)
    ]
    report = progress or (lambda done, total: None)
    report(0, len(todo))
    # The first run stays here: it compiles the engine once, so that workers find it in the cache.
    runs = {0: _run(todo[0])}
    report(1, len(todo))
    rest = todo[1:]
    finished = _run_parallel(rest, jobs) if jobs > 1 and rest else ((i, _run(job)) for i, job in enumerate(rest))
    for i, run in finished:
        runs[i + 1] = run
        report(len(runs), len(todo))
    return Comparison([s.name for s in loaded], chosen, windows, seed, [runs[i] for i in range(len(todo))])
