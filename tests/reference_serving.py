"""What instances do: prefill steps, decode memory and iterations, co-located iterations."""

from __future__ import annotations

import numpy as np
from reference_parts import (
    ACTIVE,
    DRAINING,
    SHORTEST_S,
    Colocated,
    Decode,
    Prefill,
    Request,
    decode_time,
    mixed_time,
    prefill_time,
)
from reference_state import State

from pdenv.sim.records import COMPLETED, FAILED_OOM


class Serving(State):
    """The steps of all instances and the rules of decode memory; nothing here asks a scheduler."""

    # ---- prefill

    def start_prefill(self, p: Prefill, now: float) -> None:
        if p.busy:
            return
        step, starting = self.compose_prefill(p)
        p.stalled = not step and bool(p.queue)
        if not step:
            return
        duration = prefill_time(p.profile, [(r.done, x) for r, x in step])
        p.step, p.busy = step, True
        for r, x in step:
            r.chunk = (now, now + duration, x)
        self.flows_changed = True
        self.push(now + duration, "prefill", p.index, p)
        for r in starting:
            self.records["prefill_start_s"][r.i] = now
            if self.reserve == "prefill_start":
                self.ask(r, now)
            elif r.asked and not r.granted and r not in self.pairing:
                self.serve(self.decode[r.d], now)  # it holds staging memory now: see break_standoff
        for r, _ in step:
            self.start_flow(r, now)

    def compose_prefill(self, p: Prefill) -> tuple[list[tuple[Request, int]], list[Request]]:
        spec = p.spec
        budget = spec.max_batch_tokens
        step: list[tuple[Request, int]] = []
        starting: list[Request] = []
        while p.started and budget > 0 and len(step) < spec.max_batch_requests:
            r = p.started.pop(0)
            step.append((r, min(r.prompt - r.done, budget)))
            budget -= step[-1][1]
        order = sorted(p.queue, key=lambda r: r.prompt) if spec.sjf else list(p.queue)
        for r in order:
            if budget <= 0 or len(step) >= spec.max_batch_requests:
                break
            size = r.prompt * spec.kv_bytes_per_token
            if p.staged + size > spec.staging_bytes:
                break
            new = r.prompt - p.cache.hit_tokens(r)
            if not spec.chunked and step and new > budget:
                break
            p.queue.remove(r)
            p.staged += size
            r.staged, r.started, r.target = size, True, r.prompt
            r.cached = r.done = r.prompt - new
            p.cache.touch_hits(r)
            self.records["cached_tokens"][r.i] = r.cached
            x = min(new, budget) if spec.chunked else new
            self.happened["chunk"] += x < new
            self.happened["prefix_hit"] += r.cached > 0
            step.append((r, x))
            starting.append(r)
            budget -= x
        self.happened["prefill_batch"] += len(step) > 1
        return step, starting

    def end_prefill_step(self, p: Prefill, t: float) -> None:
        self.see("step")
        step, p.step, p.busy = p.step, [], False
        for r, x in step:
            r.done += x
            r.chunk = None
            if r.flow is not None:
                r.flow.tight = False
                self.flows_changed = True
            if r.done < r.prompt:
                p.started.append(r)
            else:
                self.end_prefill(p, r, t)

    def end_prefill(self, p: Prefill, r: Request, t: float) -> None:
        r.prefilled = True
        p.cache.insert(r)
        self.records["prefill_end_s"][r.i] = t
        if not self.cluster.decode_first:
            self.emit(r, t)
            if r.output == 1:
                self.happened["one_token"] += 1
                self.end(r, COMPLETED, t)
                return
        if r.flow is not None:
            r.flow.unsent_at_prefill_end = r.flow.size - r.flow.sent
        if self.bind_late:
            self.pairing.append(r)
        if self.reserve == "prefill_end":
            self.ask(r)
        self.start_flow(r, t)

    # ---- reservations

    def ask(self, r: Request, now: float | None = None) -> None:
        """Join the receive queue (when a decode instance is known); with `now` (outside the grant step) be served."""
        r.asked = True
        if r in self.pairing:
            return
        d = self.decode[r.d]
        d.queue.append(r)
        if now is not None:
            self.serve(d, now)

    def serve(self, d: Decode, now: float) -> None:
        """Grant what the receive queue may have."""
        for r in list(d.queue):
            if d.preempted:
                break
            if self.decode_memory(d) + self.kv(r, r.prompt) > d.spec.kv_bytes:
                if self.cluster.receive_bypass:
                    continue
                break
            self.happened["bypass"] += d.queue[0] is not r
            self.grant(d, r, now)
        self.break_standoff(d, now)

    def grant(self, d: Decode, r: Request, now: float) -> None:
        d.queue.remove(r)
        d.reserved.append(r)
        r.granted, r.grant_no = True, self.number()
        self.records["grant_s"][r.i] = now
        self.see("grant")
        self.start_flow(r, now)

    def break_standoff(self, d: Decode, now: float) -> None:
        """An idle instance with reservations of unstarted requests only gives them up for a started one."""
        started = [r for r in d.queue if r.started]
        if d.active or d.stopped or d.preempted or not d.reserved or not started:
            return
        if any(r.started for r in d.reserved):
            return
        r = started[0]
        while d.reserved and self.decode_memory(d) + self.kv(r, r.prompt) > d.spec.kv_bytes:
            self.revoke(d, d.reserved[-1])
        if self.decode_memory(d) + self.kv(r, r.prompt) <= d.spec.kv_bytes:
            self.happened["standoff"] += 1
            self.grant(d, r, now)
            self.serve(d, now)

    def revoke(self, d: Decode, r: Request) -> None:
        """Take a reservation back. KV still in staging is sent again later; else it must be recomputed here."""
        self.records["revocations"][r.i] += 1
        self.happened["revocation"] += 1
        d.reserved.remove(r)
        r.granted = False
        if r.transferred:
            d.ready.remove(r)
            self.happened["revoked_ready"] += 1
            r.lost = r.on_decode = True
            r.join_no = self.number()
            d.preempted.append(r)
            return
        self.happened["flow_aborted"] += r.flow is not None
        self.abort_flow(r)
        self.records["grant_s"][r.i] = np.nan
        if d.state == ACTIVE:
            d.queue.insert(0, r)
        else:
            self.pairing.append(r)

    # ---- decode

    def end_decode_step(self, d: Decode, t: float) -> None:
        d.busy, d.boundary = False, t
        if d.stopped:
            self.see("step")
            d.stopped = False
            if d.restoring is not None:
                self.join(d, d.restoring)
                d.restoring = None
            return
        for r in list(d.active):
            self.emit(r, t)
            if r.emitted == r.output:
                d.active.remove(r)
                self.end(r, COMPLETED, t)
                self.see("step")

    def join(self, d: Decode | Colocated, r: Request) -> None:
        r.join_no = self.number()
        d.active.append(r)

    def next_decode_step(self, d: Decode, now: float) -> None:
        """What happens at a boundary, or when an idle instance has work."""
        if d.busy:
            return
        t = now if d.boundary is None else d.boundary
        before = list(d.active)
        swapped = self.grow(d, t)
        if swapped:
            self.happened["swap"] += 1
            self.stop_step(d, swapped / self.cluster.swap_bytes_per_s, t)
        else:
            while not self.restore(d, t):
                self.admit(d, t)
                if d.active or not d.preempted:
                    break
                self.make_room(d, min(d.preempted, key=self.restore_order), t)
        if d.boundary is not None and (d.stopped or d.active != before):
            self.see("step")
        d.boundary = None
        if d.active and not d.stopped:
            for r in d.active:
                if np.isnan(self.records["decode_start_s"][r.i]):
                    self.records["decode_start_s"][r.i] = t
                r.on_decode = True
            self.begin(d, decode_time(d.profile, d.active), t)

    def begin(self, d: Decode | Colocated, duration: float, t: float) -> None:
        d.busy = True
        d.version += 1
        self.push(t + duration, "decode" if isinstance(d, Decode) else "colocated", d.index, d, d.version)

    def stop_step(self, d: Decode, duration: float, t: float) -> None:
        d.stopped = True
        self.begin(d, max(duration, SHORTEST_S), t)

    def victim(self, active: list[Request]) -> Request:
        return min(active, key=lambda r: (r.priority, -r.join_no))

    def restore_order(self, r: Request) -> tuple[int, int]:
        return (-r.priority, r.join_no)

    def preempt(self, r: Request) -> None:
        self.records["preemptions"][r.i] += 1
        self.happened["preemption"] += 1

    def grow(self, d: Decode, t: float) -> int:
        """Rule 2: make the next iteration of the active sequences fit. Returns bytes to swap out."""
        swapped = 0
        while self.decode_memory(d) > d.spec.kv_bytes:
            if len(d.active) >= 2:
                r = self.victim(d.active)
                d.active.remove(r)
                d.preempted.append(r)
                self.preempt(r)
                if self.cluster.swap:
                    swapped += self.kv(r, r.held_at_preemption)
            elif d.reserved:
                self.revoke(d, d.reserved[-1])
            else:
                self.end(d.active.pop(), FAILED_OOM, t)
        return swapped

    def restore(self, d: Decode, t: float) -> bool:
        """Rule 3: bring one preempted sequence back with a stop step."""
        if not d.preempted or len(d.active) >= d.spec.max_batch:
            return False
        r = min(d.preempted, key=self.restore_order)
        if self.decode_memory(d) + self.kv(r, r.context) > d.spec.kv_bytes:
            return False
        d.preempted.remove(r)
        d.restoring = r
        tokens = r.held_at_preemption
        if self.cluster.swap and not r.lost:
            self.stop_step(d, self.kv(r, tokens) / self.cluster.swap_bytes_per_s, t)
        else:
            self.stop_step(d, prefill_time(d.profile, [(0, tokens)]), t)
        r.lost = False
        self.happened["restored"] += 1
        return True

    def admit(self, d: Decode, t: float) -> None:
        """Rule 4: ready sequences join while the batch has room and the next iteration fits."""
        while d.ready and len(d.active) < d.spec.max_batch:
            r = d.ready[0]
            growth = self.kv(r, r.context) - self.kv(r, r.prompt)
            if self.decode_memory(d) + growth > d.spec.kv_bytes:
                if d.active:
                    break
                others = [other for other in d.reserved if other is not r]
                if others:
                    self.revoke(d, others[-1])
                else:
                    self.end(r, FAILED_OOM, t)
                continue
            d.ready.remove(r)
            d.reserved.remove(r)
            r.granted = False
            self.join(d, r)

    def make_room(self, d: Decode, r: Request, t: float) -> None:
        """No sequence is active and the first preempted one does not fit: as for a ready one in rule 4."""
        if d.reserved:
            self.revoke(d, d.reserved[-1])
        else:
            d.preempted.remove(r)
            self.end(r, FAILED_OOM, t)

    # ---- co-located

    def end_mixed_step(self, h: Colocated, t: float) -> None:
        h.busy, h.boundary = False, t
        if h.step:
            self.see("step")
        for r in list(h.active):
            self.emit(r, t)
            if r.emitted == r.output:
                h.active.remove(r)
                self.end(r, COMPLETED, t)
                self.see("step")
        step, h.step = h.step, []
        for r, x in step:
            r.done += x
            if r.done == r.target:
                self.end_colocated_prefill(h, r, t)

    def end_colocated_prefill(self, h: Colocated, r: Request, t: float) -> None:
        h.prefilling.remove(r)
        h.cache.insert(r)
        if r.emitted == 0:
            self.records["prefill_end_s"][r.i] = t
            self.records["decode_start_s"][r.i] = t
            self.emit(r, t)
            if r.output == 1:
                self.end(r, COMPLETED, t)
                return
        self.join(h, r)

    def next_mixed_step(self, h: Colocated, now: float) -> None:
        if h.busy:
            return
        t = now if h.boundary is None else h.boundary
        before = list(h.active)
        while self.colocated_memory(h) > h.spec.kv_bytes:
            if len(h.active) >= 2:
                r = self.victim(h.active)
                h.active.remove(r)
                self.preempt(r)
                h.queue.insert(0, r)
                self.happened["colocated_preemption"] += 1
            elif h.prefilling:
                r = h.prefilling.pop()
                self.records["revocations"][r.i] += 1
                h.queue.insert(0, r)
                self.happened["colocated_revocation"] += 1
            else:
                self.end(h.active.pop(), FAILED_OOM, t)
        h.step = self.compose_mixed(h, t)
        self.happened["mixed"] += bool(h.step and h.active)
        if h.boundary is not None and (h.step or h.active != before):
            self.see("step")
        h.boundary = None
        if h.active or h.step:
            self.begin(h, mixed_time(h.profile, h.active, [(r.done, x) for r, x in h.step]), t)

    def compose_mixed(self, h: Colocated, t: float) -> list[tuple[Request, int]]:
        spec = h.spec
        budget = spec.max_batch_tokens - len(h.active)
        step: list[tuple[Request, int]] = []
        for r in h.prefilling:
            if budget > 0:
                step.append((r, min(r.target - r.done, budget)))
                budget -= step[-1][1]
        while h.queue and budget > 0 and len(h.active) + len(h.prefilling) < spec.max_batch:
            r = h.queue[0]
            r.target = r.held_at_preemption
            if self.colocated_memory(h) + self.kv(r, r.target + 1) > spec.kv_bytes:
                if h.active or h.prefilling:
                    break
                self.end(h.queue.pop(0), FAILED_OOM, t)  # it can never start
                continue
            h.queue.pop(0)
            h.prefilling.append(r)
            r.cached = r.done = h.cache.hit_tokens(r)
            h.cache.touch_hits(r)
            self.happened["prefix_hit"] += r.cached > 0
            if np.isnan(self.records["prefill_start_s"][r.i]):
                self.records["prefill_start_s"][r.i] = t
                self.records["cached_tokens"][r.i] = r.cached
            step.append((r, min(r.target - r.done, budget)))
            budget -= step[-1][1]
        return step

    # ---- draining

    def is_empty(self, inst: Prefill | Decode) -> bool:
        if isinstance(inst, Prefill):
            return not inst.busy and inst.staged == 0
        return not (inst.active or inst.reserved or inst.preempted or inst.restoring or inst.queue)

    def resident(self, inst: Prefill | Decode) -> int:
        return inst.staged if isinstance(inst, Prefill) else self.decode_memory(inst)

    def is_serving(self, inst: Prefill | Decode) -> bool:
        return inst.state in (ACTIVE, DRAINING)
