"""Decode memory for prompts: receive queues, grants and revocations (docs/model.md, section 6)."""

from __future__ import annotations

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accounts import settle_batch_queue, settle_reserved
from pdenv.sim.batch import kick_batch, kv_at_most, kv_in_flight, limit_leap, release_reservation, wake_batch
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load
from pdenv.sim.state import (
    FLOW_ENDED,
    GRANTED,
    IDLE,
    LINK_DECODE,
    PAIRED,
    RECEIVING,
    STARTED,
    UNPAIRED,
    batch,
    header,
    load,
    queue,
    record,
    request,
)
from pdenv.sim.transfer import abort_flow, start_flow_if_due


@kernel
def ask_memory(S, r, t):
    """Join the decode instance's receive queue (once)."""
    it = request(S, r)
    if it.decode_state != PAIRED:
        return
    it.decode_state = RECEIVING
    settle_batch_queue(S, it.d, t)
    lists.append(S, lists.receive_queue(S, it.d), LINK_DECODE, r)
    load(S, header(S).n_prefill + it.d).receiving += 1
    kick_batch(S, it.d)


@kernel
def leave_receive_queue(S, r, t):
    it = request(S, r)
    settle_batch_queue(S, it.d, t)
    lists.remove(S, lists.receive_queue(S, it.d), LINK_DECODE, r)
    load(S, header(S).n_prefill + it.d).receiving -= 1


@kernel
def grant(S, r, need, t):
    it = request(S, r)
    leave_receive_queue(S, r, t)
    it.decode_state = GRANTED
    it.grant_bytes = need
    settle_reserved(S, it.d, t)
    batch(S, it.d).reserved += need
    lists.append(S, lists.granted_list(S, it.d), LINK_DECODE, r)
    record(S, it.id).grant_s = t
    header(S).visible = 1
    limit_leap(S, it.d, t)
    start_flow_if_due(S, r, t)


@kernel
def grant_in_order(S, d, t):
    """Grant memory to what fits, first come first served."""
    h = header(S)
    q = lists.receive_queue(S, d)
    it = batch(S, d)
    r = queue(S, q).head
    while r >= 0:
        after = request(S, r).link_next[LINK_DECODE]
        need = request(S, r).prompt * h.kv_bytes_per_token[request(S, r).store]
        free = it.capacity - it.reserved - need
        if kv_at_most(S, d) <= free or kv_in_flight(S, d, t) <= free:
            grant(S, r, need, t)
        elif not h.receive_bypass:
            break
        r = after


@kernel
def all_unstarted(S, q):
    """Have none of the granted requests started their prefill?"""
    r = queue(S, q).head
    while r >= 0:
        if request(S, r).prefill_state >= STARTED:
            return False
        r = request(S, r).link_next[LINK_DECODE]
    return True


@kernel
def first_started(S, q):
    r = queue(S, q).head
    while r >= 0 and request(S, r).prefill_state < STARTED:
        r = request(S, r).link_next[LINK_DECODE]
    return r


@kernel
def break_standoff(S, d, t):
    """Reservations of requests that have not started must not starve one that holds staging memory.

    An idle instance all of whose reservations are such gives them up, newest first, to the first started
    request in its receive queue; else prefill could wait for staging and the staged request for decode memory,
    for ever. Whether that was so.
    """
    it = batch(S, d)
    q = lists.granted_list(S, d)
    if it.doing != IDLE or queue(S, q).head < 0:
        return False
    r = first_started(S, lists.receive_queue(S, d))
    if r < 0 or not all_unstarted(S, q):
        return False
    need = request(S, r).prompt * header(S).kv_bytes_per_token[request(S, r).store]
    while it.capacity - it.reserved < need and queue(S, q).tail >= 0:
        count_revocation(S, queue(S, q).tail)
        revoke(S, queue(S, q).tail, t)
    grant(S, r, need, t)
    return True


@kernel
def serve_receive_queue(S, d, t):
    """Grant what can be granted, unless preempted sequences wait for memory."""
    if queue(S, lists.receive_queue(S, d)).head < 0 or queue(S, lists.preempted_list(S, d)).head >= 0:
        return
    grant_in_order(S, d, t)
    if break_standoff(S, d, t):
        grant_in_order(S, d, t)


@kernel
def give_up_grant(S, r, t):
    """The reservation is given back: its flow ends, its KV stays where it is."""
    it = request(S, r)
    if it.flow_state != FLOW_ENDED:
        abort_flow(S, r, t)
    release_reservation(S, r, t)
    lists.remove(S, lists.granted_list(S, it.d), LINK_DECODE, r)


@kernel
def count_revocation(S, r):
    record(S, request(S, r).id).revocations += 1
    header(S).revocations += 1


@kernel
def revoke(S, r, t):
    """Back to the head of the receive queue."""
    it = request(S, r)
    give_up_grant(S, r, t)
    record(S, it.id).grant_s = np.nan
    it.decode_state = RECEIVING
    settle_batch_queue(S, it.d, t)
    lists.prepend(S, lists.receive_queue(S, it.d), LINK_DECODE, r)
    load(S, header(S).n_prefill + it.d).receiving += 1


@kernel
def drop_memory_request(S, r, t):
    """The request leaves its decode instance's receive queue, or gives its reservation up."""
    it = request(S, r)
    if it.decode_state == RECEIVING:
        leave_receive_queue(S, r, t)
    elif it.decode_state == GRANTED:
        give_up_grant(S, r, t)
    if it.d < 0:
        return
    kick_batch(S, it.d)
    waiting = queue(S, lists.preempted_list(S, it.d)).head >= 0 or queue(S, lists.ready_list(S, it.d)).head >= 0
    if waiting:
        wake_batch(S, it.d, t)


@kernel
def unpair(S, r, t):
    """The request has no decode instance any more."""
    it = request(S, r)
    drop_memory_request(S, r, t)
    drop_decode_load(S, r)
    it.decode_state = UNPAIRED
    it.d = -1
    it.b = -1
    record(S, it.id).grant_s = np.nan


@kernel
def ask_pairing(S, r):
    """A decode instance is to be chosen (once) in the settle."""
    it = request(S, r)
    if not it.pairing:
        it.pairing = 1
        lists.append(S, lists.PAIRING_QUEUE, LINK_DECODE, r)
