"""One run: a scenario, a policy and a seed in, a summary and one row a request out."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pdenv import metrics, workload
from pdenv.advice import warnings_of
from pdenv.errors import InputError
from pdenv.mincut import min_cuts_bytes_per_s
from pdenv.objective import objective_of
from pdenv.policies import Policy, check_object, check_policy, drive, load_policy
from pdenv.references import is_reference, prepare
from pdenv.scenario import Scenario, load_scenario
from pdenv.sim.engine import Simulation
from pdenv.sim.records import ARRIVAL, MODES, RECORD, STATUSES, UNFINISHED, WAITING, Totals
from pdenv.sim.rules import is_rule
from pdenv.topology import PRECISIONS, Cluster
from pdenv.workload.load import offered_prefill_load
from pdenv.workload.window import as_number

if TYPE_CHECKING:
    import pandas as pd

#: Intervals of a Series.
SAMPLES = 60

#: Runs up to a time, or until the measured requests have ended; whether they have.
Advance = Callable[..., bool]

_STRINGS = {"mode": "U9", "status": "U10", "wire_precision": "U5", "store_precision": "U5"}

#: One request as a person reads it: all of ARRIVAL and RECORD, names instead of indices, and what it took.
REQUEST = np.dtype(
    [("request", np.int64), ("measured", np.bool_)]
    + [(name, ARRIVAL[name]) for name in ARRIVAL.names or ()]
    + [(name, _STRINGS.get(name, RECORD[name])) for name in RECORD.names or ()]
    + [(name, np.float64) for name in ("ttft_s", "tpot_s", "joint_tpot_s")]
)


class PolicyError(InputError):
    """A policy that fails, or whose answer is not legal.

    Attributes:
        step: decisions that it had taken.
        time_s: simulated time.
    """

    def __init__(self, message: str, step: int = 0, time_s: float = 0.0) -> None:
        super().__init__(message)
        self.step, self.time_s = step, time_s


@dataclass(frozen=True)
class Series:
    """How busy the cluster was from 0 to the end of the window, a value an interval of time.

    Co-located instances stand in for pools where there are none.
    """

    time_s: list[float]  # end of each interval
    prefill_busy: list[float]  # share of active time
    prefill_demanded: list[float]  # the same with stalls
    decode_memory: list[float]  # share of KV memory in use
    network: list[float]  # share of the achievable rate of the run's busiest tier; empty without a network


@dataclass(frozen=True)
class Result:
    """What a run gives back.

    Attributes:
        summary: nested dict with the keys of `pdenv.metrics.DEFINITIONS`, the same as `--json`.
        scenario: the scenario that ran (the co-located twin under the policy `colocated`).
        arrivals: `(n,)` ARRIVAL, as the workload made them.
        records: `(n,)` RECORD, as the engine left them.
        warnings: one line each.
        series: how busy the cluster was over time, where it was asked for.
    """

    summary: dict[str, Any]
    scenario: Scenario
    cluster: Cluster
    workload: workload.Workload
    records: np.ndarray
    stopped_s: float
    warnings: list[str]
    series: Series | None = None

    @cached_property
    def times(self) -> metrics.RequestTimes:
        """TTFT, TPOT and the parts of joint TPOT of every request."""
        return metrics.request_times(self.cluster, self.workload.arrivals, self.records, self.stopped_s)

    @cached_property
    def requests(self) -> np.ndarray:
        """`(n,)` REQUEST, one row for each request that arrived before the run stopped, in order of arrival.

        Times are absolute seconds, NaN where there is none. Later load that was not waited for is `unfinished`.
        """
        return _request_rows(self)

    def to_frame(self) -> pd.DataFrame:
        """`requests` as a pandas DataFrame (pandas is not a dependency of this package)."""
        import pandas as pd

        return pd.DataFrame(self.requests)


def _request_rows(result: Result) -> np.ndarray:
    load = result.workload
    n = int(np.searchsorted(load.arrivals["arrival_s"], result.stopped_s, side="right"))
    arrivals, records = load.arrivals[:n], result.records[:n]
    rows = np.empty(n, REQUEST)
    rows["request"] = np.arange(n)
    rows["measured"] = (rows["request"] >= load.measured_from) & (rows["request"] < load.measured_to)
    for name in ARRIVAL.names or ():
        rows[name] = arrivals[name]
    for name in RECORD.names or ():
        if name not in _STRINGS:
            rows[name] = records[name]
    rows["mode"] = np.array(MODES)[records["mode"]]
    rows["status"] = np.array(STATUSES)[np.where(records["status"] == WAITING, UNFINISHED, records["status"])]
    for name in ("wire_precision", "store_precision"):
        rows[name] = np.array((*PRECISIONS, ""))[records[name]]  # -1 is the last one: none
    for name in ("ttft_s", "tpot_s", "joint_tpot_s"):
        rows[name] = getattr(result.times, name)[:n]
    return rows


def _scenario_for(scenario: Scenario, policy: str) -> Scenario:
    """The scenario that a policy runs on: `colocated` needs co-located instances, other rules need pools.

    Policies of other packages run on the scenario as it is.
    """
    if policy == "colocated":
        return scenario if scenario.colocated else scenario.colocated_twin()
    if is_rule(policy) and not (scenario.prefill and scenario.decode):
        raise InputError(
            f"policy '{policy}' needs prefill and decode instances, scenario '{scenario.name}' has none; "
            "use --policy colocated",
            where="policy",
        )
    return scenario


def whole_number(value: object, name: str) -> int:
    """A whole number of Python or numpy as an int; InputError for anything else, below 0 or beyond 64 bits."""
    if not isinstance(value, Integral) or not 0 <= int(value) < 2**63:
        raise InputError(f"is {_short(value)}; give a whole number from 0 and below 2**63", where=name)
    return int(value)


def _short(value: object) -> str:
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        return "too large"


def _check(scenario: object, trace: object, params: object) -> None:
    """Refuse arguments of the wrong type."""
    if not isinstance(scenario, Scenario | str | Path):
        message = f"is of type {type(scenario).__name__}; give a Scenario, or the name or path of one"
        raise InputError(message, where="scenario")
    if not isinstance(trace, str | Path | None):
        raise InputError(f"is of type {type(trace).__name__}; give the path of a file", where="trace")
    if not isinstance(params, dict):
        raise InputError(f"is of type {type(params).__name__}; give a dict of names and numbers", where="params")
    for name, value in params.items():
        if not math.isfinite(as_number(value)):
            raise InputError(f"{name} is {_short(value)}; give a finite number", where="params")


def _outside(policy: str | Policy, params: dict[str, float], seed: int) -> Policy | None:
    """The policy in Python that takes the decisions; None where a compiled rule does."""
    if isinstance(policy, str):
        check_policy(policy)
        return None if is_rule(policy) else load_policy(policy, params, seed)
    check_object(policy)
    if params:
        raise InputError("are for policies by name; make the object with them", where="params")
    return policy


class Watch:
    """Totals of a run at the ends of `SAMPLES` equal intervals; looking at them changes nothing."""

    def __init__(self, sim: Simulation, end_s: float) -> None:
        self.left = np.linspace(0.0, end_s, SAMPLES + 1)[1:].tolist()
        self.seen = [sim.totals()]

    def look(self, sim: Simulation) -> None:
        """Keep the totals if an interval has ended since the last look."""
        if not self.left or sim.now < self.left[0]:
            return
        self.seen.append(sim.totals())
        while self.left and self.left[0] <= sim.now:
            del self.left[0]

    def series(self, cluster: Cluster, busiest: str | None) -> Series:
        """What was seen, with the network as one of the tiers of `link_utilisation`."""
        rows = [_shares(cluster, *pair, busiest) for pair in pairwise(self.seen)]
        busy, demanded, memory, network = ([round(row[k], 4) for row in rows] for k in range(4))
        times = [round(totals.time_s, 3) for totals in self.seen[1:]]
        return Series(times, busy, demanded, memory, network if busiest else [])


def _shares(cluster: Cluster, start: Totals, end: Totals, busiest: str | None) -> tuple[float, float, float, float]:
    """(prefill busy, prefill demanded, decode memory, network) between two totals."""
    pools = (start.prefill, end.prefill) if cluster.prefill else (start.colocated, end.colocated)
    stores = (start.decode, end.decode) if cluster.decode else (start.colocated, end.colocated)
    capacity = np.array([i.kv_bytes for i in cluster.decode or cluster.colocated], np.float64)
    network = 0.0
    if busiest:
        carried = end.port_bytes - start.port_bytes
        achievable, _ = min_cuts_bytes_per_s(cluster)
        links = metrics.link_utilisation(cluster, carried, end.time_s - start.time_s, achievable)
        network = links[busiest] or 0.0
    busy, stalled, active = (float((pools[1][k] - pools[0][k]).sum()) for k in ("busy_s", "stalled_s", "active_s"))
    used = float((stores[1]["memory_byte_s"] - stores[0]["memory_byte_s"]).sum())
    room = float((capacity * (stores[1]["active_s"] - stores[0]["active_s"])).sum())
    return busy / max(active, 1e-12), (busy + stalled) / max(active, 1e-12), used / max(room, 1e-12), network


class _Counted:
    """A policy whose decisions are counted."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name, self.asked = policy, policy.name, 0

    def route(self, *seen: Any) -> Any:
        self.asked += 1
        return self.policy.route(*seen)

    def pair(self, *seen: Any) -> Any:
        self.asked += 1
        return self.policy.pair(*seen)

    def scale(self, *seen: Any) -> Any:
        self.asked += 1
        return self.policy.scale(*seen)


