"""Conservation laws of a run, checked from outside: what must hold at every moment between two events.

`audit` reads the engine's block and changes nothing. It recomputes every sum that the engine keeps from the requests
themselves, so it is slow: for tests, and for whoever changes the engine.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim import lists
from pdenv.sim.engine import Simulation
from pdenv.sim.records import COMPLETED, WAITING
from pdenv.sim.state import (
    ACTIVE_SEQ,
    FLOW_ENDED,
    FLOWING,
    GRANTED,
    ITERATING,
    OFF,
    PREFILLED,
    READY,
    RECEIVING,
    STARTED,
    TAIL,
    TIE_S,
)

#: Relative room for rounding in sums of float64 byte counts.
ROUNDING = 1e-9

#: Times of a request, in the order in which they come.
ORDER = (
    ("arrival_s", "dispatch_s"),
    ("dispatch_s", "prefill_start_s"),
    ("prefill_start_s", "prefill_end_s"),
    ("prefill_end_s", "first_token_s"),
    ("grant_s", "transfer_end_s"),
    ("flow_start_s", "transfer_end_s"),
    ("prefill_end_s", "transfer_end_s"),
    ("prefill_end_s", "decode_start_s"),
    ("decode_start_s", "finish_s"),
    ("first_token_s", "second_token_s"),
    ("second_token_s", "finish_s"),
    ("arrival_s", "finish_s"),
)


def audit(sim: Simulation) -> None:
    """Check every conservation law on the present state of a run.

    Call it where `sim.run` or `sim.step` has stopped without a pending decision.

    Raises:
        AssertionError: which law is broken, on what, and by how much.
    """
    requests = sim.block.views["request"]
    alive = requests[requests["id"] >= 0]
    _audit_counts(sim, alive)
    _audit_gpus(sim)
    _audit_staging(sim, alive)
    for b in range(int(sim.block.header["n_decode"]) + int(sim.block.header["n_colocated"])):
        _audit_batch(sim, alive, b)
    _audit_queues(sim)
    _audit_flows(sim, alive)
    _audit_clocks(sim)


def audit_end(sim: Simulation) -> None:
    """Check that a run in which every request has ended holds nothing any more and has counted every token.

    Raises:
        AssertionError: what is left, or was not counted.
    """
    audit(sim)
    records, views = sim.records, sim.block.views
    waiting = np.flatnonzero(records["status"] == WAITING)
    assert waiting.size == 0, f"requests {waiting[:5].tolist()} have not ended"
    assert not views["prefill"]["staging_used"].any(), "KV is left in staging memory"
    for name in ("reserved", "kv", "growth", "active"):
        assert not views["batch"][name].any(), f"{name} is left in a batch: {views['batch'][name].tolist()}"
    assert not views["port"]["flows"].any(), "flows are left on a port"
    gaps = int(np.maximum(records["emitted"] - 1, 0).sum())
    counted = int(views["gap_bin"]["count"].sum())
    assert counted == gaps, f"{counted} gaps between tokens counted, {gaps} are between the tokens emitted"


def _equal(what: str, kept: float, true: float) -> None:
    assert kept == true, f"{what}: the engine keeps {kept}, its requests give {true}"


def _close(what: str, kept: float, true: float, scale: float) -> None:
    room = ROUNDING * max(1.0, abs(scale))
    assert abs(kept - true) <= room, f"{what}: the engine keeps {kept!r}, its requests give {true!r}"


def _audit_counts(sim: Simulation, alive: np.ndarray) -> None:
    """Everyone who arrived is either in the pool or has ended in one status."""
    h = sim.block.header
    ended = int(np.count_nonzero(sim.records["status"] != WAITING))
    _equal("requests ended", int(h["ended"]), ended)
    _equal("requests in flight", int(h["arrived"]) - ended, len(alive))
    assert len(np.unique(alive["id"])) == len(alive), "a request is in flight twice"
    assert np.all(sim.records["status"][alive["id"]] == WAITING), "a request has ended and is in flight"
    in_staging = _in_staging(alive)
    _equal("requests with KV in staging", int(h["in_flight"]), int(in_staging.sum()))


def _audit_gpus(sim: Simulation) -> None:
    h, views = sim.block.header, sim.block.views
    on = sum(int(rows["gpus"][rows["state"] != OFF].sum()) for rows in (views["prefill"], views["batch"]))
    _equal("GPUs on", int(h["gpus_on"]), on)
    cluster = sim.cluster
    start = sum(it.gpus for it in cluster.prefill if it.active)
    start += sum(it.gpus for it in cluster.decode if it.active)
    start += sum(it.gpus for it in cluster.colocated)
    assert on <= max(int(h["gpu_budget"]), start), f"{on} GPUs are on, the budget is {h['gpu_budget']}"


def _in_staging(alive: np.ndarray) -> np.ndarray:
    """(n,) bool: KV is in a prefill instance, from the start of prefill to the end of the transfer."""
    pairs = (alive["mode"] == 1) & (alive["p"] >= 0)
    begun = (alive["prefill_state"] == STARTED) | (alive["prefill_state"] == PREFILLED)
    return pairs & begun & (alive["flow_state"] != FLOW_ENDED)


def _audit_staging(sim: Simulation, alive: np.ndarray) -> None:
    held = alive[_in_staging(alive)]
    for p, box in enumerate(sim.block.views["prefill"]):
        used = int(held["prompt"][held["p"] == p].sum()) * int(box["kv_bytes_per_token"])
        _equal(f"staging bytes of prefill {p}", int(box["staging_used"]), used)
        _equal(f"staging bytes that schedulers see of prefill {p}", int(sim.block.views["load"][p]["kv_bytes"]), used)
        assert used <= box["staging_bytes"], f"staging of prefill {p}: {used} of {box['staging_bytes']} bytes"


def _audit_batch(sim: Simulation, alive: np.ndarray, b: int) -> None:
    """What a batch sums over its sequences, and that it stays within its memory."""
    h, box = sim.block.header, sim.block.views["batch"][b]
    name = f"batch {b}"
    active = _active_requests(sim, b)
    mine = alive[alive["b"] == b]
    if not box["colocated"]:  # there a sequence that is prefilled again keeps its state until it joins
        _equal(f"active sequences of {name}", int(box["active"]), int((mine["decode_state"] == ACTIVE_SEQ).sum()))
    _equal(f"reserved bytes of {name}", int(box["reserved"]), int(mine["grant_bytes"].sum()))
    each = h["kv_bytes_per_token"][active["store"]]
    emitted = active["emitted"] + box["iterations"] - active["joined_at"]
    context = active["prompt"] + emitted
    _equal(f"KV bytes of {name}", int(box["kv"]), int((context * each).sum()))
    _equal(f"growth of {name}", int(box["growth"]), int(each.sum()))
    for q in range(len(box["count"])):
        stored = active["store"] == q
        _equal(f"sequences of {name} in precision {q}", int(box["count"][q]), int(stored.sum()))
        _equal(f"context of {name} in precision {q}", int(box["context"][q]), int(context[stored].sum()))
    done = _iterations_done(sim, b)
    assert np.all(emitted + done < active["output"]), f"{name} goes on after a sequence's last token"
    used = int(box["reserved"]) + int(box["kv"]) + int(box["growth"]) * done
    assert used <= box["capacity"], f"KV memory of {name}: {used} of {box['capacity']} bytes"
    assert box["active"] <= box["max_batch"], f"{name} has {box['active']} sequences, at most {box['max_batch']}"


def _active_requests(sim: Simulation, b: int) -> np.ndarray:
    """The batch's sequences by its heap, which must be one."""
    views, box = sim.block.views, sim.block.views["batch"][b]
    base = b * int(sim.block.header["heap_stride"])
    heap = views["heap"][base : base + int(box["active"])]
    active = views["request"][heap["request"]]
    assert np.all(active["b"] == b), f"the heap of batch {b} holds a request of another one"
    assert np.all(active["decode_state"] == ACTIVE_SEQ), f"the heap of batch {b} holds a sequence that is not active"
    _equal(f"different sequences in the heap of batch {b}", len(heap), len(np.unique(active["id"])))
    assert np.all(heap["key"] == active["finish_at"]), f"the heap of batch {b} is not keyed by its sequences' ends"
    parent = (np.arange(1, len(heap)) - 1) // 2
    assert np.all(heap["key"][parent] <= heap["key"][1:]), f"the heap of batch {b} is out of order"
    return active


