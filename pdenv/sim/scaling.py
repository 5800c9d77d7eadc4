"""Elastic pools: warming, draining, role flips, the GPU budget (docs/model.md, section 8)."""

from __future__ import annotations

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accounts import (
    settle_batch_state,
    settle_prefill_queue,
    settle_prefill_state,
    settle_starved,
)
from pdenv.sim.accrual import gpus_accrue, quality_accrues, scaling_accrues
from pdenv.sim.batch import (
    advance_batch,
    boundary_t,
    extract_active,
    go_idle,
    iterations_done,
    kv_in_flight,
    release_reservation,
)
from pdenv.sim.decode import count_preemption, drop_ready
from pdenv.sim.events import CONTROL, TIMERS, schedule, single_slot
from pdenv.sim.gateway import schedule_delivery
from pdenv.sim.instances import fits_budget, next_decode_on, next_prefill_on
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load, drop_prefill_load
from pdenv.sim.receive import ask_pairing, count_revocation, give_up_grant, unpair
from pdenv.sim.state import (
    ACTIVE,
    AT_GATEWAY,
    DRAINING,
    GRANTED,
    IDLE,
    ITERATING,
    LINK_BATCH,
    LINK_DECODE,
    LINK_PREFILL,
    OFF,
    PAIRED,
    PREEMPTED,
    READY,
    STARTED,
    STOPPED,
    UNPAIRED,
    WARMING,
    batch,
    header,
    prefill,
    queue,
    record,
    request,
)
from pdenv.sim.transfer import kick_prefill

FLIP_TO_DECODE, FLIP_TO_PREFILL = 1, 2


@kernel
def set_prefill_state(S, p, state, t):
    settle_prefill_state(S, p, t)
    prefill(S, p).state = state
    header(S).visible = 1
    header(S).scraped = 1


@kernel
def set_decode_state(S, d, state, t):
    settle_batch_state(S, d, t)
    it = batch(S, d)
    was_on = it.state == ACTIVE or it.state == DRAINING
    is_on = state == ACTIVE or state == DRAINING
    if was_on != is_on:
        settle_starved(S, t)
        header(S).idle_decodes += 1 if is_on else -1
    it.state = state
    header(S).visible = 1
    header(S).scraped = 1


@kernel
def schedule_timers(S):
    """The earliest end of a warm-up, or drain deadline."""
    h = header(S)
    best = np.inf
    for p in range(h.n_prefill):
        if prefill(S, p).state == WARMING:
            best = min(best, prefill(S, p).timer_t)
    for d in range(h.n_decode):
        if batch(S, d).state == WARMING or batch(S, d).state == DRAINING:
            best = min(best, batch(S, d).timer_t)
    schedule(S, single_slot(S, TIMERS), best)


@kernel
def warm_prefill(S, seconds, t):
    """Warm the first OFF prefill instance, if the GPU budget allows."""
    p = next_prefill_on(S)
    if p < 0 or not fits_budget(S, prefill(S, p).gpus):
        return
    it = prefill(S, p)
    gpus_accrue(S, it.gpus, t)
    scaling_accrues(S, t)
    it.timer_t = t + (it.startup_s if seconds < 0.0 else seconds)
    it.flip = 0
    set_prefill_state(S, p, WARMING, t)


@kernel
def warm_decode(S, seconds, t):
    d = next_decode_on(S)
    if d < 0 or not fits_budget(S, batch(S, d).gpus):
        return
    it = batch(S, d)
    gpus_accrue(S, it.gpus, t)
    scaling_accrues(S, t)
    it.timer_t = t + (it.startup_s if seconds < 0.0 else seconds)
    it.flip = 0
    set_decode_state(S, d, WARMING, t)


@kernel
def pick_prefill_victim(S):
    """The ACTIVE prefill instance with the least KV in staging; −1 if it would be the last."""
    active = 0
    best = np.int64(-1)
    for p in range(header(S).n_prefill):
        if prefill(S, p).state == ACTIVE:
            active += 1
            if best < 0 or prefill(S, p).staging_used < prefill(S, best).staging_used:
                best = p
    return best if active >= 2 else np.int64(-1)


@kernel
def pick_decode_victim(S, t):
    """The ACTIVE decode instance with the least resident KV; −1 if it would be the last."""
    active = 0
    best = np.int64(-1)
    least = np.int64(0)
    for d in range(header(S).n_decode):
        if batch(S, d).state == ACTIVE:
            active += 1
            resident = batch(S, d).reserved + kv_in_flight(S, d, t)
            if best < 0 or resident < least:
                best = d
                least = resident
    return best if active >= 2 else np.int64(-1)


