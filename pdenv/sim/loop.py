"""The event loop: instants, settles and decisions (docs/model.md, section 2)."""

from __future__ import annotations

import math

import numpy as np

from pdenv.sim import lists
from pdenv.sim.batch import reach_boundary, wake_batch
from pdenv.sim.colocated import compose_colocated, end_chunk
from pdenv.sim.decode import compose_decode
from pdenv.sim.events import (
    ARRIVALS,
    CONTROL,
    DELIVERY,
    HOLD,
    SCRAPE,
    SCRAPE_SEEN,
    TIMERS,
    next_due,
    next_slot,
    schedule,
    single_slot,
    transfer_slot,
)
from pdenv.sim.gateway import apply_pair, apply_route, arrive, decode_legal, deliver_next, may_offer
from pdenv.sim.layout import kernel
from pdenv.sim.prefilling import end_step, start_step
from pdenv.sim.receive import serve_receive_queue
from pdenv.sim.rules import choose_pair, choose_route, choose_scale
from pdenv.sim.scaling import apply_scale, control_tick, note_tick, ring_timers, switch_off_drained
from pdenv.sim.stale import show_scrape, take_scrape
from pdenv.sim.state import (
    ACTIVE,
    BOUNDARIES,
    DRAINING,
    ERROR_NONE,
    EVENTS,
    GATEWAY,
    LINK_DECODE,
    LINK_FLOW,
    MIXED,
    NO_DECISION,
    PAIR,
    PAIRING,
    PAIRING_AGAIN,
    RETURN_DECISION,
    RETURN_DONE,
    RETURN_ERROR,
    RETURN_GROW,
    RETURN_TIME,
    ROUTE,
    SCALE,
    SCALING,
    STOPPED,
    TIE_S,
    batch,
    header,
    kicked_batch,
    kicked_prefill,
    prefill,
    queue,
    request,
    slot,
)
from pdenv.sim.transfer import flow_event, mark_inbound, reschedule_inbound, solve_flows

QUIET_LIMIT = 1000  # ticks in a row in which nothing but ticks happens and nothing can


@kernel
def first_due_inbound(S, d, limit):
    """The inbound flow with the lowest request number among those with an event up to `limit`, or −1."""
    best = np.int64(-1)
    r = queue(S, lists.inbound_list(S, d)).head
    while r >= 0:
        it = request(S, r)
        if it.flow_event_t <= limit and (best < 0 or it.id < request(S, best).id):
            best = r
        r = it.link_next[LINK_FLOW]
    return best


@kernel
def transfer_event(S, d, t):
    """Flow events into decode instance d that fall into this instant, in order of request number."""
    limit = header(S).instant_t + TIE_S
    it = batch(S, d)
    alone = it.next_flow >= 0 and not it.arrivals_changed
    r = np.int64(it.next_flow) if alone else first_due_inbound(S, d, limit)
    while r >= 0:
        due = request(S, r).flow_event_t
        header(S).now = max(header(S).now, due)
        ended = flow_event(S, r, max(due, t))
        if ended:
            wake_batch(S, d, max(due, t))
        if alone and (ended or request(S, r).flow_event_t > limit):
            break
        r = first_due_inbound(S, d, limit)
    schedule(S, transfer_slot(S, d), np.inf)
    mark_inbound(S, d)


@kernel
def batch_event(S, b):
    mixed = batch(S, b).doing == MIXED
    if mixed or batch(S, b).doing == STOPPED:
        header(S).visible = 1
    reach_boundary(S, b)
    if mixed:
        end_chunk(S, b)


@kernel
def single_event(S, k, t):
    h = header(S)
    if k == DELIVERY:
        deliver_next(S, t)
    elif k == TIMERS:
        ring_timers(S, t)
    elif k == HOLD:
        schedule(S, single_slot(S, HOLD), np.inf)
    elif k == SCRAPE:
        take_scrape(S, t)
        if h.scrape_delay_s <= 0.0:
            h.scraped = 1
    elif k == SCRAPE_SEEN:
        schedule(S, single_slot(S, SCRAPE_SEEN), np.inf)
        show_scrape(S)
        h.scraped = 1
    elif k == CONTROL:
        control_tick(S, t)
    else:
        arrive(S)
        h.scraped = 1