def _iterations_done(sim: Simulation, b: int) -> int:
    """Iterations of the leap under way that have ended, stepped one by one from the anchor."""
    box = sim.block.views["batch"][b]
    if box["doing"] != ITERATING:
        return 0
    done, t = 0, float(box["anchor_t"])
    while done < box["event_at"] - 1:
        t += float(box["first_s"]) + done * float(box["slope_s"])
        if t > sim.now + TIE_S:
            break
        done += 1
    return done


def _audit_queues(sim: Simulation) -> None:
    """Linked lists run from head to tail and back, hold as many as they say, and who is in them belongs there."""
    h, views = sim.block.header, sim.block.views
    n_prefill, n_decode, n_colocated = int(h["n_prefill"]), int(h["n_decode"]), int(h["n_colocated"])
    first = lists.FIRST_QUEUE + n_prefill
    for q, (link, name) in enumerate(_queue_names(n_prefill, n_decode, n_colocated)):
        members = _walk(sim, q, link, name)
        if first <= q < first + 3 * n_decode:
            d, kind = (q - first) % n_decode, (q - first) // n_decode
            states = ((RECEIVING,), (GRANTED, READY), (READY,))[kind]
            rows = views["request"][members]
            assert np.all(rows["d"] == d), f"{name} of decode {d} holds a request of another instance"
            assert np.all(np.isin(rows["decode_state"], states)), f"{name} of decode {d} holds one that is elsewhere"
            if kind == 0:
                depth = int(views["load"][n_prefill + d]["receiving"])
                _equal(f"receive-queue depth that schedulers see of decode {d}", depth, len(members))


