"""Continuous batches in closed form: what decode and co-located instances share.

Between two changes of composition the durations of iterations form an arithmetic series, so boundary j after
the anchor lies at `anchor + (j·A + G·j(j−1)/2)`. It is always computed from the anchor, and only a change of
composition moves the anchor.
"""

from __future__ import annotations

import math

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accounts import settle_reserved, settle_starved
from pdenv.sim.accrual import decode_start_accrues, expect_first_token
from pdenv.sim.events import batch_slot, schedule
from pdenv.sim.gaps import count_tokens
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load, end_request
from pdenv.sim.records import COMPLETED
from pdenv.sim.state import (
    ACTIVE_SEQ,
    BOUNDARY,
    IDLE,
    ITERATING,
    LINK_BATCH,
    MIXED,
    STOPPED,
    TIE_S,
    batch,
    header,
    heap,
    kicked_batch,
    queue,
    record,
    request,
)
from pdenv.sim.steps import iteration_seconds, iteration_slope_s


@kernel
def kick_batch(S, b):
    """Look at the batch in the next settle."""
    it = batch(S, b)
    if not it.kicked:
        it.kicked = 1
        h = header(S)
        kicked_batch(S, h.kicked_batches).i = b
        h.kicked_batches += 1


@kernel
def boundary_t(S, b, j):
    """Time of boundary j after the anchor, s."""
    it = batch(S, b)
    return it.anchor_t + (j * it.first_s + it.slope_s * (j * (j - 1) / 2))


@kernel
def first_boundary_at(S, b, t):
    """The smallest j ≥ 0 whose boundary is at `t` or later."""
    it = batch(S, b)
    x = t - it.anchor_t
    if x <= 0.0:
        return np.int64(0)
    half = it.first_s - it.slope_s / 2
    j = np.int64(2 * x / (half + math.sqrt(half * half + 2 * it.slope_s * x)))
    while j > 0 and boundary_t(S, b, j - 1) >= t:
        j -= 1
    while boundary_t(S, b, j) < t:
        j += 1
    return j


@kernel
def iterations_done(S, b, t):
    """Iterations after the anchor that have ended by `t` (1 ns late ones included)."""
    it = batch(S, b)
    j = first_boundary_at(S, b, t + TIE_S)
    if boundary_t(S, b, j) > t + TIE_S:
        j -= 1
    return min(max(j, 0), max(it.event_at - 1, 0))


@kernel
def kv_in_flight(S, b, t):
    """KV bytes of the active sequences in the iteration in flight at `t`."""
    it = batch(S, b)
    if it.doing == ITERATING and it.growth > 0:
        return it.kv + it.growth * iterations_done(S, b, t)
    return it.kv


@kernel
def kv_at_most(S, b):
    """An upper bound of `kv_in_flight` until the batch's next event, without looking for the iteration."""
    it = batch(S, b)
    return it.kv + it.growth * max(it.event_at - 1, 0) if it.doing == ITERATING else it.kv


@kernel
def set_doing(S, b, doing, t):
    """Change what the batch does, and count it as idle or not."""
    it = batch(S, b)
    was_idle = it.doing == IDLE
    it.doing = doing
    if not it.colocated and was_idle != (doing == IDLE):
        settle_starved(S, t)
        header(S).idle_decodes += 1 if doing == IDLE else -1


@kernel
def wake_batch(S, b, t):
    """Something became ready at `t`: the batch composes anew at its next boundary."""
    it = batch(S, b)
    if it.doing == IDLE or it.doing == BOUNDARY:
        kick_batch(S, b)
    elif it.doing == ITERATING:
        j = max(first_boundary_at(S, b, t - TIE_S), 1)
        if j < it.event_at:
            it.event_at = j
            schedule(S, batch_slot(S, b), boundary_t(S, b, j))


@kernel
def limit_leap(S, b, t):
    """After a grant: iterate no further than memory allows (the iteration in flight always fits)."""
    it = batch(S, b)
    if it.doing != ITERATING or it.growth == 0:
        return
    fits = 1 + (it.capacity - it.reserved - it.kv) // it.growth
    if fits < it.event_at:
        fits = max(fits, iterations_done(S, b, t) + 1)
    if fits < it.event_at:
        it.event_at = fits
        schedule(S, batch_slot(S, b), boundary_t(S, b, fits))


