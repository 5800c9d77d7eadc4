"""One run: a scenario, a policy and a seed in, a summary and one row a request out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pdenv import metrics, workload
from pdenv.errors import InputError, nearest
from pdenv.scenario import Scenario, load_scenario
from pdenv.sim.records import ARRIVAL, MODES, RECORD, STATUSES, UNFINISHED, WAITING
from pdenv.sim.rules import RULES
from pdenv.topology import PRECISIONS, Cluster
from pdenv.workload.load import offered_prefill_load

if TYPE_CHECKING:
    import pandas as pd

    from pdenv.sim.engine import Objective

#: Offered prefill load, as a share of the scenario's target, within which a run is near its operating point.
NEAR_TARGET = (0.5, 1.2)

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


def policy_names() -> tuple[str, ...]:
    """Names of all policies, in the order in which `pdenv policies` lists them."""
    return tuple(RULES)


def check_policy(name: str) -> None:
    """Raise InputError, with the nearest valid name, for a policy that does not exist."""
    if name not in RULES:
        raise InputError(f"unknown policy '{name}'{nearest(name, RULES)}", where="policy")


def _scenario_for(scenario: Scenario, policy: str) -> Scenario:
    """The scenario that a policy runs on: `colocated` needs co-located instances, all others need pools."""
    if policy == "colocated":
        return scenario if scenario.colocated else scenario.colocated_twin()
    if not (scenario.prefill and scenario.decode):
        raise InputError(
            f"policy '{policy}' needs prefill and decode instances, scenario '{scenario.name}' has none; "
            "use --policy colocated",
            where="policy",
        )
    return scenario


def _objective(scenario: Scenario) -> Objective:
    """What the scenario charges, for schedulers that minimise predicted cost."""
    from pdenv.sim.engine import Objective

    cost, sla = scenario.cost, scenario.sla
    before, after = {  # weight of a second before and after the decode instance has the request
        "joint": (1.0, 1.0),
        "standard": (0.0, 1.0),
        "normalised": (1.0 / sla.ttft_s, 1.0 / sla.tpot_s),
    }[cost.mode]
    return Objective(
        ttft_limit_s=sla.ttft_s,
        tpot_limit_s=sla.tpot_s,
        ttft_step=cost.ttft_step,
        ttft_slope_per_s=cost.ttft_slope_per_s,
        tpot_step=cost.tpot_step,
        tpot_slope_per_s=cost.tpot_slope_per_s,
        w_prefill=cost.w_prefill * before,
        w_transfer=cost.w_transfer * before,
        w_decode=cost.w_decode * after,
    )


def _far(offered_load: float | None, target: float) -> bool:
    if offered_load is None or not math.isfinite(offered_load):
        return False
    low, high = NEAR_TARGET
    return not low * target <= offered_load <= high * target


def _warnings(scenario: Scenario, cluster: Cluster, summary: dict[str, Any], offered_load: float | None) -> list[str]:
    lines = []
    target = scenario.target.prefill_load
    if target is not None and _far(offered_load, target):
        lines.append(
            f"far from the operating point: offered prefill load {offered_load:.3g}, the scenario is made for "
            f"{target:.3g}; --rate-scale auto would set it"
        )
    lines += [
        f"latency profile '{p.name}' is a roofline estimate, not measured" for p in cluster.profiles if p.estimate
    ]
    if scenario.workload.predictor.is_oracle:
        lines.append("the length predictor is an oracle: not for published results")
    if summary["unfinished"]:
        lines.append(f"{summary['unfinished']} measured requests unfinished at the drain deadline, charged as failed")
    return lines


def simulate(
    scenario: Scenario | str,
    policy: str = "three-part",
    seed: int = 0,
    trace: str | None = None,
    rate_scale: float | str = 1.0,
    window: int = 0,
    params: dict[str, float] | None = None,
    span: Literal["whole", "window"] = "whole",
) -> Result:
    """Run one policy on one window of a scenario's workload.

    Args:
        scenario: a Scenario, or the name or path of one.
        policy: a name of `policy_names()`. `colocated` runs on the scenario's co-located twin where the
            scenario has no co-located instances, under the same arrivals.
        seed: of the workload and of the policy; the same seed gives the same numbers.
        trace: path of a request trace that replaces the scenario's workload.
        rate_scale: arrival rates are multiplied by it; "auto" aims at the scenario's target load.
        window: which of the disjoint stretches of the workload, from 0.
        params: parameters of the policy's rule.
        span: a trace as a whole (its only window), or cut into windows of the scenario's size.

    Raises:
        InputError: an unknown name, a scenario that cannot run, a bad trace.
    """
    from pdenv.sim.engine import Simulation  # imports numba

    if not isinstance(scenario, Scenario):
        scenario = load_scenario(scenario)
    check_policy(policy)
    ran = _scenario_for(scenario, policy)
    load = workload.build(scenario, seed=seed, window=window, trace=trace, rate_scale=rate_scale, span=span)
    cluster = ran.cluster()

    sim = Simulation(
        cluster,
        load.arrivals,
        load.blocks,
        rule=policy,
        parameters=params,
        seed=seed,
        objective=_objective(ran),
    )
    sim.run(load.warmup_s)
    start = sim.totals()
    sim.run(load.end_s)
    end = sim.totals()
    sim.run_measured(load.measured_from, load.measured_to, load.end_s + load.drain_max_s)

    records = sim.records
    summary = metrics.summarise(ran, cluster, load, records, start, end, until_s=sim.now)
    measured_span = load.arrivals[: load.measured_to]
    offered = offered_prefill_load(scenario.cluster(), measured_span, load.end_s) if scenario.prefill else None
    warnings = _warnings(scenario, cluster, summary, offered)
    run = {
        "scenario": scenario.name,
        "policy": policy,
        "seed": seed,
        "window": window,
        "workload": load.source,
        "rate_scale": load.rate_scale,
        "offered_prefill_load": offered,
        "sla": {"ttft_s": scenario.sla.ttft_s, "tpot_s": scenario.sla.tpot_s},
        "warnings": warnings,
    }
    return Result(metrics.json_safe(run) | summary, ran, cluster, load, records, float(sim.now), warnings)