def _queue_names(n_prefill: int, n_decode: int, n_colocated: int) -> list[tuple[int, str]]:
    """(link, name) of every queue, in the order of `pdenv.sim.lists`."""
    rows = [(0, "gateway"), (0, "delivery"), (1, "pairing")]
    rows += [(0, "prefill queue")] * n_prefill
    for link, name in ((1, "receive queue"), (1, "granted"), (2, "ready"), (2, "preempted"), (3, "inbound flows")):
        rows += [(link, name)] * n_decode
    return rows + [(0, "co-located queue")] * n_colocated + [(2, "fresh")] * (n_decode + n_colocated)


def _walk(sim: Simulation, q: int, link: int, name: str) -> list[int]:
    queue, requests = sim.block.views["queue"][q], sim.block.views["request"]
    members, before, r = [], -1, int(queue["head"])
    while r >= 0:
        assert requests["id"][r] >= 0, f"{name} holds a request that has ended"
        assert requests["link_prev"][r, link] == before, f"{name} does not run back"
        members.append(r)
        assert len(members) <= len(requests), f"{name} runs in a circle"
        before, r = r, int(requests["link_next"][r, link])
    _equal(f"tail of {name}", int(queue["tail"]), before)
    _equal(f"length of {name}", int(queue["count"]), len(members))
    return members


def _audit_flows(sim: Simulation, alive: np.ndarray) -> None:
    """No port above its capacity, no flow ahead of its KV, and every byte on the wire is on its path's ports."""
    ports, path_rows = sim.block.views["port"], sim.block.views["path"]
    n_decode = int(sim.block.header["n_decode"])
    on_wire = alive[(alive["flow_state"] == FLOWING) | (alive["flow_state"] == TAIL)]
    rates, counts = np.zeros(len(ports)), np.zeros(len(ports), np.int64)
    for it in on_wire:
        sent = _sent(sim, it)
        room = ROUNDING * max(1.0, float(it["bytes"]))
        assert -room <= sent <= it["bytes"] + room, f"request {it['id']} has sent {sent} of {it['bytes']} bytes"
        assert sent <= _available(sim, it) + room, f"request {it['id']} has sent {sent} bytes, more than there are"
        if it["flow_state"] != FLOWING:
            continue
        way = path_rows[it["p"] * n_decode + it["d"]]
        mine = way["port"][: way["hops"]]
        rates[mine] += it["rate"]
        counts[mine] += 1
        own = ports["capacity"][mine].min()
        assert 0.0 <= it["rate"] <= own * (1 + ROUNDING), f"request {it['id']} flows at {it['rate']} of {own} bytes/s"
    assert np.array_equal(counts, ports["flows"]), "a port does not count its flows"
    if sim.cluster.contention:
        over = np.flatnonzero(rates > ports["capacity"] * (1 + ROUNDING))
        assert over.size == 0, f"ports {over.tolist()} carry {rates[over]} of {ports['capacity'][over]} bytes/s"
    _audit_carried(sim, on_wire)


