"""What a decode instance does at an iteration boundary (docs/model.md, section 6)."""

from __future__ import annotations

from pdenv.sim import lists
from pdenv.sim.accounts import settle_reserved
from pdenv.sim.batch import (
    extract_active,
    go_idle,
    join_batch,
    pick_victim,
    release_reservation,
    start_iterations,
    start_stop_step,
)
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load, end_request
from pdenv.sim.receive import ask_pairing, count_revocation, revoke, unpair
from pdenv.sim.records import FAILED_OOM
from pdenv.sim.state import (
    BOUNDARY,
    DRAINING,
    FLOW_ENDED,
    IDLE,
    LINK_BATCH,
    LINK_DECODE,
    PREEMPTED,
    batch,
    header,
    queue,
    record,
    request,
)
from pdenv.sim.steps import prefill_seconds


@kernel
def next_bytes(S, r):
    """KV bytes that a sequence outside the batch holds in its next iteration."""
    it = request(S, r)
    return (it.prompt + it.emitted) * header(S).kv_bytes_per_token[it.store]


@kernel
def held_tokens(S, r):
    """KV tokens that a preempted sequence held, and that a recomputation restores."""
    it = request(S, r)
    return it.prompt + max(it.emitted - 1, 0)


@kernel
def waits_before(S, a, b):
    """Order of preempted sequences: priority, then oldest to join."""
    x = request(S, a)
    y = request(S, b)
    return x.priority > y.priority or (x.priority == y.priority and x.join_order < y.join_order)


@kernel
def queue_preempted(S, d, r):
    """Put a sequence that needs its KV restored in the instance's list, in order."""
    it = request(S, r)
    it.decode_state = PREEMPTED
    it.b = d
    q = lists.preempted_list(S, d)
    other = queue(S, q).head
    while other >= 0 and not waits_before(S, r, other):
        other = request(S, other).link_next[LINK_BATCH]
    lists.insert_before(S, q, LINK_BATCH, r, other)


@kernel
def count_preemption(S, r):
    record(S, request(S, r).id).preemptions += 1
    header(S).preemptions += 1


@kernel
def drop_ready(S, r, t):
    """A ready sequence loses its reservation (its staging is gone: its KV is to be recomputed)."""
    it = request(S, r)
    release_reservation(S, r, t)
    lists.remove(S, lists.granted_list(S, it.d), LINK_DECODE, r)
    lists.remove(S, lists.ready_list(S, it.d), LINK_BATCH, r)
    it.join_order = header(S).joins
    header(S).joins += 1


@kernel
def free_a_reservation(S, d, spared, t):
    """Revoke the newest reservation but `spared`; whether there was one. A ready sequence is to be recomputed."""
    r = queue(S, lists.granted_list(S, d)).tail
    if r == spared and r >= 0:
        r = request(S, r).link_prev[LINK_DECODE]
    if r < 0:
        return False
    count_revocation(S, r)
    if request(S, r).flow_state == FLOW_ENDED:
        drop_ready(S, r, t)
        queue_preempted(S, d, r)
    elif batch(S, d).state == DRAINING:
        unpair(S, r, t)
        ask_pairing(S, r)
    else:
        revoke(S, r, t)
    return True


@kernel
def fail_oom(S, r, t):
    drop_decode_load(S, r)
    end_request(S, r, t, FAILED_OOM)
    header(S).visible = 1


@kernel
def make_room(S, d):
    """Preempt, revoke or fail until the next iteration fits; returns the bytes preempted."""
    it = batch(S, d)
    out = 0
    while it.active > 0 and it.reserved + it.kv > it.capacity:
        if it.active >= 2:
            r = extract_active(S, d, pick_victim(S, d))
            out += held_tokens(S, r) * header(S).kv_bytes_per_token[request(S, r).store]
            request(S, r).swapped = header(S).swap
            count_preemption(S, r)
            queue_preempted(S, d, r)
        elif not free_a_reservation(S, d, -1, it.anchor_t):
            fail_oom(S, extract_active(S, d, 0), it.anchor_t)
    return out


@kernel
def restore_seconds(S, d, r):
    """Duration of the stop step that brings a preempted sequence's KV back."""
    tokens = held_tokens(S, r)
    if request(S, r).swapped:
        return tokens * header(S).kv_bytes_per_token[request(S, r).store] / header(S).swap_bytes_per_s
    return prefill_seconds(S, batch(S, d).profile, tokens, float(tokens) * tokens)


@kernel
def restore_preempted(S, d):
    """Start a stop step for the first preempted sequence if it fits; whether one was started."""
    it = batch(S, d)
    q = lists.preempted_list(S, d)
    r = queue(S, q).head
    if r < 0 or it.active >= it.max_batch:
        return False
    need = next_bytes(S, r)
    if it.reserved + it.kv + need > it.capacity:
        return False
    lists.remove(S, q, LINK_BATCH, r)
    settle_reserved(S, d, it.anchor_t)
    it.reserved += need
    request(S, r).grant_bytes = need
    start_stop_step(S, d, restore_seconds(S, d, r), r)
    return True


@kernel
def join_ready(S, d):
    """Ready sequences join, first come first served, while the next iteration of all fits."""
    it = batch(S, d)
    q = lists.ready_list(S, d)
    while queue(S, q).head >= 0 and it.active < it.max_batch:
        r = queue(S, q).head
        if it.reserved - request(S, r).grant_bytes + it.kv + next_bytes(S, r) <= it.capacity:
            lists.remove(S, q, LINK_BATCH, r)
            lists.remove(S, lists.granted_list(S, d), LINK_DECODE, r)
            join_batch(S, d, r, it.anchor_t)
        elif it.active > 0:
            return
        elif not free_a_reservation(S, d, r, it.anchor_t):
            drop_ready(S, r, it.anchor_t)
            fail_oom(S, r, it.anchor_t)


@kernel
def compose_decode(S, d, now):
    """Compose the next step of a decode instance that is at a boundary, or idle."""
    it = batch(S, d)
    if it.doing == IDLE:
        it.anchor_t = now
    elif it.doing != BOUNDARY:
        return
    swapped = make_room(S, d)
    if swapped > 0 and header(S).swap:
        start_stop_step(S, d, swapped / header(S).swap_bytes_per_s, -1)
        return
    q = lists.preempted_list(S, d)
    while not restore_preempted(S, d):
        join_ready(S, d)
        if it.active > 0:
            start_iterations(S, d)
            return
        r = queue(S, q).head
        if r < 0:
            go_idle(S, d, it.anchor_t)
            return
        if not free_a_reservation(S, d, -1, it.anchor_t):
            lists.remove(S, q, LINK_BATCH, r)
            fail_oom(S, r, it.anchor_t)
