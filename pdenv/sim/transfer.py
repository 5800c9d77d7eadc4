"""KV transfers: fluid flows with layer-wise availability (docs/model.md, section 5)."""

from __future__ import annotations

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accounts import settle_staging, settle_starved
from pdenv.sim.events import schedule, transfer_slot
from pdenv.sim.layout import kernel
from pdenv.sim.maxmin import enter_ports, leave_ports, path_of, raise_idle_bound, set_bound, solve
from pdenv.sim.state import (
    BACKLOG_GONE,
    FIRST_LAYER,
    FLOW_ENDED,
    FLOWING,
    GRANTED,
    LAST_BYTE,
    LATE_EVENT,
    LINK_BATCH,
    LINK_FLOW,
    NO_FLOW,
    NOTHING,
    PREFILLED,
    READY,
    STARTED,
    TAIL,
    TIE_S,
    batch,
    changed_inbound,
    dirty_flow,
    flow,
    flow_list,
    header,
    kicked_prefill,
    load,
    prefill,
    queue,
    record,
    request,
)


@kernel
def kick_prefill(S, p):
    """Look at the instance in the next settle: it may start a step."""
    it = prefill(S, p)
    if not it.kicked:
        it.kicked = 1
        h = header(S)
        kicked_prefill(S, h.kicked_prefills).i = p
        h.kicked_prefills += 1


@kernel
def free_staging(S, r, t):
    """The request's KV leaves its prefill instance."""
    it = request(S, r)
    source = prefill(S, it.p)
    settle_staging(S, it.p, t)
    held = it.prompt * source.kv_bytes_per_token
    source.staging_used -= held
    load(S, it.p).kv_bytes -= held
    settle_starved(S, t)
    header(S).in_flight -= 1
    kick_prefill(S, it.p)


@kernel
def note_step(S, r):
    """Note when and how fast the running step makes the flow's KV available."""
    it = request(S, r)
    source = prefill(S, it.p)
    chunk = it.bytes * it.step / (it.tokens - it.cached)
    it.first_layer_t = source.step_start + (source.step_end - source.step_start) / header(S).layers
    it.pace = chunk / (source.step_end - source.step_start)


@kernel
def available(S, r, t):
    """Bytes of KV that could have been sent until `t`."""
    it = request(S, r)
    if it.prefill_state == PREFILLED:
        return it.bytes
    if not header(S).layerwise:
        return 0.0
    ready = it.bytes * it.done / (it.tokens - it.cached)
    if it.step > 0:
        ready += max(t - it.first_layer_t, 0.0) * it.pace
    return ready


@kernel
def producing(S, r, t):
    """Bytes/s at which KV becomes available just after `t`."""
    it = request(S, r)
    if it.prefill_state == PREFILLED or it.step == 0 or t < it.first_layer_t:
        return 0.0
    return it.pace


@kernel
def bring_up(S, r, t):
    """Count what the flow has sent until `t`."""
    it = request(S, r)
    it.sent += it.rate * (t - it.sent_t)
    it.sent_t = t


@kernel
def refresh_bound(S, r, t):
    """The flow's cap may have changed: infinite with a backlog, else what is being produced."""
    it = request(S, r)
    bring_up(S, r, t)
    if it.backlog or it.prefill_state == PREFILLED:
        cap = np.inf
    else:
        cap = producing(S, r, t)
    set_bound(S, r, min(cap, path_of(S, r).smallest))


@kernel
def start_flow(S, r, t):
    it = request(S, r)
    it.flow_state = FLOWING
    it.way = it.p * header(S).n_decode + it.d
    it.sent = 0.0
    it.sent_t = t
    it.rate = 0.0
    it.unsent = it.bytes
    note_step(S, r)
    it.backlog = available(S, r, t) > 0.0
    record(S, it.id).flow_start_s = t
    enter_ports(S, r)
    lists.append(S, lists.inbound_list(S, it.d), LINK_FLOW, r)
    refresh_bound(S, r, t)


@kernel
def start_flow_if_due(S, r, t):
    """A flow needs its reservation and, blocking, the whole prefill or, layer-wise, its first step."""
    it = request(S, r)
    if it.decode_state != GRANTED or it.flow_state != NO_FLOW:
        return
    if it.prefill_state == PREFILLED or (header(S).layerwise and it.prefill_state == STARTED):
        start_flow(S, r, t)


@kernel
def step_changed(S, r, t):
    """A step that computes the request's KV has begun or ended."""
    it = request(S, r)
    if it.flow_state != FLOWING:
        return
    bring_up(S, r, t)
    if it.prefill_state == PREFILLED:
        it.unsent = it.bytes - it.sent
    if it.step > 0:
        note_step(S, r)
    else:
        it.backlog = available(S, r, t) > it.sent
    refresh_bound(S, r, t)


@kernel
def mark_inbound(S, d):
    it = batch(S, d)
    if not it.arrivals_changed:
        it.arrivals_changed = 1
        h = header(S)
        changed_inbound(S, h.changed_inbounds).i = d
        h.changed_inbounds += 1


@kernel
def backlog_s(S, r, t):
    """How long the flow's backlog lasts at its present rate if the step that computes its chunk goes on, s."""
    it = request(S, r)
    left = max(available(S, r, t) - it.sent, 0.0)
    idle = max(it.first_layer_t - t, 0.0)
    if left < it.rate * idle:
        return left / it.rate
    if it.rate > it.pace:
        return idle + (left - it.rate * idle) / (it.rate - it.pace)
    return np.inf