@kernel
def return_to_gateway(S, r, t):
    """A request that has not started its prefill is to be dispatched anew."""
    it = request(S, r)
    drop_prefill_load(S, r)
    if it.pairing:
        lists.remove(S, lists.PAIRING_QUEUE, LINK_DECODE, r)
        it.pairing = 0
    if it.d >= 0:
        unpair(S, r, t)
    it.p = -1
    it.prefill_state = AT_GATEWAY
    row = record(S, it.id)
    row.mode = 0
    row.prefill = -1
    row.decode = -1
    row.store_precision = -1
    row.wire_precision = -1
    quality_accrues(S, r, 0.0)
    other = queue(S, lists.GATEWAY_QUEUE).head
    while other >= 0 and request(S, other).id < it.id:
        other = request(S, other).link_next[LINK_PREFILL]
    lists.insert_before(S, lists.GATEWAY_QUEUE, LINK_PREFILL, r, other)


@kernel
def return_delivery(S, p, t):
    """Requests on their way to a draining prefill instance, last first."""
    r = queue(S, lists.DELIVERY_QUEUE).tail
    while r >= 0:
        before = request(S, r).link_prev[LINK_PREFILL]
        if request(S, r).mode == 1 and request(S, r).p == p:
            lists.remove(S, lists.DELIVERY_QUEUE, LINK_PREFILL, r)
            return_to_gateway(S, r, t)
        r = before
    schedule_delivery(S)


@kernel
def drain_prefill(S, p, flip, t):
    """No new work; what has not started goes back to the head of the gateway in order."""
    set_prefill_state(S, p, DRAINING, t)
    scaling_accrues(S, t)
    prefill(S, p).flip = flip
    header(S).draining += 1
    return_delivery(S, p, t)
    settle_prefill_queue(S, p, t)
    r = queue(S, lists.prefill_queue(S, p)).tail
    while r >= 0 and request(S, r).prefill_state != STARTED:
        before = request(S, r).link_prev[LINK_PREFILL]
        lists.remove(S, lists.prefill_queue(S, p), LINK_PREFILL, r)
        return_to_gateway(S, r, t)
        r = before
    kick_prefill(S, p)


@kernel
def next_unasked(S, d, after):
    """The request paired with d that has not asked for memory, with the lowest number above `after`, or −1."""
    best = np.int64(-1)
    for r in range(header(S).pool):
        it = request(S, r)
        if it.id > after and it.d == d and it.decode_state == PAIRED and (best < 0 or it.id < request(S, best).id):
            best = r
    return best


@kernel
def drain_decode(S, d, flip, t):
    """No new pairs; requests without a reservation are paired again."""
    h = header(S)
    set_decode_state(S, d, DRAINING, t)
    scaling_accrues(S, t)
    batch(S, d).flip = flip
    batch(S, d).timer_t = t + h.drain_max_s
    h.draining += 1
    q = lists.receive_queue(S, d)
    while queue(S, q).head >= 0:
        r = queue(S, q).head
        unpair(S, r, t)
        ask_pairing(S, r)
    r = next_unasked(S, d, -1)
    while r >= 0:
        unpair(S, r, t)
        ask_pairing(S, r)
        r = next_unasked(S, d, request(S, r).id)


@kernel
def evict(S, d, r, t):
    """At the drain deadline: revoke, or preempt, and pair again."""
    it = request(S, r)
    if it.decode_state == GRANTED:
        give_up_grant(S, r, t)
        count_revocation(S, r)
        record(S, it.id).grant_s = np.nan
        drop_decode_load(S, r)
        it.decode_state = UNPAIRED
    else:
        if it.decode_state == READY:
            drop_ready(S, r, t)
            count_revocation(S, r)
        elif it.grant_bytes > 0:
            release_reservation(S, r, t)
        elif it.decode_state == PREEMPTED:
            lists.remove(S, lists.preempted_list(S, d), LINK_BATCH, r)
        else:
            count_preemption(S, r)
        drop_decode_load(S, r)
        it.decode_state = PREEMPTED
        it.swapped = 0
    it.d = -1
    it.b = -1
    ask_pairing(S, r)


@kernel
def empty_batch(S, d, t):
    """Cut the running step at `t` and take every active sequence out."""
    it = batch(S, d)
    if it.doing == ITERATING:
        j = iterations_done(S, d, t)
        advance_batch(S, d, j, boundary_t(S, d, j))
    span = max(t - it.anchor_t, 0.0)
    if it.doing != IDLE:
        it.busy_s += span
        it.memory_byte_s += it.kv * span
    while it.active > 0:
        extract_active(S, d, it.active - 1)
    it.anchor_t = t
    it.carry_s = 0.0
    it.restoring = -1
    go_idle(S, d, t)


@kernel
def force_out(S, d, t):
    """The drain deadline has passed: everything still on the instance goes elsewhere."""
    empty_batch(S, d, t)
    q = lists.granted_list(S, d)
    while queue(S, q).head >= 0:
        evict(S, d, queue(S, q).head, t)
    for r in range(header(S).pool):
        it = request(S, r)
        if it.id >= 0 and it.b == d and it.decode_state >= GRANTED:
            evict(S, d, r, t)
    batch(S, d).timer_t = np.inf