def _advance_with(sim: Simulation, policy: Policy) -> Advance:
    """Decisions by a policy in Python."""
    counted = _Counted(policy)

    def advance(until_s: float, measured_only: bool = False) -> bool:
        try:
            return drive(sim, counted, until_s, measured_only)
        except InputError as error:
            raise PolicyError(str(error), max(counted.asked - 1, 0), float(sim.now)) from error

    return advance


def _advance_alone(sim: Simulation, load: workload.Workload) -> Advance:
    """Decisions by the compiled rule of a simulation."""

    def advance(until_s: float, measured_only: bool = False) -> bool:
        if measured_only:
            return sim.run_measured(load.measured_from, load.measured_to, until_s)
        return sim.run(until_s)

    return advance


def _run(sim: Simulation, advance: Advance, load: workload.Workload, watch: Watch | None) -> tuple[Totals, Totals]:
    """Run until the measured requests have ended; what had accumulated at the warm-up and at the window's end."""
    found = {}
    for until_s in sorted({load.warmup_s, load.end_s, *(watch.left if watch else ())}):
        advance(until_s)
        if watch:
            watch.look(sim)
        if until_s in (load.warmup_s, load.end_s):
            found[until_s] = sim.totals()
    sim.measure(load.measured_from, load.measured_to)
    advance(load.end_s + load.drain_max_s, measured_only=True)
    return found[load.warmup_s], found[load.end_s]