@kernel
def forecast(S, r):
    """Find the flow's next event from its present rate; `sent` is up to date."""
    it = request(S, r)
    t = it.sent_t
    it.flow_event_t = np.inf
    it.flow_next = NOTHING
    if it.prefill_state == PREFILLED:
        if it.rate > 0.0:
            it.flow_event_t = t + max(it.bytes - it.sent, 0.0) / it.rate
            it.flow_next = LAST_BYTE
        return
    if it.step == 0:
        return
    if it.backlog:
        it.flow_event_t = t + backlog_s(S, r, t)
        it.flow_next = BACKLOG_GONE
    elif t < it.first_layer_t:
        it.flow_event_t = it.first_layer_t
        it.flow_next = FIRST_LAYER


@kernel
def apply_rate(S, r, t):
    it = request(S, r)
    rate = flow(S, r).next_rate
    if rate == it.rate and not it.dirty:
        return
    bring_up(S, r, t)
    it.rate = rate
    if not it.backlog and it.prefill_state != PREFILLED and it.rate < producing(S, r, t):
        it.backlog = 1
        raise_idle_bound(S, r, path_of(S, r).smallest)
    forecast(S, r)
    mark_inbound(S, it.d)


@kernel
def solve_flows(S, t):
    """Rates of all flows that may have changed, and their next events."""
    h = header(S)
    for i in range(solve(S)):
        apply_rate(S, flow_list(S, i).i, t)
    for i in range(h.dirty_flows):
        r = dirty_flow(S, i).i
        if request(S, r).dirty == LATE_EVENT and request(S, r).flow_state == FLOWING:
            forecast(S, r)
            mark_inbound(S, request(S, r).d)
        request(S, r).dirty = 0
    h.dirty_flows = 0


@kernel
def earliest_inbound(S, d):
    """Time of the earliest event of the flows into d; also finds `next_flow`."""
    best = np.inf
    second = np.inf
    where = np.int64(-1)
    r = queue(S, lists.inbound_list(S, d)).head
    while r >= 0:
        it = request(S, r)
        if it.flow_event_t < best:
            second = best
            best = it.flow_event_t
            where = r
        else:
            second = min(second, it.flow_event_t)
        r = it.link_next[LINK_FLOW]
    batch(S, d).next_flow = where if second > best + TIE_S else -1
    return best


@kernel
def reschedule_inbound(S):
    """Set the transfer slots of all decode instances whose inbound flows changed."""
    h = header(S)
    for i in range(h.changed_inbounds):
        d = changed_inbound(S, i).i
        batch(S, d).arrivals_changed = 0
        schedule(S, transfer_slot(S, d), earliest_inbound(S, d))
    h.changed_inbounds = 0


@kernel
def end_flow(S, r, t):
    """The last byte has left; the transfer ends after latency and the cost of the unsent bytes."""
    it = request(S, r)
    way = path_of(S, r)
    it.sent = it.bytes
    leave_ports(S, r)
    it.rate = 0.0
    it.flow_state = TAIL
    it.flow_event_t = t + (way.latency_s + it.unsent * way.cost[it.wire])
    mark_inbound(S, it.d)


@kernel
def end_transfer(S, r, t):
    """The KV is in decode memory; the sequence is ready to join. The caller wakes the batch."""
    it = request(S, r)
    row = record(S, it.id)
    row.transfer_end_s = t
    row.wire_bytes += it.sent
    it.flow_state = FLOW_ENDED
    lists.remove(S, lists.inbound_list(S, it.d), LINK_FLOW, r)
    mark_inbound(S, it.d)
    free_staging(S, r, t)
    it.decode_state = READY
    lists.append(S, lists.ready_list(S, it.d), LINK_BATCH, r)
    header(S).visible = 1


@kernel
def abort_flow(S, r, t):
    """Stop the request's flow, if it has one; what it sent is counted."""
    it = request(S, r)
    if it.flow_state != FLOWING and it.flow_state != TAIL:
        return
    if it.flow_state == FLOWING:
        bring_up(S, r, t)
        leave_ports(S, r)
    record(S, it.id).wire_bytes += it.sent
    lists.remove(S, lists.inbound_list(S, it.d), LINK_FLOW, r)
    mark_inbound(S, it.d)
    it.flow_state = NO_FLOW
    it.rate = 0.0


@kernel
def flow_event(S, r, t):
    """The flow's next event is due; returns whether its transfer has ended."""
    it = request(S, r)
    if it.flow_state == TAIL:
        end_transfer(S, r, t)
        return True
    if it.flow_next == LAST_BYTE:
        end_flow(S, r, t)
        if it.flow_event_t <= t:
            end_transfer(S, r, t)
            return True
    elif it.flow_next == BACKLOG_GONE:
        it.backlog = 0
        bring_up(S, r, t)
        it.sent = available(S, r, t)
        refresh_bound(S, r, t)
    else:
        refresh_bound(S, r, t)
    it.flow_event_t = max(it.flow_event_t, t) if it.flow_state == TAIL else np.inf
    mark_inbound(S, it.d)
    return False
