"""Compiled parts of the references: candidates for a decision, and a copy of a run made ready to be rolled forward."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pdenv.sim import compiled as engine
from pdenv.sim.accrual import (
    change_rate,
    decode_rate,
    expect_first_token,
    push_due,
    quality_price,
    start_accrual,
    take_dues,
)
from pdenv.sim.batch import boundary_t, iterations_done, sift_down
from pdenv.sim.events import batch_slot, schedule
from pdenv.sim.gateway import colocated_legal, decode_legal, precision_allowed, prefill_legal, schedule_arrival
from pdenv.sim.layout import JIT, kernel
from pdenv.sim.rules import choose_route, choose_scale
from pdenv.sim.rules.common import finest_precision, seen_prefill
from pdenv.sim.rules.predicted import colocated_cost, pair_cost
from pdenv.sim.rules.sampled import draw
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_PAIR,
    ACTIVE_SEQ,
    DUE_TPOT,
    DUE_TTFT,
    ITERATING,
    MIXED,
    N_PRECISIONS,
    N_TERMS,
    STAGE_DECODE,
    STAGE_PREFILL,
    STAGE_TRANSFER,
    T_DECODE,
    T_GPU,
    T_PREFILL,
    T_TPOT,
    T_TRANSFER,
    T_TTFT,
    TPOT_LATE,
    TTFT_LATE,
    UNPAIRED,
    W_PREFILL,
    W_TPOT_SLOPE,
    W_TRANSFER,
    W_TTFT_SLOPE,
    batch,
    header,
    heap,
    record,
    request,
    term,
)

#: One possible decision; the fields are those of the header's `act_…`.
ACTION = np.dtype(
    [
        ("cost", np.float64),  # predicted, cost units
        ("kind", np.int64),
        ("p", np.int64),
        ("d", np.int64),
        ("h", np.int64),
        ("precision", np.int64),
        ("scale_prefill", np.int64),
        ("scale_decode", np.int64),
        ("flip", np.int64),
    ],
    align=True,
)
MANTISSA = 1 << 53


def no_actions(n: int) -> np.ndarray:
    """`(n,)` ACTION, all zero, as kernels take them."""
    rows = np.zeros(n, ACTION)
    return rows if JIT else rows.view(np.recarray)


# ---- candidates -------------------------------------------------------------------------------------


@kernel
def keep(actions, n, cost, kind, p, d, c, q):
    """Insert an action into the `n` cheapest so far, which are in order of cost; returns how many there are now."""
    if n == len(actions):
        if not cost < actions[n - 1].cost:
            return n
        n -= 1
    i = n
    while i > 0 and actions[i - 1].cost > cost:
        actions[i] = actions[i - 1]
        i -= 1
    it = actions[i]
    it.cost = cost
    it.kind = kind
    it.p = p
    it.d = d
    it.h = c
    it.precision = q
    return n + 1


@kernel
def cheapest_actions(S, actions):
    """Fill `actions` (ACTION) with the legal ones that greedy predicts to be cheapest; returns how many.

    Where decode instances are chosen at prefill end, prefill instances in order of their predicted work.
    """
    h = header(S)
    r = h.pending_request
    n = np.int64(0)
    for p in range(h.n_prefill):
        if not prefill_legal(S, r, p):
            continue
        if h.bind_at_prefill_end:
            n = keep(actions, n, seen_prefill(S, p).work_s, ACT_PAIR, p, -1, -1, finest_precision(S, r))
            continue
        for d in range(h.n_decode):
            for q in range(N_PRECISIONS):
                if precision_allowed(S, r, q) and decode_legal(S, r, d, q):
                    n = keep(actions, n, pair_cost(S, r, p, d, q), ACT_PAIR, p, d, -1, q)
    for c in range(h.n_colocated):
        if colocated_legal(S, r, c):
            n = keep(actions, n, colocated_cost(S, r, c), ACT_COLOCATED, -1, -1, c, 0)
    return n


@kernel
def base_route(S):
    """Let the base rule answer the pending route decision, in the header."""
    h = header(S)
    outside = h.outside
    h.outside = 0
    choose_route(S, h.pending_request)
    h.outside = outside


@kernel
def base_scale(S):
    """The same for a scaling decision."""
    h = header(S)
    outside = h.outside
    h.outside = 0
    choose_scale(S)
    h.outside = outside


# ---- an imagined run --------------------------------------------------------------------------------


@kernel
def uniform(S):
    """In [0, 1), from the run's random stream."""
    return draw(S, MANTISSA) / MANTISSA


