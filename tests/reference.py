"""The reference simulator: `docs/model.md` in plain Python, one event for every iteration and every flow change.

It shares no code with the engine beyond the layouts of what goes in and out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from reference_parts import ACTIVE, DRAINING, OFF, WARMING, Colocated, Decode, Instance, Prefill, Request
from reference_serving import Serving
from reference_state import KINDS
from scripted import Script

from pdenv.sim.records import INSTANCE_TOTALS, REJECTED, TOO_LARGE, UNFINISHED, WAITING
from pdenv.topology import N_PRECISIONS, Cluster

TIE_S = 1e-9
#: Within an instant: events by (time, kind, index), or by (kind, index) alone, which rounding cannot disturb.
TIES_BY_KIND = True
IDLE_KINDS = ("timer", "scrape", "control")  # none of them alone leads anywhere
IDLE_EVENTS = 1000


@dataclass(frozen=True)
class ReferenceResult:
    records: np.ndarray  # (n,) RECORD
    totals: dict[str, Any]  # the fields of Totals, with `gaps` in place of the histogram
    happened: Counter[str]  # how often what occurred
    time_s: float


class Reference(Serving):
    def __init__(self, cluster: Cluster, arrivals: np.ndarray, blocks: np.ndarray, script: Script) -> None:
        super().__init__(cluster, len(arrivals))
        self.script = script
        self.gateway: list[Request] = []
        self.delivering: list[Request] = []
        self.asleep = False
        self.hold_version = 0
        self.idle = 0
        self.tick_due = 0
        self.requests = []
        for i, a in enumerate(arrivals):
            hashes = blocks[a["block_start"] : a["block_start"] + a["block_count"]].tolist()
            r = Request(
                i,
                int(a["prompt_tokens"]),
                int(a["output_tokens"]),
                int(a["tier"]),
                int(a["priority"]),
                hashes,
            )
            self.requests.append(r)
            self.push(float(a["arrival_s"]), "arrival", i, r)
        self.instances: dict[str, list[Any]] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "colocated": self.colocated,
        }
        self.totals = {pool: np.zeros(len(members), INSTANCE_TOTALS) for pool, members in self.instances.items()}
        self.starved = 0.0
        self.tick("scrape", 1)
        self.tick("control", 1)

    # ---- time

    def run(self, until_s: float) -> float:
        while (top := self.peek()) is not None and top[0] <= until_s:
            if all(r.ended for r in self.requests):
                break
            self.instant(top[0], until_s)
            self.check()
            if self.idle > IDLE_EVENTS:
                self.happened["stuck"] += 1
                break
        if until_s < inf:
            self.advance(until_s)
        return self.t

    def peek(self) -> tuple | None:
        while self.heap and self.is_stale(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def is_stale(self, event: tuple) -> bool:
        kind, payload = KINDS[event[1]], event[4]
        if kind in ("transfer", "decode", "colocated"):
            return payload[1] != payload[0].version
        if kind == "delivery":
            return payload[0] not in self.delivering or payload[1] != payload[0].dispatch_no
        if kind == "timer" and payload[0] == "hold":
            return payload[1] != self.hold_version
        if kind == "timer":
            return payload[2] != payload[1].timer_version
        return False

    def instant(self, t0: float, until_s: float) -> None:
        self.visible = False
        taken = 0
        while (event := self.next_event(min(t0 + TIE_S, until_s))) is not None:
            time, kind, _, _, payload = event
            taken += 1
            self.advance(max(time, self.t))
            self.idle = self.idle + 1 if KINDS[kind] in IDLE_KINDS else 0
            self.handle(KINDS[kind], payload, time)
        self.happened["tie"] += taken > 1
        self.settle(self.t)

    def next_event(self, limit: float) -> tuple | None:
        """Take the next event up to `limit`: the earliest one, or with TIES_BY_KIND the first by kind and index."""
        top = self.peek()
        if top is None or top[0] > limit:
            return None
        if not TIES_BY_KIND:
            return heapq.heappop(self.heap)
        event = min((e for e in self.heap if e[0] <= limit and not self.is_stale(e)), key=lambda e: e[1:4])
        self.heap.remove(event)
        heapq.heapify(self.heap)
        return event

    def advance(self, t: float) -> None:
        dt = t - self.t
        assert dt >= 0.0, "clock went back"
        self.t = t
        self.move_flows(dt, t)
        for pool, members in self.instances.items():
            for inst in members:
                row = self.totals[pool][inst.index]
                row["busy_s"] += dt * inst.busy
                row["stalled_s"] += dt * (isinstance(inst, Prefill) and inst.stalled)
                row["active_s"] += dt * (inst.state in (ACTIVE, DRAINING))
                row["billed_s"] += dt * (inst.state != OFF)
                row["queue_s"] += dt * len(inst.queue)
                row["memory_byte_s"] += dt * self.memory(inst)
        if any(p.staged for p in self.prefill):
            self.starved += dt * sum(not d.busy and self.is_serving(d) for d in self.decode)

    def memory(self, inst: Prefill | Decode | Colocated) -> int:
        if isinstance(inst, Prefill):
            return inst.staged
        return self.decode_memory(inst) if isinstance(inst, Decode) else self.colocated_memory(inst)

    def handle(self, kind: str, payload: tuple, t: float) -> None:
        if kind == "transfer":
            self.flow_event(payload[0], payload[2], t)
        elif kind == "prefill":
            self.end_prefill_step(payload[0], t)
        elif kind == "decode":
            self.end_decode_step(payload[0], t)
        elif kind == "colocated":
            self.end_mixed_step(payload[0], t)
        elif kind == "delivery":
            self.delivering.remove(payload[0])
            self.deliver(payload[0])
        elif kind == "timer":
            self.timer(payload, t)
        elif kind == "scrape":
            self.see("scrape")
            self.tick("scrape", payload[0] + 1)
        elif kind == "control":
            self.tick_due = payload[0]
            self.tick("control", payload[0] + 1)
        else:
            self.arrive(payload[0], t)

    def tick(self, kind: str, k: int) -> None:
        """The k-th scrape is known `scrape_delay_s` after it was taken; the k-th control tick is at once."""
        c = self.cluster
        every, late = (c.scrape_interval_s, c.scrape_delay_s) if kind == "scrape" else (c.scaling_interval_s, 0.0)
        if every > 0.0:
            self.push(k * every + late, kind, 0, k)

    def timer(self, payload: tuple, t: float) -> None:
        if payload[0] == "hold":
            self.asleep = False
        elif payload[0] == "warm":
            self.set_state(payload[1], ACTIVE)
        else:
            self.drain_deadline(payload[1])

    def settle(self, now: float) -> None:
        if self.tick_due:
            self.control(self.tick_due, now)
            self.tick_due = 0
        self.pair()
        for d in self.decode:
            self.next_decode_step(d, now)
        for h in self.colocated:
            self.next_mixed_step(h, now)
        self.finish_drains(now)
        self.pair()  # reservations revoked on a draining instance
        for d in self.decode:
            self.serve(d, now)
        self.offer(now)
        for h in self.colocated:
            self.next_mixed_step(h, now)  # idle ones that got work just now
        for p in self.prefill:
            self.start_prefill(p, now)
        self.solve(now)

    # ---- gateway

    def arrive(self, r: Request, t: float) -> None:
        self.see("arrival")
        if self.is_servable(r):
            self.gateway.append(r)
        else:
            self.end(r, TOO_LARGE, t)

    def allows(self, r: Request, precision: int) -> bool:
        return bool(self.cluster.tier_precisions[r.tier] >> precision & 1)

    def store_of(self, d: int, wire: int) -> int:
        return wire if self.cluster.mixed_store else self.cluster.decode[d].store_precision

    def fits_decode(self, r: Request, d: int, wire: int) -> bool:
        """The prompt fits the instance's memory in the precision it would have there, and its tier allows that."""
        store = self.store_of(d, wire)
        fits = r.prompt * self.cluster.kv_bytes_per_token[store] <= self.cluster.decode[d].kv_bytes
        return fits and self.allows(r, store)

    def fits_prefill(self, r: Request, p: int) -> bool:
        spec = self.cluster.prefill[p]
        return r.prompt * spec.kv_bytes_per_token <= spec.staging_bytes

    def fits_colocated(self, r: Request, h: int) -> bool:
        spec = self.cluster.colocated[h]
        fits = (r.prompt + 1) * self.cluster.kv_bytes_per_token[spec.store_precision] <= spec.kv_bytes
        return fits and self.allows(r, spec.store_precision)

    def is_servable(self, r: Request) -> bool:
        wires = [q for q in range(N_PRECISIONS) if self.allows(r, q)]
        return any(self.fits_colocated(r, h.index) for h in self.colocated) or (
            any(self.fits_prefill(r, p.index) for p in self.prefill)
            and any(self.fits_decode(r, d.index, q) for d in self.decode for q in wires)
        )

    def legal(self, r: Request) -> tuple[list[tuple[int, int, int]], list[int]]:
        prefills = [p.index for p in self.prefill if p.state == ACTIVE and self.fits_prefill(r, p.index)]
        decodes = [d.index for d in self.decode if d.state == ACTIVE]
        wires = [q for q in range(N_PRECISIONS) if self.allows(r, q)]
        if self.bind_late:
            pairs = [(p, -1, q) for p in prefills for q in wires]
        else:
            pairs = [(p, d, q) for p in prefills for d in decodes for q in wires if self.fits_decode(r, d, q)]
        return pairs, [h.index for h in self.colocated if self.fits_colocated(r, h.index)]

    def offer(self, now: float) -> None:
        if self.asleep and not self.visible:
            return
        self.asleep = False
        self.hold_version += 1
        while self.gateway:
            r = self.gateway[0]
            pairs, colocated = self.legal(r)
            if not pairs and not colocated:
                self.hold(now)
                return
            may_hold = r.first_hold is None or now + TIE_S < r.first_hold + self.cluster.hold_max_s
            self.happened["hold_expired"] += not may_hold
            choice = self.script.route(r.i, r.attempts, pairs, colocated, may_hold, self.cluster.allow_reject)
            r.attempts += 1
            if choice[0] == "hold":
                assert may_hold
                r.first_hold = now if r.first_hold is None else r.first_hold
                self.happened["hold"] += 1
                self.hold(now)
                return
            self.gateway.pop(0)
            if choice[0] == "reject":
                self.end(r, REJECTED, now)
            else:
                assert choice[1:] in pairs or choice[1:] in [(h,) for h in colocated]
                self.dispatch(r, choice, now)

    def hold(self, now: float) -> None:
        self.asleep = True
        self.hold_version += 1
        self.push(now + self.cluster.hold_max_s, "timer", (2, 0), "hold", self.hold_version)

    def dispatch(self, r: Request, choice: tuple, now: float) -> None:
        row = self.records
        if np.isnan(row["dispatch_s"][r.i]):
            row["dispatch_s"][r.i] = now
        r.dispatch_no = self.number()
        if choice[0] == "colocated":
            r.h = choice[1]
            r.store = self.cluster.colocated[r.h].store_precision
            row["colocated"][r.i], row["store_precision"][r.i], row["mode"][r.i] = r.h, r.store, 2
        else:
            _, r.p, d, r.q = choice
            row["prefill"][r.i], row["wire_precision"][r.i], row["mode"][r.i] = r.p, r.q, 1
            if d >= 0:
                self.choose_decode(r, d)
                if self.reserve == "dispatch":
                    self.ask(r, now)
        if self.cluster.control_plane_delay_s > 0.0:
            self.delivering.append(r)
            self.push(now + self.cluster.control_plane_delay_s, "delivery", r.dispatch_no, r, r.dispatch_no)
        else:
            self.deliver(r)

    def choose_decode(self, r: Request, d: int) -> None:
        r.d, r.store = d, self.store_of(d, r.q)
        self.records["decode"][r.i], self.records["store_precision"][r.i] = d, r.store

    def deliver(self, r: Request) -> None:
        self.see("delivery")
        (self.colocated[r.h] if r.h >= 0 else self.prefill[r.p]).queue.append(r)

    def pair(self) -> None:
        """Choose a decode instance for those that have none (any more) and can have one."""
        for r in list(self.pairing):
            decodes = [d.index for d in self.decode if d.state == ACTIVE and self.fits_decode(r, d.index, r.q)]
            if not decodes:
                continue
            d = self.script.pair(r.i, r.attempts, decodes)
            r.attempts += 1
            self.pairing.remove(r)
            self.choose_decode(r, d)
            if r.on_decode:
                self.decode[d].preempted.append(r)
            elif r.asked:
                self.decode[d].queue.append(r)

    # ---- scaling

    def set_state(self, inst: Instance, state: str) -> None:
        inst.state = state
        inst.timer_version += 1
        self.see("state")
        self.happened[f"to_{state}"] += 1

    def control(self, tick: int, t: float) -> None:
        prefill_delta, decode_delta, flip = self.script.scale(tick)
        for pool, delta in ((self.prefill, prefill_delta), (self.decode, decode_delta)):
            if delta > 0:
                self.grow_pool(pool, t)
            elif delta < 0:
                self.drain(pool, False, t)
        if flip:
            self.drain(self.prefill if flip == 1 else self.decode, True, t)

    def grow_pool(self, pool: list[Any], t: float) -> None:
        off = [inst for inst in pool if inst.state == OFF]
        if not off:
            return
        if self.gpus_on() + off[0].spec.gpus > self.cluster.gpu_budget:
            self.happened["over_budget"] += 1
            return
        self.warm(off[0], off[0].spec.startup_s, t)

    def gpus_on(self) -> int:
        return sum(inst.spec.gpus for pool in self.instances.values() for inst in pool if inst.state != OFF)

    def timer_index(self, inst: Instance) -> tuple[int, int]:
        return (0 if isinstance(inst, Prefill) else 1, inst.index)

    def warm(self, inst: Instance, seconds: float, t: float) -> None:
        self.set_state(inst, WARMING)
        self.push(t + seconds, "timer", self.timer_index(inst), "warm", inst, inst.timer_version)

    def drain(self, pool: list[Any], flip: bool, t: float) -> None:
        other = self.decode if pool is self.prefill else self.prefill
        if flip and not any(o.state == OFF for o in other):
            return
        active = [inst for inst in pool if inst.state == ACTIVE]
        if len(active) < 2:
            return
        inst = min(active, key=lambda inst: (self.resident(inst), inst.index))
        self.set_state(inst, DRAINING)
        inst.flip = flip
        if isinstance(inst, Prefill):
            back = inst.queue + [r for r in self.delivering if r.h < 0 and r.p == inst.index]
            for r in back:
                self.take_back(inst, r)
            self.gateway = sorted([*back, *self.gateway], key=lambda r: r.i)
            self.happened["taken_back"] += len(back)
        else:
            waiting = list(inst.queue)
            waiting += [r for r in self.requests if r.d == inst.index and r not in waiting and self.is_waiting(r)]
            inst.queue.clear()
            self.pairing += [r for r in waiting if r not in self.pairing]
            self.happened["paired_again"] += len(waiting)
            self.push(t + self.cluster.drain_max_s, "timer", (1, inst.index), "drain", inst, inst.timer_version)

    def is_waiting(self, r: Request) -> bool:
        """Bound to a decode instance on which it has nothing yet."""
        return not (r.ended or r.granted or r.transferred)

    def take_back(self, p: Prefill, r: Request) -> None:
        """An unstarted request returns to the gateway as if it had not been dispatched."""
        (p.queue if r in p.queue else self.delivering).remove(r)
        self.release_decode(r)
        r.p = r.d = r.q = r.store = -1
        r.asked = False
        row = self.records[r.i : r.i + 1]
        row["prefill"] = row["decode"] = row["wire_precision"] = row["store_precision"] = -1
        row["mode"] = 0
        row["grant_s"] = np.nan

    def drain_deadline(self, d: Decode) -> None:
        """What a draining instance still holds goes elsewhere: reservations, then running, then preempted ones."""
        moved: list[Request] = []
        for r in list(d.reserved):
            self.revoke(d, r)
        running = d.active + [r for r in (d.restoring,) if r is not None]
        for r in d.active:
            self.preempt(r)
        moved += running + sorted(d.preempted, key=self.restore_order)
        for r in moved:
            r.lost = True
        self.pairing += moved
        d.active, d.preempted, d.restoring, d.stopped, d.busy = [], [], None, False, False
        d.version += 1
        self.happened["drain_deadline"] += 1
        self.happened["moved"] += len(moved)

    def finish_drains(self, t: float) -> None:
        for pool, other in ((self.prefill, self.decode), (self.decode, self.prefill)):
            for inst in pool:
                if inst.state == DRAINING and self.is_empty(inst):
                    self.set_state(inst, OFF)
                    off = [o for o in other if o.state == OFF]
                    if inst.flip and off and self.gpus_on() + off[0].spec.gpus <= self.cluster.gpu_budget:
                        self.happened["flip"] += 1
                        self.warm(off[0], self.cluster.flip_delay_s, t)
                    inst.flip = False

    # ---- checks and results

    def check(self) -> None:
        """What must hold after every instant."""
        for p in self.prefill:
            assert 0 <= p.staged <= p.spec.staging_bytes
            assert p.staged == sum(r.staged for r in self.requests if r.p == p.index)
        for d in self.decode:
            assert 0 <= self.decode_memory(d) <= d.spec.kv_bytes
            assert len(d.active) + (d.restoring is not None) <= d.spec.max_batch
            assert d.busy or not (d.active or d.ready or d.preempted), "idle decode instance with work"
            assert set(map(id, d.ready)) <= set(map(id, d.reserved))
        for h in self.colocated:
            assert 0 <= self.colocated_memory(h) <= h.spec.kv_bytes
            assert len(h.active) + len(h.prefilling) <= h.spec.max_batch
            assert h.busy or not h.queue
        for flow in self.flows:
            assert flow.sent <= flow.size * (1 + 1e-12) and not flow.r.ended

    def result(self) -> ReferenceResult:
        rows = self.records
        for r in self.requests:
            rows["wire_bytes"][r.i] = r.wire_bytes + (r.flow.sent if r.flow else 0.0)
            rows["emitted"][r.i] = r.emitted
            assert r.ended == (rows["status"][r.i] != WAITING)
        rows["status"][rows["status"] == WAITING] = UNFINISHED
        totals: dict[str, Any] = dict(self.totals)
        totals |= {
            "time_s": self.t,
            "port_bytes": np.array(self.port_bytes),
            "decode_starved_s": self.starved,
        }
        totals |= {"gaps": self.gaps, "preemptions": int(rows["preemptions"].sum())}
        return ReferenceResult(rows, totals, self.happened, self.t)


def simulate(
    cluster: Cluster,
    arrivals: np.ndarray,
    blocks: np.ndarray,
    script: Script,
    until_s: float = inf,
) -> ReferenceResult:
    """Run `(n,)` ARRIVAL rows to the end, or to `until_s`.

    Raises AssertionError where memory, port rates, clocks or batch limits are violated.
    """
    reference = Reference(cluster, arrivals, blocks, script)
    reference.run(until_s)
    return reference.result()
