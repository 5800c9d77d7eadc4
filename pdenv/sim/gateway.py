"""The gateway: one FIFO queue, what may be done with its head, and what a decision does (docs/model.md, section 3)."""

from __future__ import annotations

import math

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accrual import quality_accrues, quality_price
from pdenv.sim.batch import wake_batch
from pdenv.sim.colocated import enqueue_colocated
from pdenv.sim.decode import queue_preempted
from pdenv.sim.events import ARRIVALS, DELIVERY, HOLD, schedule, single_slot
from pdenv.sim.layout import kernel
from pdenv.sim.pool import add_load, end_request, take_slot
from pdenv.sim.prefilling import RESERVE_AT_DISPATCH, RESERVE_AT_START, enqueue_prefill
from pdenv.sim.receive import ask_memory, serve_receive_queue
from pdenv.sim.records import REJECTED, TOO_LARGE
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_HOLD,
    ACT_PAIR,
    ACT_WAIT,
    ACTIVE,
    ERROR_ILLEGAL_ACTION,
    IN_DELIVERY,
    LINK_DECODE,
    LINK_PREFILL,
    N_PRECISIONS,
    PAIRED,
    PREEMPTED,
    PREFILLED,
    STARTED,
    TIE_S,
    arrival,
    batch,
    header,
    prefill,
    queue,
    record,
    request,
)
from pdenv.sim.steps import prefill_seconds


@kernel
def precision_allowed(S, r, q):
    return (header(S).tier_precisions[request(S, r).tier] >> q) & 1


@kernel
def prefill_legal(S, r, p):
    box = prefill(S, p)
    return box.state == ACTIVE and request(S, r).prompt * box.kv_bytes_per_token <= box.staging_bytes


@kernel
def decode_legal(S, r, d, q):
    """May the request, sent in precision q, be decoded on d?"""
    box = batch(S, d)
    h = header(S)
    store = q if h.mixed_store else box.store
    return (
        box.state == ACTIVE
        and precision_allowed(S, r, store)
        and request(S, r).prompt * h.kv_bytes_per_token[store] <= box.capacity
    )


@kernel
def colocated_legal(S, r, c):
    box = batch(S, header(S).n_decode + c)
    return (
        precision_allowed(S, r, box.store)
        and (request(S, r).prompt + 1) * header(S).kv_bytes_per_token[box.store] <= box.capacity
    )


@kernel
def may_hold(S, r):
    """Holding is allowed until `hold_max_s` after the request's first hold."""
    since = request(S, r).hold_since_t
    return math.isnan(since) or header(S).now < since + header(S).hold_max_s - TIE_S


@kernel
def arrive(S):
    """The next request arrives at the gateway."""
    h = header(S)
    r = take_slot(S, h.next_arrival)
    h.next_arrival += 1
    h.arrived += 1
    h.visible = 1
    schedule_arrival(S)
    it = request(S, r)
    if it.prompt > h.largest_pair[it.tier] and it.prompt > h.largest_colocated[it.tier]:
        end_request(S, r, it.arrival_t, TOO_LARGE)
        return
    if h.scaling_interval_s > 0.0 and h.n_prefill > 0:
        h.offered_s += predicted_prefill_s(S, prefill(S, 0).profile, it.prompt)
    lists.append(S, lists.GATEWAY_QUEUE, LINK_PREFILL, r)


@kernel
def schedule_arrival(S):
    h = header(S)
    t = arrival(S, h.next_arrival).arrival_s if h.next_arrival < h.offer_until else np.inf
    schedule(S, single_slot(S, ARRIVALS), t)


@kernel
def hold(S, r, chosen):
    """Suspend dispatch; `chosen` tells a scheduler's hold from one for want of any legal action."""
    h = header(S)
    it = request(S, r)
    if chosen and math.isnan(it.hold_since_t):
        it.hold_since_t = h.now
    h.holding = 1
    h.hold_until = h.now + h.hold_max_s
    schedule(S, single_slot(S, HOLD), h.hold_until)


@kernel
def may_offer(S):
    """Is the head of the gateway to be offered now?"""
    h = header(S)
    if queue(S, lists.GATEWAY_QUEUE).head < 0:
        return False
    if h.holding and not h.visible and h.now < h.hold_until - TIE_S:
        return False
    if h.holding:
        h.holding = 0
        schedule(S, single_slot(S, HOLD), np.inf)
    return True


@kernel
def predicted_prefill_s(S, k, tokens):
    """Seconds that a prompt adds to a busy instance of profile k: its step without the fixed part."""
    return prefill_seconds(S, k, tokens, float(tokens) * tokens) - prefill_seconds(S, k, 0, 0.0)


@kernel
def pair_with(S, r, d, q):
    """Set the decode instance and count the request there."""
    h = header(S)
    it = request(S, r)
    it.d = d
    it.b = d
    it.store = q if h.mixed_store else batch(S, d).store
    it.decode_state = PAIRED
    quality_accrues(S, r, quality_price(S, r, True))
    row = record(S, it.id)
    row.decode = d
    row.store_precision = it.store
    add_load(S, h.n_prefill + d, 1, it.prompt + it.predicted, it.prompt * h.kv_bytes_per_token[it.store], 0.0)


@kernel
def ask_if_due(S, r, t):
    """Ask for decode memory if the moment for it has come; the caller has it served."""
    it = request(S, r)
    reserve = header(S).reserve
    due = reserve == RESERVE_AT_DISPATCH or (reserve == RESERVE_AT_START and it.prefill_state == STARTED)
    if due or it.prefill_state == PREFILLED:
        ask_memory(S, r, t)


