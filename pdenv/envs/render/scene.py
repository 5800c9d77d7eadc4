"""One look at a running simulation, as plain data that text and pictures are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pdenv.envs.render.parts import STATES, Colocated, Decode, Flow, Head, Port, Prefill, Running
from pdenv.metrics import RequestTimes, meets_slo, request_times
from pdenv.sim import lists
from pdenv.sim.engine import Simulation
from pdenv.sim.records import COMPLETED, WAITING, Totals
from pdenv.sim.state import (
    ACTIVE,
    ACTIVE_SEQ,
    AT_GATEWAY,
    DRAINING,
    FLOWING,
    ITERATING,
    LINK_PREFILL,
    MIXED,
    PREEMPTED,
    PREFILLED,
    READY,
    STARTED,
    STOPPED,
)
from pdenv.topology import PRECISIONS, TIERS, Cluster

#: At most so many requests of the gateway queue, and completed requests, are looked at one by one.
QUEUE_SHOWN = 40
RECENT_SHOWN = 60


@dataclass(frozen=True)
class Scene:
    """A cluster at one moment. Shares are in [0, 1]; indices are those of `pdenv.topology.Cluster`."""

    title: str
    decision: str
    step: int
    reward: float
    now_s: float
    racks: tuple[str, ...]
    prefill: tuple[Prefill, ...]
    decode: tuple[Decode, ...]
    colocated: tuple[Colocated, ...]
    flows: tuple[Flow, ...]  # by prefill, decode, precision
    rack_ports: tuple[Port, ...]
    spine_ports: tuple[Port, ...]
    link_tiers: tuple[str, ...]  # of the cluster's paths, in the order of TIERS
    widest_bytes_per_s: float  # what one transfer can reach on the best path that is not NVLink
    precisions: tuple[str, ...]  # that some tier allows on the wire
    gateway_requests: int
    head: Head | None
    gateway_prompt_tokens: tuple[int, ...]  # the first of the queue, head first
    longest_prompt_tokens: int  # that has arrived so far
    stages: tuple[int, ...]  # requests in each of STAGES
    recent: tuple[tuple[float, float, float], ...]  # parts of joint TPOT, s, last completed last
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    running: Running


def look(
    sim: Simulation,
    *,
    title: str = "",
    decision: str = "",
    measured: slice | None = None,
    reward: float = 0.0,
    step: int = 0,
) -> Scene:
    """Read everything that is shown; `sim` stays as it is.

    Args:
        sim: at any moment, a pending decision included.
        title: of the run, e.g. the scenario's name.
        decision: the last one, in words.
        measured: rows of `sim.arrivals` that the running metrics count (default: all).
        reward: the sum so far.
        step: decisions taken so far.
    """
    cluster, h = sim.cluster, sim.block.header
    flowing = _flowing(sim)
    rates = _port_rates(cluster, flowing)
    shares = [rate / port.bytes_per_s for rate, port in zip(rates, cluster.ports, strict=True)]
    ports = [
        Port(port.name, TIERS[port.tier], rate, port.bytes_per_s)
        for port, rate in zip(cluster.ports, rates, strict=True)
    ]
    kv_bytes, iteration_s = _iterations(sim)
    limits = [float(h[name]) if np.isfinite(h[name]) else None for name in ("ttft_limit_s", "tpot_limit_s")]
    tiers = {way.tier for row in cluster.paths for way in row}
    leaving, arriving = _ends(flowing, len(cluster.prefill), len(cluster.decode))
    decodes = _decodes(sim, kv_bytes, iteration_s, arriving, shares)
    colocated = _colocated(sim, kv_bytes, iteration_s)
    counted, recent = _counted(sim, measured)
    return Scene(
        title=title,
        decision=decision,
        step=step,
        reward=float(reward),
        now_s=sim.now,
        racks=tuple(cluster.names.get("racks", ("rack",))),
        prefill=_prefills(sim, leaving, shares),
        decode=decodes,
        colocated=colocated,
        flows=_flows(cluster, flowing, shares),
        rack_ports=tuple(port for port in ports if port.tier == "rack" and tiers),
        spine_ports=tuple(port for port in ports if port.tier == "spine" and tiers),
        link_tiers=tuple(name for k, name in enumerate(TIERS) if k in tiers),
        widest_bytes_per_s=_widest(cluster),
        precisions=tuple(q for k, q in enumerate(PRECISIONS) if any(mask >> k & 1 for mask in cluster.tier_precisions)),
        gateway_requests=int(sim.block.views["queue"][lists.GATEWAY_QUEUE]["count"]),
        head=_head(sim),
        gateway_prompt_tokens=_gateway_prompts(sim),
        longest_prompt_tokens=int(sim.arrivals["prompt_tokens"][: h["next_arrival"]].max(initial=1)),
        stages=_stages(sim),
        recent=recent,
        ttft_limit_s=limits[0],
        tpot_limit_s=limits[1],
        running=_running(sim, counted, ports, decodes, colocated),
    )


# ---- instances -------------------------------------------------------------------------------------


def _name(cluster: Cluster, pool: str, i: int) -> str:
    names = cluster.names.get(pool, ())
    return names[i] if i < len(names) else f"{pool}-{i}"


def _prefills(sim: Simulation, leaving: list[float], shares: list[float]) -> tuple[Prefill, ...]:
    views, cluster = sim.block.views, sim.cluster
    queues = views["queue"]["count"][lists.FIRST_QUEUE :]
    out = []
    for i, (facts, row) in enumerate(zip(cluster.prefill, views["prefill"], strict=True)):
        ways = cluster.paths[i] if i < len(cluster.paths) else ()
        busy = bool(row["busy"])
        span = float(row["step_end"] - row["step_start"])
        passed = (sim.now - float(row["step_start"])) / span if busy and span > 0.0 else 0.0
        out.append(
            Prefill(
                name=_name(cluster, "prefill", i),
                rack=facts.rack,
                state=STATES[row["state"]],
                waiting_requests=int(queues[i] - row["started"]),
                tokens_left=int(views["load"]["tokens"][i]),
                step_requests=int(row["step_requests"]) if busy else 0,
                step_share=min(max(passed, 0.0), 1.0),
                step_left_s=max(float(row["step_end"]) - sim.now, 0.0) if busy else 0.0,
                stalled=bool(row["stalled"]),
                staging_used_bytes=int(row["staging_used"]),
                staging_bytes=int(row["staging_bytes"]),
                egress_bytes_per_s=leaving[i],
                egress_share=max((shares[way.ports[0]] for way in ways), default=0.0),
            )
        )
    return tuple(out)


def _iterations(sim: Simulation) -> tuple[list[int], list[float]]:
    """KV bytes of the sequences of each batch, and the duration of its iteration in flight, s (0: none)."""
    rows = sim.block.views["batch"]
    kv, seconds = rows["kv"].tolist(), np.where(rows["doing"] == MIXED, rows["first_s"], 0.0)
    for b in np.flatnonzero(rows["doing"] == ITERATING).tolist():
        it = rows[b]
        done = _iterations_done(it, sim.now)
        kv[b] += int(it["growth"]) * done
        seconds[b] = it["first_s"] + it["slope_s"] * done
    return kv, seconds.tolist()


def _iterations_done(it: np.void, now_s: float) -> int:
    """Whole iterations since the anchor: boundary j lies at j·A + G·j(j−1)/2 after it."""
    since = max(now_s - float(it["anchor_t"]), 0.0)
    half = float(it["first_s"] - it["slope_s"] / 2)
    done = 2 * since / (half + np.sqrt(half * half + 2 * float(it["slope_s"]) * since))
    return min(int(done + 1e-6), max(int(it["event_at"]) - 1, 0))


def _decodes(
    sim: Simulation, kv_bytes: list[int], iteration_s: list[float], arriving: list[float], shares: list[float]
) -> tuple[Decode, ...]:
    views, cluster = sim.block.views, sim.cluster
    n_prefill, n = len(cluster.prefill), len(cluster.decode)
    queues = views["queue"]["count"][lists.FIRST_QUEUE + n_prefill :]  # (6·D + …): receive, granted, ready, preempted
    out = []
    for i, (facts, row) in enumerate(zip(cluster.decode, views["batch"][:n], strict=True)):
        out.append(
            Decode(
                name=_name(cluster, "decode", i),
                rack=facts.rack,
                state=STATES[row["state"]],
                sequences=int(row["active"]),
                max_batch=int(row["max_batch"]),
                iteration_s=iteration_s[i],
                restoring=bool(row["doing"] == STOPPED),
                running_bytes=kv_bytes[i],
                reserved_bytes=int(row["reserved"]),
                kv_bytes=int(row["capacity"]),
                receiving_requests=int(queues[i]),
                ready_requests=int(queues[2 * n + i]),
                preempted_requests=int(queues[3 * n + i]),
                ingress_bytes_per_s=arriving[i],
                ingress_share=max((shares[row[i].ports[-1]] for row in cluster.paths), default=0.0),
            )
        )
    return tuple(out)


def _colocated(sim: Simulation, kv_bytes: list[int], iteration_s: list[float]) -> tuple[Colocated, ...]:
    views, cluster = sim.block.views, sim.cluster
    n_decode = len(cluster.decode)
    first_queue = lists.FIRST_QUEUE + len(cluster.prefill) + 5 * n_decode
    queues = views["queue"]["count"][first_queue:]
    out = []
    for i, (facts, row) in enumerate(zip(cluster.colocated, views["batch"][n_decode:], strict=True)):
        mixed = bool(row["doing"] == MIXED)
        passed_s = sim.now - float(row["anchor_t"]) if mixed else 0.0
        out.append(
            Colocated(
                name=_name(cluster, "colocated", i),
                rack=facts.rack,
                waiting_requests=int(queues[i] - row["started"]),
                prefilling_requests=int(row["started"]),
                sequences=int(row["active"]),
                max_batch=int(row["max_batch"]),
                iteration_s=iteration_s[n_decode + i],
                mixed=mixed,
                step_share=min(max(passed_s / float(row["first_s"]), 0.0), 1.0) if mixed else 0.0,
                step_left_s=max(float(row["first_s"]) - passed_s, 0.0) if mixed else 0.0,
                running_bytes=kv_bytes[n_decode + i],
                reserved_bytes=int(row["reserved"]),
                kv_bytes=int(row["capacity"]),
            )
        )
    return tuple(out)


# ---- transfers -------------------------------------------------------------------------------------


class _Flowing(NamedTuple):
    """A request whose KV is being sent."""

    prefill: int
    decode: int
    wire: int
    bytes_per_s: float
    left_bytes: float


def _flowing(sim: Simulation) -> list[_Flowing]:
    rows = sim.block.views["request"]
    rows = rows[(rows["id"] >= 0) & (rows["flow_state"] == FLOWING)]
    left = np.maximum(rows["bytes"] - rows["sent"] - rows["rate"] * (sim.now - rows["sent_t"]), 0.0)
    columns = (rows["p"], rows["d"], rows["wire"], rows["rate"], left)
    return list(map(_Flowing._make, zip(*(column.tolist() for column in columns), strict=True)))


def _port_rates(cluster: Cluster, flowing: list[_Flowing]) -> list[float]:
    """Bytes/s on each port now."""
    rates = [0.0] * len(cluster.ports)
    for it in flowing:
        for port in cluster.paths[it.prefill][it.decode].ports:
            rates[port] += it.bytes_per_s
    return rates


def _ends(flowing: list[_Flowing], n_prefill: int, n_decode: int) -> tuple[list[float], list[float]]:
    """Bytes/s that leave each prefill instance and reach each decode instance now."""
    out, into = [0.0] * n_prefill, [0.0] * n_decode
    for it in flowing:
        out[it.prefill] += it.bytes_per_s
        into[it.decode] += it.bytes_per_s
    return out, into


def _widest(cluster: Cluster) -> float:
    ways = [way for row in cluster.paths for way in row]
    ways = [way for way in ways if TIERS[way.tier] != "nvlink"] or ways
    return max((min(cluster.ports[k].bytes_per_s for k in way.ports) for way in ways), default=0.0)


def _flows(cluster: Cluster, flowing: list[_Flowing], shares: list[float]) -> tuple[Flow, ...]:
    groups: dict[tuple[int, int, int], list[_Flowing]] = {}
    for it in flowing:
        groups.setdefault((it.prefill, it.decode, it.wire), []).append(it)
    out = []
    for (p, d, wire), members in sorted(groups.items()):
        way = cluster.paths[p][d]
        port = max(way.ports, key=lambda k: shares[k])
        out.append(
            Flow(
                prefill=p,
                decode=d,
                precision=PRECISIONS[wire],
                tier=TIERS[way.tier],
                requests=len(members),
                bytes_per_s=sum(it.bytes_per_s for it in members),
                left_bytes=sum(it.left_bytes for it in members),
                port=cluster.ports[port].name,
                port_share=shares[port],
            )
        )
    return tuple(out)


# ---- requests --------------------------------------------------------------------------------------


def _head(sim: Simulation) -> Head | None:
    views, h = sim.block.views, sim.block.header
    slot = int(views["queue"][lists.GATEWAY_QUEUE]["head"])
    if slot < 0:
        return None
    it = views["request"][slot]
    mask = int(h["tier_precisions"][it["tier"]])
    return Head(
        number=int(it["id"]),
        prompt_tokens=int(it["prompt"]),
        predicted_tokens=int(it["predicted"]),
        waited_s=sim.now - float(it["arrival_t"]),
        tier=int(it["tier"]),
        precisions=tuple(q for k, q in enumerate(PRECISIONS) if mask >> k & 1),
        held=bool(np.isfinite(it["hold_since_t"])),
    )


def _gateway_prompts(sim: Simulation) -> tuple[int, ...]:
    rows = sim.block.views["request"]
    slot = int(sim.block.views["queue"][lists.GATEWAY_QUEUE]["head"])
    tokens: list[int] = []
    while slot >= 0 and len(tokens) < QUEUE_SHOWN:
        tokens.append(int(rows[slot]["prompt"]))
        slot = int(rows[slot]["link_next"][LINK_PREFILL])
    return tuple(tokens)


def _stages(sim: Simulation) -> tuple[int, ...]:
    """Requests in each of STAGES. Layer-wise transfers count as prefill until it has ended."""
    rows = sim.block.views["request"]
    rows = rows[rows["id"] >= 0]
    decoding = np.isin(rows["decode_state"], (READY, ACTIVE_SEQ, PREEMPTED))
    prefill = rows["prefill_state"][~decoding]
    gateway, started, sent = (int((prefill == state).sum()) for state in (AT_GATEWAY, STARTED, PREFILLED))
    return gateway, len(prefill) - gateway - started - sent, started, sent, int(decoding.sum())


def _counted(sim: Simulation, measured: slice | None) -> tuple[slice, tuple[tuple[float, float, float], ...]]:
    """The rows that have arrived and count, and the parts of joint TPOT of the last completed ones."""
    arrived = int(sim.block.header["next_arrival"])
    first, last, _ = (measured or slice(None)).indices(arrived)
    rows = slice(first, max(last, first))
    records = sim.records[rows]
    done = np.flatnonzero(records["status"] == COMPLETED)
    done = done[np.argsort(records["finish_s"][done], kind="stable")][-RECENT_SHOWN:]
    times = request_times(sim.cluster, sim.arrivals[rows][done], records[done], sim.now)
    parts = zip(times.prefill_s.tolist(), times.transfer_s.tolist(), times.decode_s.tolist(), strict=True)
    return rows, tuple(parts)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _busy(rows: np.ndarray) -> float | None:
    active_s = float(rows["active_s"].sum())
    return min(float(rows["busy_s"].sum()) / active_s, 1.0) if active_s > 0.0 else None


def _memory(instances: Sequence[Decode | Colocated]) -> float | None:
    capacity = sum(it.kv_bytes for it in instances)
    return sum(it.running_bytes + it.reserved_bytes for it in instances) / capacity if capacity else None


def _slo_share(sim: Simulation, times: RequestTimes) -> tuple[float | None, int]:
    """Share of the ended requests that met both limits, and their number; no share without limits."""
    h = sim.block.header
    met = meets_slo(times, float(h["ttft_limit_s"]), float(h["tpot_limit_s"]))
    limited = np.isfinite(h["ttft_limit_s"]) or np.isfinite(h["tpot_limit_s"])
    return (_mean(met) if limited else None), int(met.sum())


def _running(
    sim: Simulation,
    counted: slice,
    ports: list[Port],
    decodes: tuple[Decode, ...],
    colocated: tuple[Colocated, ...],
) -> Running:
    arrivals, records = sim.arrivals[counted], sim.records[counted]
    ended = np.flatnonzero(records["status"] != WAITING)
    times = request_times(sim.cluster, arrivals[ended], records[ended], sim.now)
    done = times.completed
    slo_share, met = _slo_share(sim, times)
    span_s = sim.now - float(arrivals["arrival_s"][0]) if len(arrivals) else 0.0
    totals: Totals = sim.totals()
    busiest = max(ports, key=lambda port: port.share, default=None) if sim.cluster.paths else None
    serving = [it for it in decodes if it.state in (STATES[ACTIVE], STATES[DRAINING])]
    return Running(
        arrived=len(arrivals),
        ended=len(ended),
        completed=int(done.sum()),
        joint_tpot_s=_mean(times.joint_tpot_s[done]),
        prefill_s=_mean(times.prefill_s[done]),
        transfer_s=_mean(times.transfer_s[done]),
        decode_s=_mean(times.decode_s[done]),
        slo_share=slo_share,
        goodput_per_s=met / span_s if slo_share is not None and span_s > 0.0 else None,
        prefill_busy=_busy(totals.prefill),
        colocated_busy=_busy(totals.colocated),
        decode_memory=_memory(serving),
        colocated_memory=_memory(colocated),
        busiest_port=busiest.name if busiest and busiest.bytes_per_s > 0.0 else "",
        busiest_share=busiest.share if busiest else None,
        preemptions=int(sim.block.header["preemptions"]),
    )
