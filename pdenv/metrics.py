"""From request records and instance totals to the numbers of a run, each with its definition.

Request statistics count the measured requests only, those that arrive in [warm-up, end). Utilisations,
queue depths, inter-token gaps, money and energy are those of the same span of time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pdenv.definitions import DEFINITIONS
from pdenv.mincut import min_cuts_bytes_per_s
from pdenv.sim.records import (
    COMPLETED,
    FAILED_OOM,
    MODES,
    REJECTED,
    STATUSES,
    TOO_LARGE,
    UNFINISHED,
    WAITING,
    Totals,
    gap_edges,
)
from pdenv.topology import PRECISIONS, TIERS, Cluster

if TYPE_CHECKING:
    from pdenv.scenario import Scenario
    from pdenv.workload import Workload

#: The operating point: prefill busy above, decode memory below, line rate of the P-D cut at most.
PREFILL_BUSY_LIMIT = 0.80
DECODE_MEMORY_LIMIT = 0.70
NETWORK_LINE_LIMIT = 100e9  # bytes/s

COST_MODES = ("joint", "standard", "normalised")


# ---- request times --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestTimes:
    """What each request took, `(n,)` arrays in s. NaN: no sample."""

    ttft_s: np.ndarray  # NaN without a first token
    tpot_s: np.ndarray  # standard TPOT; NaN unless completed with N > 1
    joint_tpot_s: np.ndarray  # NaN unless completed
    prefill_s: np.ndarray  # part 1 of joint TPOT, accrued until the request left; so the other parts
    transfer_s: np.ndarray  # part 2
    decode_s: np.ndarray  # part 3, a token
    waited_s: np.ndarray  # from arrival to the first token, or until the request left without one
    emitting_s: np.ndarray  # from the first token until the request left; 0 without one
    tokens: np.ndarray  # N, output tokens
    status: np.ndarray  # index into STATUSES
    completed: np.ndarray  # bool
    wire: np.ndarray  # precision in which its KV was to be sent, −1 without one
    store: np.ndarray  # precision in which it was to be stored, −1 without one


def _columns(rows: np.ndarray, *names: str) -> tuple[np.ndarray, ...]:
    """Contiguous columns of structured rows, copied in blocks that stay in the processor's cache."""
    columns = tuple(np.empty(len(rows), rows.dtype[name]) for name in names)
    for first in range(0, len(rows), 4096):
        block = slice(first, first + 4096)
        for name, column in zip(names, columns, strict=True):
            column[block] = rows[name][block]
    return columns


def request_times(cluster: Cluster, arrivals: np.ndarray, records: np.ndarray, until_s: float) -> RequestTimes:
    """Times of `(n,)` ARRIVAL rows and their RECORD rows; what has not ended is counted up to `until_s`."""
    arrival, tokens = _columns(arrivals, "arrival_s", "output_tokens")
    t_p, t_j, first, finish = _columns(records, "prefill_end_s", "decode_start_s", "first_token_s", "finish_s")
    status, mode, wire, store = _columns(records, "status", "mode", "wire_precision", "store_precision")
    completed = status == COMPLETED
    ended = (status != WAITING) & (status != UNFINISHED) & ~np.isnan(finish)
    left = np.where(ended, finish, np.maximum(until_s, arrival))
    t_p = np.where(np.isnan(t_p), left, t_p)
    t_j = np.where(np.isnan(t_j), left, t_j)
    m = tokens - 1 + (cluster.decode_first & (mode == MODES.index("pair")))
    prefill = t_p - arrival
    transfer = np.where(m > 0, t_j - t_p, 0.0)
    decode = np.where(m > 0, (left - t_j) / np.maximum(m, 1), 0.0)
    emitting = np.where(np.isnan(first), 0.0, left - first)
    return RequestTimes(
        ttft_s=first - arrival,
        tpot_s=np.where(completed & (tokens > 1), emitting / np.maximum(tokens - 1, 1), np.nan),
        joint_tpot_s=np.where(completed, prefill + transfer + decode, np.nan),
        prefill_s=prefill,
        transfer_s=transfer,
        decode_s=decode,
        waited_s=np.where(np.isnan(first), left, first) - arrival,
        emitting_s=emitting,
        tokens=tokens,
        status=status,
        completed=completed,
        wire=wire,
        store=store,
    )


