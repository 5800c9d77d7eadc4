"""What a comparison gives back: runs, what each policy is, leaderboards; to a file and from it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pdenv import atomic
from pdenv.bench import statistics
from pdenv.bench.statistics import Interval
from pdenv.definitions import DEFINITIONS
from pdenv.errors import InputError
from pdenv.metrics import json_safe
from pdenv.run import Series

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1

#: Costs across scenarios are relative to this policy's.
BASE = "three-part"


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

#: What leaderboards show beside METRICS.
_SHOWN = (
    "workload", "rate_scale", "params", "warnings", "busiest_tier", "constraints", "sla", "network_utilisation",
    *COLOCATED.values(),
)  # fmt: skip

#: Cumulative shares at which a run's TTFT and standard TPOT are kept for plots.
CDF_SHARES = np.linspace(0.0, 1.0, 201)


@dataclass(frozen=True)
class Failure:
    """Where a policy failed, or gave an answer that is not legal."""

    policy: str
    window: int
    step: int  # decisions that it had taken
    time_s: float  # simulated
    message: str

    def __str__(self) -> str:
        return f"policy '{self.policy}', window {self.window}, step {self.step}: {self.message}"


@dataclass(frozen=True)
class Run:
    """What a comparison keeps of one run: small, so that workers can send it back."""

    scenario: str
    policy: str
    window: int
    summary: dict[str, Any]  # empty where the policy failed
    ttft_cdf_s: list[float]  # at CDF_SHARES; empty without a sample
    tpot_cdf_s: list[float]
    series: Series | None = None
    failure: Failure | None = None
    seconds: float = field(default=0.0, compare=False)  # of processor time

    @property
    def metrics(self) -> dict[str, Any]:
        """The METRICS of this run; None for what it does not have."""
        return metrics_of(self.summary)

    def to_dict(self) -> dict[str, Any]:
        """What `run_from` reads; JSON-safe, as the summary is."""
        parts = {name: None if part is None else asdict(part) for name, part in self._parts().items()}
        return {**vars(self), **parts}

    def _parts(self) -> dict[str, Series | Failure | None]:
        return {"series": self.series, "failure": self.failure}


@dataclass(frozen=True)
class Entry:
    """What a policy of a comparison is."""

    name: str
    kind: str  # "heuristic", "reference", "plug-in" or "agent"
    params: dict[str, float] = field(default_factory=dict)  # given for this comparison
    tuned: bool = False  # runs with parameters of `pdenv tune` in some scenario
    source: str = ""  # module:Class, a file, or the entry point; empty for what is built in
    tuned_params: dict[str, dict[str, float]] = field(default_factory=dict)  # scenario → what `pdenv tune` found


@dataclass(frozen=True)
class Standing:
    """One policy in one scenario over all windows.

    Attributes:
        mean, low, high: a value for each of METRICS: mean over windows and its 95 % bootstrap interval. No mean where
            a window has no value or the policy failed in one; no interval for a single window.
        relative: mean cost over that of the best heuristic; windows are paired.
        p_value: of no difference in cost to the best heuristic, corrected for the number of policies (Holm). None for
            the best heuristic itself, and where the windows are too few to tell.
        tied: not told apart from the best heuristic.
        failed: windows in which the policy failed.
    """

    policy: str
    kind: str
    mean: dict[str, float | None]
    low: dict[str, float | None]
    high: dict[str, float | None]
    relative: Interval | None
    p_value: float | None
    tied: bool
    failed: int
    runs: list[Run]


@dataclass(frozen=True)
class Overall:
    """One policy across scenarios: interquartile mean of cost relative to three-part, with its 95 % interval."""

    policy: str
    kind: str
    iqm: float
    low: float | None
    high: float | None
    scenarios: int  # in which it ran without a failure
    worst: float  # relative cost in the scenario where it is highest
    worst_in: str  # that scenario


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, in order of scenario, policy and window.

    Two comparisons are equal when their numbers are, however and whenever they were run.
    """

    scenarios: list[str]
    entries: list[Entry]
    windows: int
    seed: int
    runs: list[Run]
    suite: str | None = None
    command: str = field(default="", compare=False)
    versions: dict[str, str] = field(default_factory=dict, compare=False)
    started: str = field(default="", compare=False)  # ISO date and time
    _boards: dict[str, list[Standing]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def policies(self) -> list[str]:
        """Names, in the order given."""
        return [entry.name for entry in self.entries]

    @property
    def failures(self) -> list[tuple[str, Failure]]:
        """(scenario, failure) of every run in which a policy failed."""
        return [(run.scenario, run.failure) for run in self.runs if run.failure is not None]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat row a (scenario, policy, window): the METRICS, and why it failed if it did."""
        head = ("scenario", "policy", "window")
        return [
            {name: getattr(run, name) for name in head}
            | run.metrics
            | {"failure": None if run.failure is None else str(run.failure)}
            for run in self.runs
        ]

    def to_frame(self) -> pd.DataFrame:
        """`rows` as a pandas DataFrame (pandas is not a dependency of this package)."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def leaderboard(self, scenario: str) -> list[Standing]:
        """Policies of a scenario by mean cost, cheapest first; those that failed are last."""
        if scenario not in self._boards:
            self._boards[scenario] = self._ranked(scenario)
        return self._boards[scenario]

    def _ranked(self, scenario: str) -> list[Standing]:
        runs: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.scenario == scenario:
                runs.setdefault(run.policy, []).append(run)
        entries = [entry for entry in self.entries if entry.name in runs]
        costs = {name: _costs(own) for name, own in runs.items()}
        compared = _compared(_best(entries, costs), costs)
        standings = [
            Standing(e.name, e.kind, *_averages(runs[e.name]), *compared[e.name], _failed(runs[e.name]), runs[e.name])
            for e in entries
        ]
        return sorted(standings, key=lambda s: math.inf if s.mean["cost"] is None else s.mean["cost"])

    def best_heuristic(self, scenario: str) -> str | None:
        """The cheapest heuristic, with which the others are compared; the cheapest policy where there is none."""
        board = [s for s in self.leaderboard(scenario) if s.mean["cost"] is not None]
        return next((s.policy for s in [*(s for s in board if s.kind == "heuristic"), *board]), None)

    def overall(self) -> list[Overall]:
        """Policies across scenarios, cheapest first, those that ran in fewer of them last.

        Empty for one scenario, or without three-part.
        """
        if len(self.scenarios) < 2:
            return []
        costs = {
            (name, s.policy): found
            for name in self.scenarios
            for s in self.leaderboard(name)
            if (found := _costs(s.runs)) is not None
        }
        rows = []
        for entry in self.entries:
            shared = [s for s in self.scenarios if (s, entry.name) in costs and (s, BASE) in costs]
            if shared:
                own, base = ([costs[s, name] for s in shared] for name in (entry.name, BASE))
                iqm, low, high = statistics.relative_over_scenarios(own, base)
                ratios = [float(mine.mean() / other.mean()) for mine, other in zip(own, base, strict=True)]
                worst = int(np.argmax(ratios))
                rows.append(Overall(entry.name, entry.kind, iqm, low, high, len(shared), ratios[worst], shared[worst]))
        return sorted(rows, key=lambda row: (-row.scenarios, row.iqm))

    def warnings(self) -> list[str]:
        """One line a kind of warning, as its first run worded it, with the policies it concerns."""
        first: dict[str, str] = {}
        policies: dict[str, list[str]] = {}
        present: dict[str, set[str]] = {}
        for run in self.runs:
            present.setdefault(run.scenario, set()).add(run.policy)
            for line in run.summary.get("warnings", ()):
                kind = re.sub(r"\d[\d.e+-]*", "#", f"{run.scenario}: {line}")  # windows differ in numbers only
                first.setdefault(kind, f"{run.scenario}: {line}")
                policies.setdefault(kind, []).append(run.policy)
        named = {kind: list(dict.fromkeys(who)) for kind, who in policies.items()}
        everyone = {kind: len(present[line.partition(": ")[0]]) for kind, line in first.items()}
        return [
            line if len(named[kind]) == everyone[kind] else f"{line} ({', '.join(named[kind])})"
            for kind, line in first.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` writes: leaderboards, every run, and the definitions once; `from_dict` reads it."""
        head = {
            "format": FORMAT,
            "scenarios": self.scenarios,
            "policies": self.policies,
            "windows": self.windows,
            "seed": self.seed,
            "suite": self.suite,
            "command": self.command,
            "versions": self.versions,
            "started": self.started,
            "entries": [asdict(entry) for entry in self.entries],
            "leaderboards": {name: [_row(s) for s in self.leaderboard(name)] for name in self.scenarios},
            "overall": [asdict(row) for row in self.overall()],
            "definitions": DEFINITIONS,
        }
        return {**json_safe(head), "runs": [run.to_dict() for run in self.runs]}

    def brief(self) -> Comparison:
        """The same leaderboards without curves and without numbers that no leaderboard shows: small enough to keep."""
        runs = [
            replace(run, summary=_brief(run.summary), ttft_cdf_s=[], tpot_cdf_s=[], series=None) for run in self.runs
        ]
        return replace(self, runs=runs)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Comparison:
        """The comparison that `to_dict` described.

        Raises:
            InputError: something is missing or of another format.
        """
        try:
            if data["format"] != FORMAT:
                raise InputError(f"is of format {data['format']!r}; this version reads format {FORMAT}")
            if data["runs"] is None:
                raise InputError("holds leaderboards without their runs; read it as JSON")
            found = cls(
                scenarios=data["scenarios"],
                entries=[Entry(**entry) for entry in data["entries"]],
                windows=data["windows"],
                seed=data["seed"],
                runs=[run_from(run) for run in data["runs"]],
                suite=data["suite"],
                command=data["command"],
                versions=data["versions"],
                started=data["started"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"is no result of a comparison: {type(error).__name__}: {error}") from None
        _check_whole(found)
        return found


def _check_whole(comparison: Comparison) -> None:
    """Raise InputError unless there is one run for each scenario, policy and window that has any."""
    c = comparison
    numbers = [c.windows, c.seed, *(run.window for run in c.runs)]
    names = [*c.scenarios, *c.policies] if isinstance(c.scenarios, list) else [None]
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(name, str) for name in names):
        raise InputError("is no result of a comparison: scenarios and policies are names, windows whole numbers")
    known = {(scenario, policy) for scenario in c.scenarios for policy in c.policies}
    found: dict[tuple[str, str], list[int]] = {}
    for run in c.runs:
        if (run.scenario, run.policy) not in known or not isinstance(run.summary, dict):
            raise InputError(f"is no result of a comparison: a run of '{run.policy}' in '{run.scenario}' is in none")
        found.setdefault((run.scenario, run.policy), []).append(run.window)
    for (scenario, policy), windows in found.items():
        if sorted(windows) != list(range(c.windows)):
            raise InputError(f"is not whole: the runs of '{policy}' in '{scenario}' are not {c.windows} windows")


def run_from(data: dict[str, Any]) -> Run:
    """The run that `Run.to_dict` described; KeyError or TypeError if it is none."""
    series, failure = data["series"], data["failure"]
    parts = {
        "series": None if series is None else Series(**series),
        "failure": None if failure is None else Failure(**failure),
    }
    return Run(**{**data, **parts})


def load(path: str | Path) -> Comparison:
    """The comparison in a `results.json`.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)) from None
    except ValueError as error:
        raise InputError(f"is no JSON: {error}", where=str(path)) from None
    try:
        return Comparison.from_dict(data)
    except InputError as error:
        raise InputError(str(error), where=str(path)) from None


def _brief(summary: dict[str, Any]) -> dict[str, Any]:
    """What leaderboards show of a summary."""
    kept = {name: summary[name] for name in _SHOWN if name in summary}
    for path in METRICS.values():
        value: Any = summary
        for key in path:
            value = None if value is None else value.get(key)
        if len(path) > 1 and summary:
            kept.setdefault(path[0], {})[path[1]] = value
        elif summary:
            kept[path[0]] = value
    return kept


def metrics_of(summary: dict[str, Any]) -> dict[str, Any]:
    """The METRICS that a summary holds; None for what it does not have."""
    row = {}
    for name, path in METRICS.items():
        value: Any = summary
        for key in path:
            value = None if value is None else value.get(key)
        row[name] = summary.get(COLOCATED.get(name, "")) if value is None else value
    return row


def mean_interval(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and half width of its 95 % bootstrap interval; a None among the values leaves no mean."""
    middle, low, high = _intervals([values])[0]
    return middle, None if low is None or high is None else (high - low) / 2


def _intervals(rows: Sequence[Sequence[float | None]]) -> list[tuple[float | None, float | None, float | None]]:
    """(mean, low, high) of each row over windows; a None in a row leaves it without a mean."""
    whole = [i for i, row in enumerate(rows) if row and not any(value is None for value in row)]
    found: list[tuple[float | None, float | None, float | None]] = [(None, None, None)] * len(rows)
    if whole and len(rows[whole[0]]) == 1:
        for i in whole:
            found[i] = (rows[i][0], None, None)  # as it is, a whole number too
    elif whole:
        intervals = statistics.mean_intervals(np.array([rows[i] for i in whole], np.float64))
        for i, interval in zip(whole, intervals, strict=True):
            found[i] = (interval.mid, interval.low, interval.high)
    return found


def _averages(runs: list[Run]) -> tuple[dict[str, float | None], dict[str, float | None], dict[str, float | None]]:
    """Mean, low and high of each of METRICS."""
    rows = [run.metrics for run in runs]
    intervals = dict(zip(METRICS, _intervals([[row[name] for row in rows] for name in METRICS]), strict=True))
    mean, low, high = ({name: ends[k] for name, ends in intervals.items()} for k in range(3))
    return mean, low, high


def _costs(runs: list[Run]) -> np.ndarray | None:
    """`(windows,)` costs; None where a window has none."""
    costs = [run.metrics["cost"] for run in runs]
    return None if not costs or any(cost is None for cost in costs) else np.array(costs, np.float64)


def _failed(runs: list[Run]) -> int:
    return sum(run.failure is not None for run in runs)


def _best(entries: list[Entry], costs: dict[str, np.ndarray | None]) -> str | None:
    known = [entry for entry in entries if costs[entry.name] is not None]
    among = [entry for entry in known if entry.kind == "heuristic"] or known
    means = {entry.name: float(np.mean(own)) for entry in among if (own := costs[entry.name]) is not None}
    return min(means, key=lambda name: means[name], default=None)


def _compared(
    best: str | None, costs: dict[str, np.ndarray | None]
) -> dict[str, tuple[Interval | None, float | None, bool]]:
    """(relative cost, corrected p value, tied) of each policy to the best heuristic."""
    found: dict[str, tuple[Interval | None, float | None, bool]] = dict.fromkeys(costs, (None, None, False))
    base = costs[best] if best is not None else None
    if best is None or base is None:
        return found
    known = {name: own for name, own in costs.items() if own is not None}
    p_values = {}
    if statistics.can_tell(len(base), len(known)):
        p_values = {name: statistics.p_value(own, base) for name, own in known.items() if name != best}
    corrected = dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))
    for name, own in known.items():
        p = corrected.get(name)
        relative = statistics.ratio(own, base) if base.mean() > 0 else None
        found[name] = (relative, p, p is not None and p >= statistics.SIGNIFICANCE)
    return found


def _row(s: Standing) -> dict[str, Any]:
    """A standing as `to_dict` has it."""
    values = {name: {"mean": s.mean[name], "low": s.low[name], "high": s.high[name]} for name in METRICS}
    relative = None if s.relative is None else s.relative._asdict()
    head = {"policy": s.policy, "kind": s.kind, "failed": s.failed}
    return {**head, "relative": relative, "p_value": s.p_value, "tied": s.tied, **values}


def to_csv(comparison: Comparison) -> str:
    """`rows` as CSV; an empty field where there is no value."""
    text = io.StringIO()
    rows = comparison.rows
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(comparison: Comparison) -> str:
    """`to_dict` as JSON, a line a run."""
    data = comparison.to_dict()
    runs = ",\n".join(json.dumps(run, ensure_ascii=False, allow_nan=False) for run in data.pop("runs"))
    head = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    return f'{head},\n "runs": [\n{runs}\n]\n}}\n'


def write_results(comparison: Comparison, folder: str | Path) -> None:
    """Write `results.csv` and `results.json` into an existing folder, each in one step.

    Raises:
        InputError: the folder cannot be written.
    """
    atomic.write_text(Path(folder) / "results.csv", to_csv(comparison))
    atomic.write_text(Path(folder) / "results.json", to_json(comparison))