@kernel
def dispatch_pair(S, r, p, d, q):
    h = header(S)
    it = request(S, r)
    it.mode = 1
    it.p = p
    it.wire = q
    it.bytes = it.prompt * h.kv_bytes_per_token[q]
    it.work_s = predicted_prefill_s(S, prefill(S, p).profile, it.prompt)
    add_load(S, p, 1, it.prompt, 0, it.work_s)
    row = record(S, it.id)
    row.mode = 1
    row.prefill = p
    row.wire_precision = q
    if d < 0:
        quality_accrues(S, r, quality_price(S, r, False))
    else:
        pair_with(S, r, d, q)
        if h.reserve == RESERVE_AT_DISPATCH:
            ask_if_due(S, r, h.now)
            serve_receive_queue(S, d, h.now)


@kernel
def dispatch_colocated(S, r, c):
    h = header(S)
    it = request(S, r)
    it.mode = 2
    it.b = h.n_decode + c
    it.store = batch(S, it.b).store
    it.work_s = predicted_prefill_s(S, batch(S, it.b).profile, it.prompt)
    kv_bytes = it.prompt * h.kv_bytes_per_token[it.store]
    add_load(S, h.n_prefill + it.b, 1, it.prompt + it.predicted, kv_bytes, it.work_s)
    row = record(S, it.id)
    row.mode = 2
    row.colocated = c
    row.store_precision = it.store
    quality_accrues(S, r, quality_price(S, r, True))


@kernel
def deliver(S, r, t):
    """The request reaches the instance that it was dispatched to."""
    it = request(S, r)
    if it.mode == 2:
        enqueue_colocated(S, it.b, r, t)
    else:
        enqueue_prefill(S, it.p, r, t)


@kernel
def send(S, r):
    """Off to the instance, through the control plane."""
    h = header(S)
    it = request(S, r)
    lists.remove(S, lists.GATEWAY_QUEUE, LINK_PREFILL, r)
    row = record(S, it.id)
    if math.isnan(row.dispatch_s):
        row.dispatch_s = h.now
    if h.control_plane_delay_s <= 0.0:
        deliver(S, r, h.now)
        return
    it.prefill_state = IN_DELIVERY
    it.deliver_t = h.now + h.control_plane_delay_s
    lists.append(S, lists.DELIVERY_QUEUE, LINK_PREFILL, r)
    schedule_delivery(S)


@kernel
def schedule_delivery(S):
    r = queue(S, lists.DELIVERY_QUEUE).head
    schedule(S, single_slot(S, DELIVERY), request(S, r).deliver_t if r >= 0 else np.inf)


@kernel
def deliver_next(S, t):
    r = queue(S, lists.DELIVERY_QUEUE).head
    lists.remove(S, lists.DELIVERY_QUEUE, LINK_PREFILL, r)
    schedule_delivery(S)
    deliver(S, r, t)
    header(S).visible = 1


@kernel
def route_is_legal(S, r):
    h = header(S)
    if h.act_kind == ACT_HOLD:
        return may_hold(S, r)
    if h.act_kind == ACT_COLOCATED:
        return 0 <= h.act_h < h.n_colocated and colocated_legal(S, r, h.act_h)
    if h.act_kind != ACT_PAIR:
        return h.allow_reject != 0
    p, d, q = h.act_p, h.act_d, h.act_precision
    if not (0 <= p < h.n_prefill and 0 <= q < N_PRECISIONS and prefill_legal(S, r, p) and precision_allowed(S, r, q)):
        return False
    if h.bind_at_prefill_end:
        return d == -1
    return 0 <= d < h.n_decode and decode_legal(S, r, d, q)


@kernel
def has_somewhere(S, r):
    """Is any pair or co-located instance legal?"""
    h = header(S)
    for c in range(h.n_colocated):
        if colocated_legal(S, r, c):
            return True
    some_prefill = False
    for p in range(h.n_prefill):
        some_prefill = some_prefill or prefill_legal(S, r, p)
    if not some_prefill or h.bind_at_prefill_end:
        return some_prefill
    for d in range(h.n_decode):
        for q in range(N_PRECISIONS):
            if precision_allowed(S, r, q) and decode_legal(S, r, d, q):
                return True
    return False


@kernel
def apply_route(S, r):
    """Carry out the decision in the header on the head of the gateway."""
    h = header(S)
    if h.act_kind == ACT_WAIT or (h.act_kind == ACT_HOLD and not has_somewhere(S, r)):
        hold(S, r, False)
        return
    if not route_is_legal(S, r):
        h.error = ERROR_ILLEGAL_ACTION
        return
    request(S, r).attempts += 1
    if h.act_kind == ACT_HOLD:
        hold(S, r, True)
        return
    if h.act_kind == ACT_PAIR:
        dispatch_pair(S, r, h.act_p, h.act_d, h.act_precision)
        send(S, r)
    elif h.act_kind == ACT_COLOCATED:
        dispatch_colocated(S, r, h.act_h)
        send(S, r)
    else:
        lists.remove(S, lists.GATEWAY_QUEUE, LINK_PREFILL, r)
        end_request(S, r, h.now, REJECTED)


@kernel
def apply_pair(S, r):
    """Carry out the pairing in the header."""
    h = header(S)
    it = request(S, r)
    if not (0 <= h.act_d < h.n_decode and decode_legal(S, r, h.act_d, it.wire)):
        h.error = ERROR_ILLEGAL_ACTION
        return
    lists.remove(S, lists.PAIRING_QUEUE, LINK_DECODE, r)
    it.pairing = 0
    it.attempts += 1
    was_preempted = it.decode_state == PREEMPTED
    pair_with(S, r, h.act_d, it.wire)
    if was_preempted:
        queue_preempted(S, h.act_d, r)
        wake_batch(S, h.act_d, h.now)
    else:
        ask_if_due(S, r, h.now)
