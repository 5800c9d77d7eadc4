"""One run: a scenario, a policy and a seed in, a summary and one row a request out."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pdenv import metrics, workload
from pdenv.advice import warnings_of
from pdenv.errors import InputError
from pdenv.objective import objective_of
from pdenv.policies import Policy, check_object, check_policy, drive, load_policy
from pdenv.scenario import Scenario, load_scenario
from pdenv.sim.engine import Simulation
from pdenv.sim.records import ARRIVAL, MODES, RECORD, STATUSES, UNFINISHED, WAITING, Totals
from pdenv.sim.rules import RULES
from pdenv.topology import PRECISIONS, Cluster
from pdenv.workload.load import offered_prefill_load
from pdenv.workload.window import as_number

if TYPE_CHECKING:
    import pandas as pd

_STRINGS = {"mode": "U9", "status": "U10", "wire_precision": "U5", "store_precision": "U5"}

#: One request as a person reads it: all of ARRIVAL and RECORD, names instead of indices, and what it took.
REQUEST = np.dtype(
    [("request", np.int64), ("measured", np.bool_)]
    + [(name, ARRIVAL[name]) for name in ARRIVAL.names or ()]
    + [(name, _STRINGS.get(name, RECORD[name])) for name in RECORD.names or ()]
    + [(name, np.float64) for name in ("ttft_s", "tpot_s", "joint_tpot_s")]
)


@dataclass(frozen=True)
class Result:
    """What a run gives back.

    Attributes:
        summary: nested dict with the keys of `pdenv.metrics.DEFINITIONS`, the same as `--json`.
        scenario: the scenario that ran (the co-located twin under the policy `colocated`).
        arrivals: `(n,)` ARRIVAL, as the workload made them.
        records: `(n,)` RECORD, as the engine left them.
        warnings: one line each.
    """

    summary: dict[str, Any]
    scenario: Scenario
    cluster: Cluster
    workload: workload.Workload
    records: np.ndarray
    stopped_s: float
    warnings: list[str]

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
    if policy in RULES and not (scenario.prefill and scenario.decode):
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
        return None if policy in RULES else load_policy(policy, params, seed)
    check_object(policy)
    if params:
        raise InputError("are for policies by name; make the object with them", where="params")
    return policy


def _run(sim: Simulation, policy: Policy | None, load: workload.Workload) -> tuple[Totals, Totals]:
    """Run until the measured requests have ended; what had accumulated at the warm-up and at the window's end."""
    advance = sim.run if policy is None else partial(drive, sim, policy)
    advance(load.warmup_s)
    start = sim.totals()
    advance(load.end_s)
    end = sim.totals()
    deadline_s = load.end_s + load.drain_max_s
    if policy is None:
        sim.run_measured(load.measured_from, load.measured_to, deadline_s)
    else:
        sim.measure(load.measured_from, load.measured_to)
        drive(sim, policy, deadline_s, measured_only=True)
    return start, end


def simulate(
    scenario: Scenario | str | Path,
    policy: str | Policy = "three-part",
    seed: int = 0,
    trace: str | Path | None = None,
    rate_scale: float | str = 1.0,
    window: int = 0,
    params: dict[str, float] | None = None,
    span: Literal["whole", "window"] = "whole",
) -> Result:
    """Run one policy on one window of a scenario's workload.

    Args:
        scenario: a Scenario, or the name or path of one.
        policy: a name of `pdenv.policies.policy_names()`, or a policy in Python (an instance, which keeps its
            state from run to run). `colocated` runs on the scenario's co-located twin where the scenario has no
            co-located instances, under the same arrivals.
        seed: of the workload and of the policy; the same seed gives the same numbers.
        trace: path of a request trace that replaces the scenario's workload.
        rate_scale: arrival rates are multiplied by it; "auto" aims at the scenario's target load.
        window: which of the disjoint stretches of the workload, from 0.
        params: parameters of a policy given by name.
        span: a trace as a whole (its only window), or cut into windows of the scenario's size.

    Raises:
        InputError: an unknown name, an argument of the wrong type, a scenario that cannot run, a bad trace, a
            policy in Python that fails.
    """
    params = {} if params is None else params
    _check(scenario, trace, params)
    seed, window = whole_number(seed, "seed"), whole_number(window, "window")
    if not isinstance(scenario, Scenario):
        scenario = load_scenario(scenario)
    outside = _outside(policy, params, seed)
    name = policy if isinstance(policy, str) else policy.name
    ran = _scenario_for(scenario, name)
    load = workload.build(scenario, seed=seed, window=window, trace=trace, rate_scale=rate_scale, span=span)
    cluster = ran.cluster()

    sim = Simulation(
        cluster,
        load.arrivals,
        load.blocks,
        rule=name if outside is None else None,
        parameters=params,
        seed=seed,
        objective=objective_of(ran),
    )
    start, end = _run(sim, outside, load)

    records = sim.records
    summary = metrics.summarise(ran, cluster, load, records, start, end, until_s=sim.now)
    measured_span = load.arrivals[: load.measured_to]
    offered = offered_prefill_load(scenario.cluster(), measured_span, load.end_s) if scenario.prefill else None
    warnings = warnings_of(scenario, ran, load, records, summary, offered)
    run = {
        "scenario": scenario.name,
        "policy": name,
        "params": dict(params),
        "seed": seed,
        "window": window,
        "workload": load.source,
        "rate_scale": load.rate_scale,
        "offered_prefill_load": offered,
        "sla": {"ttft_s": scenario.sla.ttft_s, "tpot_s": scenario.sla.tpot_s},
        "warnings": warnings,
    }
    return Result(metrics.json_safe(run) | summary, ran, cluster, load, records, float(sim.now), warnings)