@kernel
def swap_heap(S, base, i, k):
    a = heap(S, base + i)
    b = heap(S, base + k)
    key = a.key
    r = a.request
    a.key = b.key
    a.request = b.request
    b.key = key
    b.request = r


@kernel
def sift_up(S, base, i):
    while i > 0:
        parent = (i - 1) // 2
        if heap(S, base + parent).key <= heap(S, base + i).key:
            return
        swap_heap(S, base, i, parent)
        i = parent


@kernel
def sift_down(S, base, i, n):
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if child + 1 < n and heap(S, base + child + 1).key < heap(S, base + child).key:
            child += 1
        if heap(S, base + i).key <= heap(S, base + child).key:
            return
        swap_heap(S, base, i, child)
        i = child


@kernel
def drop_from_heap(S, b, i):
    """Remove entry i of the batch's heap (which holds `active` entries)."""
    base = b * header(S).heap_stride
    last = batch(S, b).active - 1
    if i != last:
        swap_heap(S, base, i, last)
        sift_down(S, base, i, last)
        sift_up(S, base, i)


@kernel
def emitted_so_far(S, r):
    """Tokens emitted by an active request at its batch's anchor."""
    it = request(S, r)
    return it.emitted + batch(S, it.b).iterations - it.joined_at


@kernel
def release_reservation(S, r, t):
    it = request(S, r)
    settle_reserved(S, it.b, t)
    batch(S, it.b).reserved -= it.grant_bytes
    it.grant_bytes = 0


@kernel
def join_batch(S, b, r, t):
    """The sequence is in the iterations from the boundary at `t` on; its reservation becomes KV."""
    h = header(S)
    it = request(S, r)
    box = batch(S, b)
    release_reservation(S, r, t)
    context = it.prompt + it.emitted
    each = h.kv_bytes_per_token[it.store]
    box.kv += context * each
    box.growth += each
    box.context[it.store] += context
    box.count[it.store] += 1
    it.joined_at = box.iterations
    it.finish_at = box.iterations + (it.output - it.emitted)
    base = b * h.heap_stride
    heap(S, base + box.active).key = it.finish_at
    heap(S, base + box.active).request = r
    box.active += 1
    sift_up(S, base, box.active - 1)
    it.join_order = h.joins
    h.joins += 1
    it.decode_state = ACTIVE_SEQ
    it.fresh = 1
    lists.append(S, lists.fresh_list(S, b), LINK_BATCH, r)
    h.visible = 1


@kernel
def take_out(S, b, r, emitted):
    """The sequence, having emitted so many tokens, is in the batch no more (its heap entry is gone already)."""
    it = request(S, r)
    box = batch(S, b)
    context = it.prompt + emitted
    each = header(S).kv_bytes_per_token[it.store]
    box.kv -= context * each
    box.growth -= each
    box.context[it.store] -= context
    box.count[it.store] -= 1
    box.active -= 1
    if it.fresh:
        it.fresh = 0
        lists.remove(S, lists.fresh_list(S, b), LINK_BATCH, r)
    else:
        it.last_token_t = box.anchor_t - box.carry_s
    if emitted == 0:
        it.first_due_t = np.nan
    it.emitted = emitted
    header(S).visible = 1


@kernel
def advance_batch(S, b, steps, t):
    """The batch has made `steps` iterations and is at the boundary at `t`, which becomes the anchor."""
    it = batch(S, b)
    count_tokens(S, b, steps)
    settled = steps * it.kv * it.first_s + (it.kv * it.slope_s + it.growth * it.first_s) * (steps * (steps - 1) / 2)
    settled += it.growth * it.slope_s * ((steps - 1) * steps * (2 * steps - 1) / 6)
    it.memory_byte_s += settled
    it.busy_s += t - it.anchor_t
    it.iterations += steps
    it.kv += it.growth * steps
    for q in range(4):
        it.context[q] += it.count[q] * steps
    it.anchor_t = t