def simulate(
    scenario: Scenario | str | Path,
    policy: str | Policy = "three-part",
    seed: int = 0,
    trace: str | Path | None = None,
    rate_scale: float | str = 1.0,
    window: int = 0,
    params: dict[str, float] | None = None,
    span: Literal["whole", "window"] = "whole",
    split: str = "test",
    series: bool = False,
) -> Result:
    """Run one policy on one window of a scenario's workload.

    Args:
        scenario: a Scenario, or the name or path of one.
        policy: a name of `pdenv.policies.policy_names()`, a reference of `pdenv.references`, or a policy in Python (an
            instance, which keeps its state from run to run). `colocated` runs on the scenario's co-located twin where
            the scenario has no co-located instances, under the same arrivals.
        seed: of the workload and of the policy; the same seed gives the same numbers.
        trace: path of a request trace that replaces the scenario's workload.
        rate_scale: arrival rates are multiplied by it; "auto" aims at the scenario's target load.
        window: which of the disjoint stretches of the workload, from 0.
        params: parameters of a policy given by name.
        span: a trace as a whole (its only window), or cut into windows of the scenario's size.
        split: the windows for "train", "validation" or "test".
        series: keep how busy the cluster was over time.

    Raises:
        InputError: an unknown name, an argument of the wrong type, a scenario that cannot run, a bad trace; a
            `PolicyError` if a policy in Python fails.
    """
    params = {} if params is None else params
    _check(scenario, trace, params)
    seed, window = whole_number(seed, "seed"), whole_number(window, "window")
    if not isinstance(scenario, Scenario):
        scenario = load_scenario(scenario)
    reference = isinstance(policy, str) and is_reference(policy)
    outside = None if reference else _outside(policy, params, seed)
    name = policy if isinstance(policy, str) else policy.name
    ran = _scenario_for(scenario, name)
    load = workload.build(
        scenario, seed=seed, window=window, split=split, trace=trace, rate_scale=rate_scale, span=span
    )
    cluster = ran.cluster()

    if reference:
        sim, advance = prepare(name, ran, cluster, load, seed, params, trace, rate_scale)
    else:
        sim = Simulation(
            cluster,
            load.arrivals,
            load.blocks,
            rule=name if outside is None else None,
            parameters=params,
            seed=seed,
            objective=objective_of(ran),
        )
        advance = _advance_alone(sim, load) if outside is None else _advance_with(sim, outside)
    watch = Watch(sim, load.end_s) if series else None
    start, end = _run(sim, advance, load, watch)
    summary = metrics.summarise(ran, cluster, load, sim.records, start, end, until_s=sim.now)
    head = {"policy": name, "params": dict(params), "seed": seed, "window": window}
    return result_of(scenario, ran, cluster, load, sim, summary, head, watch)


def result_of(
    scenario: Scenario,
    ran: Scenario,
    cluster: Cluster,
    load: workload.Workload,
    sim: Simulation,
    summary: dict[str, Any],
    head: dict[str, Any],
    watch: Watch | None,
) -> Result:
    """The result of a run that has ended.

    Args:
        scenario: as it was asked for.
        ran: as it ran.
        summary: of `metrics.summarise`.
        head: policy, params, seed and window.
    """
    measured_span = load.arrivals[: load.measured_to]
    offered = offered_prefill_load(scenario.cluster(), measured_span, load.end_s) if scenario.prefill else None
    warnings = warnings_of(scenario, ran, load, sim.records, summary, offered)
    run = {
        "scenario": scenario.name,
        **head,
        "workload": load.source,
        "rate_scale": load.rate_scale,
        "offered_prefill_load": offered,
        "sla": {"ttft_s": scenario.sla.ttft_s, "tpot_s": scenario.sla.tpot_s},
        "warnings": warnings,
    }
    series = watch.series(cluster, summary["busiest_tier"]) if watch else None
    return Result(metrics.json_safe(run) | summary, ran, cluster, load, sim.records, float(sim.now), warnings, series)
