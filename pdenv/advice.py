"""What the numbers of a run warn of, one line each with a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pdenv.metrics import percent

if TYPE_CHECKING:
    from pdenv.scenario import Scenario
    from pdenv.workload import Workload

#: Offered prefill load, as a share of the scenario's target, within which a run is near its operating point.
NEAR_TARGET = (0.5, 1.2)
#: Utilisation from which a resource counts as saturated.
DECODE_MEMORY_FULL = 0.95
NETWORK_FULL = 0.95
PREFILL_FULL = 0.99
#: A queue grows when it gained this share of the n measured requests, and so many times √n: more than chance gives.
GROWN_SHARE = 0.05
GROWN_DEVIATIONS = 3.0

_LINKS = {
    "nic": "NICs are",
    "rack": "rack links are",
    "spine": "the spine is",
    "nvlink": "NVLink is",
    "min_cut": "the narrowest cut between the pools is",
}


def warnings_of(
    scenario: Scenario,
    ran: Scenario,
    workload: Workload,
    records: np.ndarray,
    summary: dict[str, Any],
    offered_load: float | None,
) -> list[str]:
    """Warnings of one run.

    Args:
        scenario: as it was asked for.
        ran: as it ran: `scenario`, or its co-located twin.
        records: `(n,)` RECORD of all requests.
        offered_load: offered prefill load of `scenario`, None without a prefill pool.
    """
    lines = [*_about_the_run(scenario, ran, offered_load), *_saturated(summary)]
    lines += _grown_queues(workload, records)
    if summary["unfinished"]:
        lines.append(
            f"{summary['unfinished']} measured requests unfinished at the drain deadline, charged as failed; lower "
            "the rate or raise window.drain_max_s"
        )
    return lines


def _about_the_run(scenario: Scenario, ran: Scenario, offered_load: float | None) -> Iterator[str]:
    target = scenario.target.prefill_load
    steady = scenario.workload.kind not in ("on_off", "diurnal")  # whose windows differ in load on purpose
    if steady and target is not None and offered_load is not None and _far(offered_load, target):
        yield (
            f"far from the operating point: offered prefill load {offered_load:.3g}, the scenario is made for "
            f"{target:.3g}; --rate-scale auto would set it"
        )
    cluster = ran.cluster()
    if ran is not scenario:
        gpus = sum(instance.gpus for instance in cluster.colocated)
        yield (
            f"policy colocated ran on the scenario's co-located twin: all {gpus} GPUs as "
            f"{len(cluster.colocated)} co-located instances"
        )
    for profile in cluster.profiles:
        if profile.estimate:
            yield f"latency profile '{profile.name}' is a roofline estimate, not measured"
    if scenario.workload.predictor.is_oracle:
        yield "the length predictor is an oracle: not for published results"


def _far(offered_load: float, target: float) -> bool:
    low, high = NEAR_TARGET
    return math.isfinite(offered_load) and not low * target <= offered_load <= high * target


def _saturated(summary: dict[str, Any]) -> Iterator[str]:
    memory = summary["decode_memory_utilisation"]
    if memory is not None and memory > DECODE_MEMORY_FULL:
        yield (
            f"decode memory is saturated ({percent(memory)}): the ratio of prefill to decode instances does not fit "
            "this workload; add decode instances or memory, or lower the rate"
        )
    demanded = summary["prefill_demanded_utilisation"]
    if demanded is not None and demanded > PREFILL_FULL:
        yield (
            f"prefill is saturated ({percent(demanded)} demanded): add prefill instances, lower the rate, or relieve "
            "what stalls it (staging memory, network, decode memory)"
        )
    for name, links in _LINKS.items():
        share = summary["link_utilisation"].get(name)
        if share is not None and share > NETWORK_FULL:
            yield (
                f"{links} saturated ({percent(share)}): KV waits for the network; give it more bandwidth, "
                "send KV in a coarser precision, or lower the rate"
            )


def _grown_queues(workload: Workload, records: np.ndarray) -> Iterator[str]:
    """Queues of the whole system that kept growing while the measured requests arrived."""
    n = workload.measured_to - workload.measured_from
    arrival_s, ended_s = workload.arrivals["arrival_s"], records["finish_s"]
    queues = (
        ("prefill", arrival_s, records["prefill_start_s"]),
        ("decode", records["prefill_end_s"], records["decode_start_s"]),
    )
    for name, entered_s, served_s in queues:
        left_s = np.fmin(served_s, ended_s)  # NaN: never
        before, after = (_waiting(entered_s, left_s, t) for t in (workload.warmup_s, workload.end_s))
        if after - before >= max(GROWN_SHARE * n, GROWN_DEVIATIONS * math.sqrt(n)):
            yield (
                f"the queue before {name} grew by {after - before} requests in a window of {n}: {name} falls behind; "
                "lower the rate (--rate-scale auto) or enlarge what is saturated"
            )


def _waiting(entered_s: np.ndarray, left_s: np.ndarray, at_s: float) -> int:
    return int(np.count_nonzero((entered_s <= at_s) & ~(left_s <= at_s)))
