"""Decode memory for prompts: receive queues, grants and revocations (docs/model.md, section 6)."""

from __future__ import annotations

from pdenv.sim import lists
from pdenv.sim.accounts import settle_batch_queue, settle_reserved
from pdenv.sim.batch import kick_batch, kv_in_flight, limit_leap, release_reservation
from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    FLOW_ENDED,
    GRANTED,
    LINK_DECODE,
    PAIRED,
    RECEIVING,
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
def serve_receive_queue(S, d, t):
    """Grant memory in order to what fits, unless preempted sequences wait for it."""
    h = header(S)
    q = lists.receive_queue(S, d)
    if queue(S, q).head < 0 or queue(S, lists.preempted_list(S, d)).head >= 0:
        return
    it = batch(S, d)
    free = it.capacity - it.reserved - kv_in_flight(S, d, t)
    r = queue(S, q).head
    while r >= 0:
        after = request(S, r).link_next[LINK_DECODE]
        need = request(S, r).prompt * h.kv_bytes_per_token[request(S, r).store]
        if need <= free:
            grant(S, r, need, t)
            free -= need
        elif not h.receive_bypass:
            return
        r = after


@kernel
def give_up_grant(S, r, t):
    """The reservation is given back: its flow ends, its KV stays where it is."""
    it = request(S, r)
    if it.flow_state != FLOW_ENDED:
        abort_flow(S, r, t)
    release_reservation(S, r, t)
    lists.remove(S, lists.granted_list(S, it.d), LINK_DECODE, r)
    record(S, it.id).revocations += 1
    header(S).revocations += 1


@kernel
def newest_revocable(S, d):
    """The newest granted request whose transfer has not ended, or −1."""
    r = queue(S, lists.granted_list(S, d)).tail
    while r >= 0 and request(S, r).flow_state == FLOW_ENDED:
        r = request(S, r).link_prev[LINK_DECODE]
    return r


@kernel
def revoke(S, r, t):
    """Back to the head of the receive queue."""
    it = request(S, r)
    give_up_grant(S, r, t)
    it.decode_state = RECEIVING
    settle_batch_queue(S, it.d, t)
    lists.prepend(S, lists.receive_queue(S, it.d), LINK_DECODE, r)
    load(S, header(S).n_prefill + it.d).receiving += 1