@kernel
def process_event(S, i, t):
    """Carry out the event of slot i."""
    h = header(S)
    n_flow = h.n_decode
    n_step = n_flow + h.n_prefill
    n_all = n_step + h.n_decode + h.n_colocated
    h.events += 1
    h.now = max(h.now, t)
    if i < n_flow:
        transfer_event(S, i, t)
    elif i < n_step:
        end_step(S, i - n_flow)
    elif i < n_all:
        batch_event(S, i - n_step)
    else:
        k = i - n_all
        quiet = k != DELIVERY and k != ARRIVALS
        if quiet:
            h.quiet += 1
        single_event(S, k, t)
        if quiet:
            return
    h.quiet = 0


@kernel
def any_decode_legal(S, r):
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, request(S, r).wire):
            return True
    return False


@kernel
def settle_scaling(S):
    """Whether the scaling decision that is due has been taken."""
    h = header(S)
    if h.pending != SCALE:
        note_tick(S)
        h.scale_quiet += 1
        h.act_scale_prefill = 0
        h.act_scale_decode = 0
        h.act_flip = 0
        if not choose_scale(S):
            h.pending = SCALE
            return False
    h.pending = NO_DECISION
    h.tick_due = 0
    apply_scale(S)
    return True


@kernel
def settle_pairing(S):
    """Whether every request that needs a decode instance, and can have one, has got it."""
    h = header(S)
    if h.pending == PAIR:
        h.pending = NO_DECISION
        apply_pair(S, h.pending_request)
    r = queue(S, lists.PAIRING_QUEUE).head
    while r >= 0 and h.error == ERROR_NONE:
        after = request(S, r).link_next[LINK_DECODE]
        if any_decode_legal(S, r):
            if not choose_pair(S, r):
                h.pending = PAIR
                h.pending_request = r
                return False
            apply_pair(S, r)
        r = after
    return True


@kernel
def settle_boundaries(S):
    """Compose the next step of every batch that was kicked."""
    h = header(S)
    i = 0
    while i < h.kicked_batches:
        b = kicked_batch(S, i).i
        if batch(S, b).colocated:
            compose_colocated(S, b, h.now)
        elif batch(S, b).state == ACTIVE or batch(S, b).state == DRAINING:
            compose_decode(S, b, h.now)
        i += 1


@kernel
def settle_grants(S):
    h = header(S)
    for i in range(h.kicked_batches):
        b = kicked_batch(S, i).i
        batch(S, b).kicked = 0
        if not batch(S, b).colocated:
            serve_receive_queue(S, b, h.now)
    h.kicked_batches = 0


@kernel
def settle_gateway(S):
    """Whether the gateway has been served until it holds or is empty."""
    h = header(S)
    if h.scrape_interval_s > 0.0:
        h.visible = h.scraped
        h.scraped = 0
    if h.pending == ROUTE:
        h.pending = NO_DECISION
        apply_route(S, h.pending_request)
        h.visible = 0
    while h.error == ERROR_NONE and may_offer(S):
        r = queue(S, lists.GATEWAY_QUEUE).head
        if not choose_route(S, r):
            h.pending = ROUTE
            h.pending_request = r
            return False
        apply_route(S, r)
        h.visible = 0
    return True


@kernel
def sort_kicked_prefills(S):
    for i in range(1, header(S).kicked_prefills):
        p = kicked_prefill(S, i).i
        k = i
        while k > 0 and kicked_prefill(S, k - 1).i > p:
            kicked_prefill(S, k).i = kicked_prefill(S, k - 1).i
            k -= 1
        kicked_prefill(S, k).i = p