@kernel
def emitted_by_now(S, r):
    """Output tokens that the request has been seen to emit."""
    it = request(S, r)
    if it.decode_state != ACTIVE_SEQ:
        return it.emitted
    box = batch(S, it.b)
    done = iterations_done(S, it.b, header(S).now) if box.doing == ITERATING else 0
    return it.emitted + box.iterations - it.joined_at + done


@kernel
def imagined_output(S, r, edges, ratios):
    """An output length above what is emitted already: predicted × a ratio output/predicted from training.

    Args:
        edges: `(bins − 1,)` predicted tokens, ascending: where the bins of predictions end.
        ratios: `(bins, m)` ratios in training, ascending in each bin.
    """
    it = request(S, r)
    emitted = emitted_by_now(S, r)
    k = np.int64(0)
    while k < len(edges) and it.predicted >= edges[k]:
        k += 1
    m = ratios.shape[1]
    low = np.int64(0)
    high = np.int64(m)
    while low < high:  # first ratio whose length is above what is emitted
        middle = (low + high) // 2
        if ratios[k, middle] * it.predicted > emitted:
            high = middle
        else:
            low = middle + 1
    x = uniform(S)
    if low == m:
        return emitted + 1 + np.int64(x * 0.2 * emitted)  # longer than anything in training
    return max(np.int64(ratios[k, low + np.int64(x * (m - low))] * it.predicted + 0.5), emitted + 1)


@kernel
def give_output(S, r, output):
    it = request(S, r)
    if it.decode_state == ACTIVE_SEQ:
        it.finish_at += output - it.output
    it.output = output