@kernel
def ring_timers(S, t):
    """Warm-ups that have ended and drain deadlines that have passed."""
    h = header(S)
    for p in range(h.n_prefill):
        if prefill(S, p).state == WARMING and prefill(S, p).timer_t <= t:
            set_prefill_state(S, p, ACTIVE, t)
    for d in range(h.n_decode):
        it = batch(S, d)
        if it.timer_t <= t and it.state == WARMING:
            set_decode_state(S, d, ACTIVE, t)
        elif it.timer_t <= t and it.state == DRAINING:
            force_out(S, d, t)
    schedule_timers(S)


@kernel
def shrink_prefill(S, flip, t):
    p = pick_prefill_victim(S)
    if p >= 0:
        drain_prefill(S, p, flip, t)


@kernel
def shrink_decode(S, flip, t):
    d = pick_decode_victim(S, t)
    if d >= 0:
        drain_decode(S, d, flip, t)


@kernel
def apply_scale(S):
    """Carry out the scaling decision in the header: deltas, prefill first, then a flip."""
    h = header(S)
    t = h.now
    if h.act_scale_prefill != 0 or h.act_scale_decode != 0 or h.act_flip != 0:
        h.scale_quiet = 0
    if h.act_scale_prefill > 0:
        warm_prefill(S, -1.0, t)
    elif h.act_scale_prefill < 0:
        shrink_prefill(S, 0, t)
    if h.act_scale_decode > 0:
        warm_decode(S, -1.0, t)
    elif h.act_scale_decode < 0:
        shrink_decode(S, 0, t)
    if h.act_flip == FLIP_TO_DECODE and next_decode_on(S) >= 0:
        shrink_prefill(S, 1, t)
    elif h.act_flip == FLIP_TO_PREFILL and next_prefill_on(S) >= 0:
        shrink_decode(S, 1, t)
    schedule_timers(S)


@kernel
def prefill_is_empty(S, p):
    it = prefill(S, p)
    return not it.busy and it.staging_used == 0 and queue(S, lists.prefill_queue(S, p)).head < 0


@kernel
def decode_is_empty(S, d):
    it = batch(S, d)
    busy = it.active > 0 or it.reserved > 0 or it.doing == STOPPED
    return not busy and queue(S, lists.preempted_list(S, d)).head < 0


@kernel
def switch_off_drained(S, t):
    """Draining instances that hold nothing are OFF; flips warm their counterpart."""
    h = header(S)
    for p in range(h.n_prefill):
        it = prefill(S, p)
        if it.state == DRAINING and prefill_is_empty(S, p):
            set_prefill_state(S, p, OFF, t)
            h.draining -= 1
            gpus_accrue(S, -it.gpus, t)
            if it.flip:
                warm_decode(S, h.flip_delay_s, t)
    for d in range(h.n_decode):
        it = batch(S, d)
        if it.state == DRAINING and decode_is_empty(S, d):
            set_decode_state(S, d, OFF, t)
            h.draining -= 1
            gpus_accrue(S, -it.gpus, t)
            if it.flip:
                warm_prefill(S, h.flip_delay_s, t)
    schedule_timers(S)


@kernel
def tokens_at_gateway(S):
    tokens = np.int64(0)
    r = queue(S, lists.GATEWAY_QUEUE).head
    while r >= 0:
        tokens += request(S, r).prompt
        r = request(S, r).link_next[LINK_PREFILL]
    return tokens


@kernel
def note_tick(S):
    """Pool utilisation and arrivals over the control interval that has just ended, for scalers."""
    h = header(S)
    h.tick_waiting_tokens = tokens_at_gateway(S)
    h.tick_offered_s = h.offered_s
    h.offered_s = 0.0
    busy = 0.0
    demanded = 0.0
    active = 0.0
    for p in range(h.n_prefill):
        it = prefill(S, p)
        settle_prefill_state(S, p, h.now)
        b = it.busy_s + ((h.now - it.step_start) if it.busy else 0.0)
        s = it.stalled_s + ((h.now - it.stalled_since) if it.stalled else 0.0)
        busy += b - it.tick_busy_s
        demanded += b + s - it.tick_demand_s
        active += it.active_s - it.tick_active_s
        it.tick_busy_s = b
        it.tick_demand_s = b + s
        it.tick_active_s = it.active_s
    h.tick_prefill_busy = busy / active if active > 0.0 else 0.0
    h.tick_prefill_demanded = demanded / active if active > 0.0 else 0.0
    used = 0.0
    capacity = 0.0
    for d in range(h.n_decode):
        it = batch(S, d)
        if it.state == ACTIVE:
            used += it.reserved + kv_in_flight(S, d, h.now)
            capacity += it.capacity
    h.tick_decode_memory = used / capacity if capacity > 0.0 else 0.0


@kernel
def control_tick(S, t):
    h = header(S)
    h.tick += 1
    h.tick_due = 1
    schedule(S, single_slot(S, CONTROL), (h.tick + 1) * h.scaling_interval_s)