def _sent(sim: Simulation, it: np.void) -> float:
    if it["flow_state"] != FLOWING:
        return float(it["sent"])
    return float(it["sent"]) + float(it["rate"]) * max(sim.now - float(it["sent_t"]), 0.0)


def _available(sim: Simulation, it: np.void) -> float:
    """Bytes of the request's KV that exist layer by layer, and could have been sent by now."""
    if it["prefill_state"] == PREFILLED:
        return float(it["bytes"])
    if not sim.cluster.layerwise:
        return 0.0
    uncached = float(it["tokens"] - it["cached"])
    ready = float(it["bytes"]) * it["done"] / uncached
    source = sim.block.views["prefill"][it["p"]]
    if it["step"] > 0:
        span = float(source["step_end"] - source["step_start"])
        layer = min(max((sim.now - float(source["step_start"])) / span - 1 / sim.cluster.layers, 0.0), 1.0)
        ready += float(it["bytes"]) * it["step"] / uncached * layer
    return ready


def _audit_carried(sim: Simulation, on_wire: np.ndarray) -> None:
    """Bytes carried by the first ports of all paths are the bytes that requests have sent."""
    rows = sim.block.views["path"]
    first = {int(row["port"][0]) for row in rows if row["hops"]}
    if first & {int(k) for row in rows for k in row["port"][1 : row["hops"]]}:
        return  # a port that is first on one path and not on another cannot be told apart
    carried = sum(float(sim.block.views["port"]["carried"][k]) for k in first)
    carried += sum(_sent(sim, it) for it in on_wire if it["flow_state"] == FLOWING)
    sent = float(sim.records["wire_bytes"].sum()) + sum(_sent(sim, it) for it in on_wire)
    _close("bytes carried by the ports", carried, sent, sent)


def _audit_clocks(sim: Simulation) -> None:
    """Times of every request are in order, and nothing lies in the future."""
    times = {name: sim.records[name] for name in sim.records.dtype.names or () if name.endswith("_s")}
    times["arrival_s"] = sim.arrivals["arrival_s"]
    for before, after in ORDER:
        late = np.flatnonzero(times[before] > times[after] + TIE_S)  # NaN: never came
        late = late[_comparable(sim, before, after)[late]]
        assert late.size == 0, f"{before} is after {after} for requests {late[:5].tolist()}"
    for name, values in times.items():
        if name != "arrival_s":
            future = np.flatnonzero(values > sim.now + TIE_S)
            assert future.size == 0, f"{name} of requests {future[:5].tolist()} is after the present {sim.now}"
    records = sim.records
    assert np.all(records["emitted"] <= sim.arrivals["output_tokens"]), "a request emitted more than its output"
    done = records["status"] == COMPLETED
    complete = records["emitted"][done] == sim.arrivals["output_tokens"][done]
    assert np.all(complete), "a request completed without all of its tokens"


def _comparable(sim: Simulation, before: str, after: str) -> np.ndarray:
    """(n,) bool: grant and transfer belong together only where a request was not paired again afterwards."""
    if (before, after) in (("grant_s", "transfer_end_s"), ("flow_start_s", "transfer_end_s")):
        return (sim.records["revocations"] == 0) & (sim.records["preemptions"] == 0)
    return np.ones(len(sim.records), bool)


__all__ = ["audit", "audit_end"]