def meets_slo(times: RequestTimes, ttft_limit_s: float, tpot_limit_s: float) -> np.ndarray:
    """`(n,)` bool: completed within both limits; a request of one token meets any TPOT limit."""
    tpot_met = np.isnan(times.tpot_s) | (times.tpot_s <= tpot_limit_s)
    return times.completed & (times.ttft_s <= ttft_limit_s) & tpot_met


def distribution(values: np.ndarray) -> dict[str, float | None]:
    """Mean, percentiles (linear interpolation) and maximum of the values that are not NaN."""
    sample = values[~np.isnan(values)]
    if sample.size == 0:
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    p50, p90, p99 = np.percentile(sample, (50, 90, 99))
    return {
        "mean": float(sample.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(sample.max()),
    }


def _gap_distribution(start: Totals, end: Totals) -> dict[str, float | None]:
    """Inter-token gaps between two totals; percentiles interpolate geometrically within a bin."""
    counts = end.gap_counts - start.gap_counts
    total = counts.sum()
    if total <= 0:
        return distribution(np.empty(0))
    edges = gap_edges()
    cumulative = np.cumsum(counts)
    largest = float(end.gap_max_s)
    if largest <= start.gap_max_s:  # the longest gap lies before the span: the last bin bounds this one's
        largest = min(largest, float(edges[np.nonzero(counts)[0][-1] + 1]))
    result: dict[str, float | None] = {"mean": float((end.gap_sum_s - start.gap_sum_s) / total)}
    for name, q in (("p50", 0.50), ("p90", 0.90), ("p99", 0.99)):
        i = int(np.searchsorted(cumulative, q * total))
        share = (q * total - (cumulative[i] - counts[i])) / counts[i]
        result[name] = min(float(edges[i] * (edges[i + 1] / edges[i]) ** share), largest)
    return {**result, "max": largest}


# ---- cost -----------------------------------------------------------------------------------------


def _penalties(scenario: Scenario, times: RequestTimes) -> dict[str, float]:
    """Mean penalty of each kind, in cost units a measured request."""
    weights, sla = scenario.cost, scenario.sla
    late = np.maximum(times.waited_s - sla.ttft_s, 0.0)
    over = np.maximum(times.emitting_s - sla.tpot_s * (times.tokens - 1), 0.0)
    over[times.tokens == 1] = 0.0
    rejected = float(np.mean(times.status == REJECTED))
    failed = 1.0 - rejected - float(np.mean(times.completed))
    return {
        "ttft_penalty": float(weights.ttft_step * np.mean(late > 0) + weights.ttft_slope_per_s * np.mean(late)),
        "tpot_penalty": float(weights.tpot_step * np.mean(over > 0) + weights.tpot_slope_per_s * np.mean(over)),
        "rejection_penalty": weights.rejection * rejected,
        "failure_penalty": weights.failure * failed,
        "quality": float(np.mean(_quality(scenario, times))),
    }


def _quality(scenario: Scenario, times: RequestTimes) -> np.ndarray:
    """`(n,)` price of the coarser of the precisions on the wire and in memory, cost units."""
    prices = np.array([*scenario.cost.prices(), 0.0])  # -1 is the last one: none
    return np.maximum(prices[times.wire], prices[times.store])


def _pool_cost(scenario: Scenario, start: Totals, end: Totals, cluster: Cluster, requests: int) -> dict[str, float]:
    """What the pools cost between two times, in cost units a measured request."""
    gpu_s = 0.0
    for name in ("prefill", "decode", "colocated"):
        gpus = np.array([instance.gpus for instance in getattr(cluster, name)], np.float64)
        gpu_s += float(gpus @ (getattr(end, name)["billed_s"] - getattr(start, name)["billed_s"]))
    each = max(requests, 1)
    return {
        "gpu": scenario.cost.gpu_hour / 3600 * gpu_s / each,
        "churn": scenario.cost.churn * (end.scalings - start.scalings) / each,
    }


def _mean_parts(scenario: Scenario, times: RequestTimes, mode: str) -> tuple[float, float, float]:
    """Mean prefill, transfer and decode part as a mode measures them."""
    if mode == "standard":
        gaps = np.maximum(times.tokens - 1, 1)
        return 0.0, 0.0, float(np.mean(np.where(times.tokens > 1, times.emitting_s / gaps, 0.0)))
    parts = [float(np.mean(part)) for part in (times.prefill_s, times.transfer_s, times.decode_s)]
    if mode == "joint":
        return parts[0], parts[1], parts[2]
    sla = scenario.sla
    return parts[0] / sla.ttft_s, parts[1] / sla.ttft_s, parts[2] / sla.tpot_s


def cost(
    scenario: Scenario, times: RequestTimes, mode: str, pools: dict[str, float] | None = None
) -> dict[str, float] | None:
    """Cost of a run a measured arrival: its `mean` and the terms that add up to it.

    Args:
        times: of the measured requests.
        mode: `joint` weighs the three parts of joint TPOT in s; `standard` weighs standard TPOT by `w_decode`;
            `normalised` divides parts 1 and 2 by the TTFT limit and part 3 by the TPOT limit.
        pools: `gpu` and `churn` a measured request; none are charged without it.

    Returns:
        None without requests, and in `standard` mode without a TTFT slope: what happens before the first token
        would then cost nothing.
    """
    weights = scenario.cost
    if len(times.status) == 0 or (mode == "standard" and weights.ttft_slope_per_s == 0):
        return None
    prefill, transfer, decode = _mean_parts(scenario, times, mode)
    terms = {
        "prefill": weights.w_prefill * prefill,
        "transfer": weights.w_transfer * transfer,
        "decode": weights.w_decode * decode,
        **_penalties(scenario, times),
        **(pools or {"gpu": 0.0, "churn": 0.0}),
    }
    return {"mean": sum(terms.values()), **terms}


def _cost_summary(scenario: Scenario, times: RequestTimes, pools: dict[str, float]) -> dict[str, Any]:
    """The cost in the scenario's own mode with its terms, and the mean in every mode."""
    costs = {mode: cost(scenario, times, mode, pools) for mode in COST_MODES}
    means = {mode: terms["mean"] if terms else None for mode, terms in costs.items()}
    own = costs[scenario.cost.mode] or {}
    return {
        "mode": scenario.cost.mode,
        "mean": means[scenario.cost.mode],
        "terms": {name: value for name, value in own.items() if name != "mean"},
        "by_mode": means,
    }


# ---- instances and network ------------------------------------------------------------------------


def _span(start: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """Each field of INSTANCE_TOTALS between two times, `(instances,)`."""
    return {name: end[name] - start[name] for name in end.dtype.names or ()}


def _ratio(top: float, bottom: float) -> float | None:
    return float(top / bottom) if bottom > 0 else None


def _share(part: float, whole: float) -> float | None:
    """A ratio that cannot exceed 1, without what rounding of the sums adds."""
    ratio = _ratio(part, whole)
    return 1.0 if ratio is not None and 1.0 < ratio < 1.0 + 1e-9 else ratio


def _memory_utilisation(span: dict[str, np.ndarray], instances: Iterable[Any]) -> float | None:
    capacity = np.array([i.kv_bytes for i in instances], dtype=np.float64)
    return _share(span["memory_byte_s"].sum(), (capacity * span["active_s"]).sum())


def _resources(pools: list[tuple[dict[str, np.ndarray], tuple]]) -> dict[str, float]:
    """GPU hours, money and energy of all instances between two times."""
    gpu_s = usd = joules = 0.0
    for span, instances in pools:
        for k, instance in enumerate(instances):
            billed, busy = span["billed_s"][k], span["busy_s"][k]
            gpu_s += billed * instance.gpus
            usd += billed / 3600 * instance.usd_per_hour
            joules += instance.busy_w * busy + instance.idle_w * max(billed - busy, 0.0)
    return {"gpu_hours": float(gpu_s / 3600), "cost_usd": float(usd), "energy_kwh": float(joules / 3.6e6)}


def link_utilisation(
    cluster: Cluster, carried: np.ndarray, span_s: float, cut_bytes_per_s: float
) -> dict[str, float | None]:
    """Share of the achievable rate used: a tier each that has ports on a path, and `min_cut`."""
    paths = [path for row in cluster.paths for path in row if path.ports]
    used = sorted({port for path in paths for port in path.ports})
    shares: dict[str, float | None] = {}
    for tier, name in enumerate(TIERS):
        ports = [k for k in used if cluster.ports[k].tier == tier]
        if ports:
            rate = sum(cluster.ports[k].bytes_per_s for k in ports)
            shares[name] = _share(sum(carried[k] for k in ports), rate * span_s)
    egress = sorted({path.ports[0] for path in paths})  # every flow leaves through exactly one of these
    if egress:
        shares["min_cut"] = _share(sum(carried[k] for k in egress), cut_bytes_per_s * span_s)
    return shares


def _busiest_links(links: dict[str, float | None]) -> tuple[str | None, float | None]:
    """Name and largest share of what `link_utilisation` gives; (None, None) without a network."""
    known = {name: share for name, share in links.items() if share is not None}
    busiest = max(known, key=lambda name: known[name], default=None)
    return (None, None) if busiest is None else (busiest, known[busiest])


def _wire_precisions(records: np.ndarray) -> dict[str, float]:
    """Share of each wire precision among the requests sent to a pair; empty without one."""
    sent = records["wire_precision"][records["mode"] == MODES.index("pair")]
    counts = np.bincount(sent[sent >= 0], minlength=len(PRECISIONS))
    total = int(counts.sum())
    return {name: float(count / total) for name, count in zip(PRECISIONS, counts, strict=True)} if total else {}


def _offered_bytes_per_s(cluster: Cluster, arrivals: np.ndarray, records: np.ndarray, span_s: float) -> float | None:
    """KV that measured arrivals ask the network to carry; co-located requests ask for nothing."""
    per_token = np.array(cluster.kv_bytes_per_token, dtype=np.float64)
    wanted = per_token[np.maximum(records["wire_precision"], 0)] * arrivals["prompt_tokens"]
    return _ratio(float(wanted[records["mode"] != MODES.index("colocated")].sum()), span_s)


def _constraints(
    busy: float | None,
    demanded: float | None,
    memory: float | None,
    network: dict[str, float | None],
    transfer_share: float | None,
) -> dict[str, Any]:
    """The three constraints of the operating point, and whether they conflict."""
    offered, achievable = network["offered_bytes_per_s"], network["achievable_bytes_per_s"]
    line = network["line_bytes_per_s"]
    full = None if offered is None or achievable is None else offered >= achievable
    within = None if line is None else line <= NETWORK_LINE_LIMIT * (1 + 1e-9)
    return {
        "prefill_busy": {
            "value": busy,
            "limit": PREFILL_BUSY_LIMIT,
            "met": None if busy is None else busy > PREFILL_BUSY_LIMIT,
        },
        "decode_memory": {
            "value": memory,
            "limit": DECODE_MEMORY_LIMIT,
            "met": None if memory is None else memory < DECODE_MEMORY_LIMIT,
        },
        "network": {
            **network,
            "limit": NETWORK_LINE_LIMIT,
            "met": None if full is None or within is None else within and not full,
        },
        "conflict": bool(full and demanded is not None and demanded > PREFILL_BUSY_LIMIT),
        "near_conflict": transfer_share is not None and transfer_share > 0.5,
    }


# ---- the summary ----------------------------------------------------------------------------------


def _request_summary(records: np.ndarray, times: RequestTimes) -> dict[str, Any]:
    """Counts and distributions of `(n,)` measured requests."""
    done = times.completed
    counts = np.bincount(times.status, minlength=len(STATUSES))

    def mean(values: np.ndarray) -> float | None:
        return float(values[done].mean()) if done.any() else None

    prefill_end, granted, flow_start, transfer_end, t_j, second = _columns(
        records,
        "prefill_end_s",
        "grant_s",
        "flow_start_s",
        "transfer_end_s",
        "decode_start_s",
        "second_token_s",
    )
    return {
        "requests": len(records),
        "completed": int(counts[COMPLETED]),
        "rejected": int(counts[REJECTED]),
        "failed": int(counts[TOO_LARGE] + counts[FAILED_OOM]),
        "unfinished": int(counts[UNFINISHED] + counts[WAITING]),
        "ttft_s": distribution(times.ttft_s),
        "tpot_s": distribution(times.tpot_s),
        "joint_tpot_s": {
            **distribution(times.joint_tpot_s),
            "prefill_mean": mean(times.prefill_s),
            "transfer_mean": mean(times.transfer_s),
            "decode_mean": mean(times.decode_s),
        },
        "second_token_gap_s": distribution(second - records["first_token_s"]),
        "e2e_s": distribution(np.where(done, times.waited_s + times.emitting_s, np.nan)),
        "transfer_s": distribution(transfer_end - prefill_end),
        "transfer_wire_s": distribution(transfer_end - flow_start),
        "admission_s": distribution(np.maximum(granted - prefill_end, 0.0) + t_j - transfer_end),
    }


def summarise(
    scenario: Scenario,
    cluster: Cluster,
    workload: Workload,
    records: np.ndarray,
    start: Totals,
    end: Totals,
    until_s: float | None = None,
) -> dict[str, Any]:
    """Every number of a run, JSON-safe; `DEFINITIONS` says what each key means.

    Args:
        records: `(n,)` RECORD, a row for each of `workload.arrivals`.
        start, end: totals at the warm-up and at the end of the window.
        until_s: when the run stopped, for the accrued cost of unfinished requests (default: `end.time_s`).
    """
    rows = slice(workload.measured_from, workload.measured_to)
    arrivals, records = workload.arrivals[rows], records[rows]
    times = request_times(cluster, arrivals, records, end.time_s if until_s is None else until_s)
    window_s = workload.end_s - workload.warmup_s
    met = meets_slo(times, scenario.sla.ttft_s, scenario.sla.tpot_s)

    prefill, decode = _span(start.prefill, end.prefill), _span(start.decode, end.decode)
    colocated = _span(start.colocated, end.colocated)
    busy = _share(prefill["busy_s"].sum(), prefill["active_s"].sum())
    demanded = _share(prefill["busy_s"].sum() + prefill["stalled_s"].sum(), prefill["active_s"].sum())
    memory = _memory_utilisation(decode, cluster.decode)
    network: dict[str, float | None] = dict.fromkeys(
        ("offered_bytes_per_s", "achievable_bytes_per_s", "line_bytes_per_s", "utilisation")
    )
    links: dict[str, float | None] = {}
    if cluster.prefill and cluster.decode:
        achievable, line = min_cuts_bytes_per_s(cluster)
        links = link_utilisation(cluster, end.port_bytes - start.port_bytes, end.time_s - start.time_s, achievable)
        network = {
            "offered_bytes_per_s": _offered_bytes_per_s(cluster, arrivals, records, window_s),
            "achievable_bytes_per_s": achievable,
            "line_bytes_per_s": line,
            "utilisation": links.get("min_cut"),
        }

    busiest, network_share = _busiest_links(links)
    wire = _wire_precisions(records)

    summary = _request_summary(records, times)
    joint = summary["joint_tpot_s"]
    share = _ratio(joint["transfer_mean"], joint["mean"]) if joint["mean"] is not None else None
    summary |= {
        "warmup_s": workload.warmup_s,
        "duration_s": window_s,
        "itl_s": _gap_distribution(start, end),
        "goodput_rps": _ratio(met.sum(), window_s),
        "slo_attainment": _ratio(met.sum(), len(arrivals)),
        "prefill_utilisation": busy,
        "prefill_demanded_utilisation": demanded,
        "decode_memory_utilisation": memory,
        "link_utilisation": links,
        "network_utilisation": network_share,
        "busiest_tier": busiest,
        "wire_precision_share": wire,
        "compressed_share": 1.0 - wire[PRECISIONS[0]] if wire else None,
        "prefill_queue_depth": _ratio(prefill["queue_s"].sum(), prefill["active_s"].sum()),
        "receive_queue_depth": _ratio(decode["queue_s"].sum(), decode["active_s"].sum()),
        "decode_starved_s": end.decode_starved_s - start.decode_starved_s,
        "staging_stall_s": float(prefill["stalled_s"].sum()),
        "preemptions": end.preemptions - start.preemptions,
        **_resources([(prefill, cluster.prefill), (decode, cluster.decode), (colocated, cluster.colocated)]),
        "constraints": _constraints(busy, demanded, memory, network, share),
        "cost": _cost_summary(scenario, times, _pool_cost(scenario, start, end, cluster, len(arrivals))),
    }
    if cluster.colocated:
        summary["colocated_utilisation"] = _share(colocated["busy_s"].sum(), colocated["active_s"].sum())
        summary["colocated_memory_utilisation"] = _memory_utilisation(colocated, cluster.colocated)
    ordered = {key: summary[key] for key in DEFINITIONS if key in summary}
    ordered["definitions"] = {key: DEFINITIONS[key] for key in ordered}
    return json_safe(ordered)


def percent(share: float | None) -> str:
    """A share as a percentage that says 100 only for a share of 1."""
    if share is None:
        return "–"
    texts = [f"{100 * share:.{decimals}f}" for decimals in (1, 2, 3, 4)]
    shown = next((text for text in texts if share >= 1.0 or float(text) < 100.0), texts[0])
    return f"{shown} %"


def json_safe(value: Any) -> Any:
    """`value` with plain Python numbers, and None for what JSON cannot hold (NaN, infinities)."""
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [json_safe(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any) -> str:
    """Indented JSON of a summary or comparison, without NaN, ending in a newline."""
    return json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