@kernel
def leave_finished(S, b):
    """Sequences that have emitted their last token leave at the anchor."""
    it = batch(S, b)
    base = b * header(S).heap_stride
    while it.active > 0 and heap(S, base).key == it.iterations:
        r = heap(S, base).request
        drop_from_heap(S, b, 0)
        take_out(S, b, r, request(S, r).output)
        drop_decode_load(S, r)
        end_request(S, r, it.anchor_t, COMPLETED)


@kernel
def pick_victim(S, b):
    """Heap position of the active sequence to preempt: lowest priority, then newest to join."""
    base = b * header(S).heap_stride
    best = np.int64(0)
    for i in range(1, batch(S, b).active):
        it = request(S, heap(S, base + i).request)
        least = request(S, heap(S, base + best).request)
        if it.priority < least.priority or (it.priority == least.priority and it.join_order > least.join_order):
            best = i
    return best


@kernel
def extract_active(S, b, i):
    """Take heap entry i out of the batch, keeping what it has emitted; returns the request."""
    r = heap(S, b * header(S).heap_stride + i).request
    emitted = emitted_so_far(S, r)
    drop_from_heap(S, b, i)
    take_out(S, b, r, emitted)
    return r


@kernel
def note_decode_start(S, b):
    """The iteration that starts at the anchor is the first one of sequences that have none yet."""
    r = queue(S, lists.fresh_list(S, b)).head
    while r >= 0:
        it = request(S, r)
        row = record(S, it.id)
        if math.isnan(row.decode_start_s):
            row.decode_start_s = batch(S, b).anchor_t
            decode_start_accrues(S, r, batch(S, b).anchor_t)
        if math.isnan(it.last_token_t):
            expect_first_token(S, r, batch(S, b).anchor_t + batch(S, b).first_s)
        r = it.link_next[LINK_BATCH]


@kernel
def start_iterations(S, b):
    """Leap from the anchor until the next leave or until memory is full; the batch is not empty."""
    it = batch(S, b)
    it.first_s = iteration_seconds(S, b)
    it.slope_s = iteration_slope_s(S, b)
    note_decode_start(S, b)
    it.event_at = heap(S, b * header(S).heap_stride).key - it.iterations
    if it.growth > 0:
        it.event_at = min(it.event_at, 1 + (it.capacity - it.reserved - it.kv) // it.growth)
    set_doing(S, b, ITERATING, it.anchor_t)
    schedule(S, batch_slot(S, b), boundary_t(S, b, it.event_at))


@kernel
def start_stop_step(S, b, seconds, restoring):
    """A step from the anchor in which no active sequence advances."""
    it = batch(S, b)
    it.first_s = seconds
    it.slope_s = 0.0
    it.event_at = 1
    it.restoring = restoring
    header(S).visible = 1
    set_doing(S, b, STOPPED, it.anchor_t)
    schedule(S, batch_slot(S, b), it.anchor_t + seconds)


@kernel
def go_idle(S, b, t):
    set_doing(S, b, IDLE, t)
    schedule(S, batch_slot(S, b), np.inf)


@kernel
def end_stop_step(S, b):
    """Account a stop step that is over (or cut at `t` by `cut_batch`)."""
    it = batch(S, b)
    it.busy_s += it.first_s
    it.memory_byte_s += it.kv * it.first_s
    it.anchor_t += it.first_s
    it.carry_s = it.carry_s + it.first_s if it.active > 0 else 0.0


@kernel
def reach_boundary(S, b):
    """The batch's event is due: account its steps, let finished sequences go, and compose in the settle."""
    it = batch(S, b)
    if it.doing == STOPPED:
        end_stop_step(S, b)
        if it.restoring >= 0:
            join_batch(S, b, it.restoring, it.anchor_t)
            it.restoring = -1
    else:
        steps = 1 if it.doing == MIXED else it.event_at
        advance_batch(S, b, steps, boundary_t(S, b, steps))
        leave_finished(S, b)
    set_doing(S, b, BOUNDARY, it.anchor_t)
    schedule(S, batch_slot(S, b), np.inf)
    kick_batch(S, b)