@kernel
def settle_prefills(S):
    """Start steps on idle prefill instances, in index order."""
    h = header(S)
    sort_kicked_prefills(S)
    for i in range(h.kicked_prefills):
        p = kicked_prefill(S, i).i
        prefill(S, p).kicked = 0
        start_step(S, p, h.now)
    h.kicked_prefills = 0


@kernel
def settle(S):
    """Go on with the settle under way; whether it has ended (else a decision is pending or there is an error)."""
    h = header(S)
    if h.phase == SCALING:
        if h.tick_due and not settle_scaling(S):
            return False
        h.phase = PAIRING
    if h.phase == PAIRING:
        if queue(S, lists.PAIRING_QUEUE).head >= 0 and not settle_pairing(S):
            return False
        h.phase = BOUNDARIES
    if h.phase == BOUNDARIES:
        if h.kicked_batches > 0:
            settle_boundaries(S)
        if h.draining > 0:
            switch_off_drained(S, h.now)
        h.phase = PAIRING_AGAIN
    if h.phase == PAIRING_AGAIN:
        if queue(S, lists.PAIRING_QUEUE).head >= 0 and not settle_pairing(S):
            return False
        if h.kicked_batches > 0:
            settle_grants(S)
        h.phase = GATEWAY
    if h.phase == GATEWAY:
        if queue(S, lists.GATEWAY_QUEUE).head >= 0 and not settle_gateway(S):
            return False
    if h.error != ERROR_NONE:
        return False
    if h.kicked_batches > 0:
        settle_boundaries(S)
        settle_grants(S)
    if h.kicked_prefills > 0:
        settle_prefills(S)
    if h.dirty_flows > 0 or h.dirty_ports > 0:
        solve_flows(S, h.now)
    if h.changed_inbounds > 0:
        reschedule_inbound(S)
    h.phase = EVENTS
    h.instant_t = np.nan
    h.visible = 0
    h.scraped = 0
    return True


@kernel
def is_over(S, measured_only):
    """Has everyone (or every measured request) ended?"""
    h = header(S)
    if measured_only:
        return h.measured_left == 0
    return h.ended == h.n_arrivals


@kernel
def only_ticks_left(S):
    """Is nothing to come but ticks, holds and scaling timers?"""
    last = single_slot(S, 0)
    for i in range(last):
        if slot(S, i).t < np.inf:
            return False
    return slot(S, last + DELIVERY).t == np.inf and slot(S, last + ARRIVALS).t == np.inf


@kernel
def advance(S, until, measured_only):
    """Run until `until`, a decision from outside, the end, a full request pool or an error; says which."""
    h = header(S)
    while True:
        if h.phase != EVENTS:
            if not settle(S):
                return RETURN_ERROR if h.error != ERROR_NONE else RETURN_DECISION
        in_instant = not math.isnan(h.instant_t)
        i = next_due(S, h.instant_t + TIE_S) if in_instant else next_slot(S)
        if i < 0:
            h.phase = SCALING
            continue
        t = slot(S, i).t
        if not in_instant:
            if is_over(S, measured_only):
                return RETURN_DONE
            if t == np.inf and until == np.inf:
                return RETURN_DONE
            if not t <= until:
                h.now = max(h.now, until)
                return RETURN_TIME
            if h.quiet > QUIET_LIMIT and until == np.inf and only_ticks_left(S):
                return RETURN_DONE
        if i == single_slot(S, ARRIVALS) and h.free < 0:
            return RETURN_GROW
        if not in_instant:
            h.instant_t = t
        process_event(S, i, t)


@kernel
def advance_each(blocks, until, measured_only, why):
    """`advance` every block whose `why` is RETURN_GROW (not yet run), and say in `why` why it stopped.

    Args:
        blocks: `(n,)` addresses.
        until: `(n,)` s.
        measured_only: `(n,)` bool.
        why: `(n,)` int64.
    """
    for i in range(len(blocks)):
        if why[i] == RETURN_GROW:
            why[i] = advance(blocks[i], until[i], measured_only[i])