@kernel
def order_leaves(S, b):
    """The batch's sequences leave at other times than before: it composes anew at its next boundary."""
    box = batch(S, b)
    base = b * header(S).heap_stride
    for i in range(box.active):
        heap(S, base + i).key = request(S, heap(S, base + i).request).finish_at
    for i in range(box.active // 2 - 1, -1, -1):
        sift_down(S, base, i, box.active)
    if box.doing == ITERATING:
        box.event_at = iterations_done(S, b, header(S).now) + 1
        schedule(S, batch_slot(S, b), boundary_t(S, b, box.event_at))


@kernel
def first_token_due_t(S, r):
    """End of the iteration that emits the first token of a sequence that has just joined, s; NaN: not known."""
    it = request(S, r)
    box = batch(S, it.b)
    if it.decode_state == ACTIVE_SEQ and it.fresh and (box.doing == ITERATING or box.doing == MIXED):
        return box.anchor_t + box.first_s
    return np.nan


@kernel
def first_token_accrues(S, r, t):
    """Penalties of TTFT and TPOT go on from now; steps that were due before are past."""
    h = header(S)
    it = request(S, r)
    row = record(S, it.id)
    first = row.first_token_s
    if math.isnan(first) and it.b >= 0:
        due = first_token_due_t(S, r)
        if due <= t:
            first = due
        elif due > t:
            expect_first_token(S, r, due)
    if math.isnan(first):
        limit = it.arrival_t + h.ttft_limit_s
        if limit > t:
            push_due(S, limit, r, DUE_TTFT)
        else:
            it.late |= TTFT_LATE
            change_rate(S, T_TTFT, h.cost_weight[W_TTFT_SLOPE], t)
        return
    it.first_t = first
    if it.output > 1:
        limit = first + h.tpot_limit_s * (it.output - 1)
        if limit > t:
            push_due(S, limit, r, DUE_TPOT)
        else:
            it.late |= TPOT_LATE
            change_rate(S, T_TPOT, h.cost_weight[W_TPOT_SLOPE], t)
        if h.standard:
            change_rate(S, T_DECODE, decode_rate(S, r), t)


@kernel
def request_accrues(S, r, t):
    """The cost of a request under way accrues from now on, as if it had done so all the time."""
    h = header(S)
    it = request(S, r)
    row = record(S, it.id)
    it.late = 0
    it.first_t = np.nan
    it.first_due_t = np.nan
    it.quality = quality_price(S, r, it.decode_state != UNPAIRED) if it.mode != 0 else 0.0
    if math.isnan(row.prefill_end_s):
        it.stage = STAGE_PREFILL
        change_rate(S, T_PREFILL, h.cost_weight[W_PREFILL], t)
    elif math.isnan(row.decode_start_s):
        it.stage = STAGE_TRANSFER
        change_rate(S, T_TRANSFER, h.cost_weight[W_TRANSFER], t)
    else:
        it.stage = STAGE_DECODE
        if not h.standard:
            change_rate(S, T_DECODE, decode_rate(S, r), t)
    first_token_accrues(S, r, t)


@kernel
def answer(S, it):
    """Write an ACTION into the header."""
    h = header(S)
    h.act_kind = it.kind
    h.act_p = it.p
    h.act_d = it.d
    h.act_h = it.h
    h.act_precision = it.precision
    h.act_scale_prefill = it.scale_prefill
    h.act_scale_decode = it.scale_decode
    h.act_flip = it.flip


@kernel
def answer_with(S, actions, k):
    """`answer` with row k of an array."""
    answer(S, actions[k])


@kernel
def renew_records(S, source, target, blank):
    """Give the imagined run the records that it will read and write: of requests under way, and empty ones to come."""
    h = header(S)
    for r in range(h.pool):
        i = request(S, r).id
        if i >= 0:
            target[i] = source[i]
    for i in range(h.next_arrival, h.n_arrivals):
        target[i] = blank[0]


@kernel
def imagine(S, actions, k, seed, offer_until, source, target, blank, guess, edges, ratios):
    """Make a copy of a run at a decision ready to be rolled forward under its rule, with its cost accruing from 0.

    Arrivals are read from the copy's own rows, up to `offer_until`.

    Args:
        actions, k: the decision to be taken is `actions[k]`.
        seed: of the copy's random stream.
        source, target, blank: RECORD arrays: of the run, of the copy, and one empty row.
        guess: draw output lengths of requests under way (see `imagined_output`); else keep the true ones.
    """
    h = header(S)
    answer(S, actions[k])
    h.random = np.uint64(seed)
    h.outside = 0
    h.n_arrivals = offer_until
    h.offer_until = offer_until
    h.measured_from = offer_until
    h.charged_from = 0
    h.charged_to = offer_until
    h.charged_since_t = 0.0
    h.charged_until_t = np.inf
    h.beta_per_s = 0.0
    renew_records(S, source, target, blank)
    schedule_arrival(S)
    start_accrual(S)
    for r in range(h.pool):
        if request(S, r).id < 0:
            continue
        if guess:
            give_output(S, r, imagined_output(S, r, edges, ratios))
        request_accrues(S, r, h.now)
    if guess:
        for b in range(h.n_decode + h.n_colocated):
            order_leaves(S, b)


@kernel
def spent(S, until):
    """Cost units that have accrued; GPUs are charged until `until`, or not at all where it is NaN."""
    h = header(S)
    take_dues(S, h.now)
    total = 0.0
    for k in range(N_TERMS):
        if k != T_GPU:
            total += term(S, k).value + term(S, k).rate * (h.now - h.origin_t)
    if not math.isnan(until):
        it = term(S, T_GPU)
        total += it.value + it.rate * (max(until, h.now) - h.origin_t)
    return total


@functools.cache
def compiled() -> SimpleNamespace:
    """The entry points; see `pdenv.sim.compiled`."""
    functions = {
        "cheapest_actions": cheapest_actions,
        "base_route": base_route,
        "base_scale": base_scale,
        "imagine": imagine,
        "answer_with": answer_with,
        "spent": spent,
    }
    return engine.entry_points(functions, "references", 10, engine.SOURCES, Path(__file__).parent)
