"""Cost as it accrues, for the rewards of the environments (docs/model.md, section 11).

Every term of the cost is a rate and a sum: its value at time t is `sum + rate·φ(t)` with φ(t) = t − origin, or with
discounting at β per second φ(t) = (1 − e^(−β(t − origin)))/β. A rate that changes by Δ at time τ adds Δ to the rate
and −Δ·φ(τ) to the sum, so that the value is exact whenever it is read, and intervals add up.

Limits that pass while a request waits or decodes (*dues*) lie in a heap by time. They are looked at when the cost is
read; what happens to a request before that settles its dues itself.
"""

from __future__ import annotations

import math

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.records import COMPLETED, REJECTED
from pdenv.sim.state import (
    DUE_FIRST_TOKEN,
    DUE_TPOT,
    DUE_TTFT,
    N_TERMS,
    STAGE_DECODE,
    STAGE_NONE,
    STAGE_PREFILL,
    STAGE_TRANSFER,
    T_CHURN,
    T_DECODE,
    T_FAILURE,
    T_GPU,
    T_PREFILL,
    T_QUALITY,
    T_REJECTION,
    T_TPOT,
    T_TRANSFER,
    T_TTFT,
    TPOT_LATE,
    TTFT_LATE,
    W_CHURN,
    W_DECODE,
    W_FAILURE,
    W_GPU,
    W_PREFILL,
    W_QUALITY,
    W_REJECTION,
    W_TPOT_SLOPE,
    W_TPOT_STEP,
    W_TRANSFER,
    W_TTFT_SLOPE,
    W_TTFT_STEP,
    due,
    header,
    request,
    term,
)

DUE_MARGIN_S = 2e-9  # an event that falls into the same instant as the limit comes before it


@kernel
def phi(S, t):
    """Discounted time from the origin to `t`, s."""
    h = header(S)
    x = t - h.origin_t
    return -math.expm1(-h.beta_per_s * x) / h.beta_per_s if h.beta_per_s > 0.0 else x


@kernel
def change_rate(S, k, delta, t):
    it = term(S, k)
    it.rate += delta
    it.value -= delta * phi(S, t)


@kernel
def charge(S, k, amount, t):
    """`amount` cost units at once at `t`."""
    h = header(S)
    if h.beta_per_s > 0.0:
        amount *= math.exp(-h.beta_per_s * (t - h.origin_t))
    term(S, k).value += amount


@kernel
def is_charged(S, r):
    h = header(S)
    return h.accruing != 0 and h.charged_from <= request(S, r).id < h.charged_to


# ---- dues -------------------------------------------------------------------------------------------


@kernel
def swap_dues(S, i, k):
    a = due(S, i)
    b = due(S, k)
    t = a.t
    r = a.request
    number = a.id
    kind = a.kind
    a.t = b.t
    a.request = b.request
    a.id = b.id
    a.kind = b.kind
    b.t = t
    b.request = r
    b.id = number
    b.kind = kind


@kernel
def sink_due(S, i):
    n = header(S).n_dues
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if child + 1 < n and due(S, child + 1).t < due(S, child).t:
            child += 1
        if due(S, i).t <= due(S, child).t:
            return
        swap_dues(S, i, child)
        i = child


@kernel
def is_stale(S, i):
    """Has what the due was about happened, or the request left?"""
    entry = due(S, i)
    it = request(S, entry.request)
    if it.id != entry.id:
        return True
    if entry.kind == DUE_FIRST_TOKEN:
        return it.first_due_t != entry.t
    return entry.kind == DUE_TTFT and not math.isnan(it.first_t)


@kernel
def drop_stale_dues(S):
    """Make room: keep what is still to come, and heapify."""
    h = header(S)
    kept = np.int64(0)
    for i in range(h.n_dues):
        if not is_stale(S, i):
            swap_dues(S, kept, i)
            kept += 1
    h.n_dues = kept
    for i in range(kept // 2 - 1, -1, -1):
        sink_due(S, i)


@kernel
def push_due(S, t, r, kind):
    h = header(S)
    if h.n_dues == h.due_rows:
        drop_stale_dues(S)
    i = h.n_dues
    h.n_dues += 1
    entry = due(S, i)
    entry.t = t
    entry.request = r
    entry.id = request(S, r).id
    entry.kind = kind
    while i > 0 and due(S, (i - 1) // 2).t > due(S, i).t:
        swap_dues(S, (i - 1) // 2, i)
        i = (i - 1) // 2


@kernel
def pop_due(S):
    h = header(S)
    h.n_dues -= 1
    if h.n_dues > 0:
        swap_dues(S, 0, h.n_dues)
        sink_due(S, 0)


@kernel
def ttft_passes(S, r, t):
    """The TTFT limit passed at `t` and the first token is still to come."""
    weight = header(S).cost_weight
    request(S, r).late |= TTFT_LATE
    charge(S, T_TTFT, weight[W_TTFT_STEP], t)
    change_rate(S, T_TTFT, weight[W_TTFT_SLOPE], t)


@kernel
def tpot_passes(S, r, t):
    """The time that the TPOT limit gives all tokens passed at `t` and the last one is still to come."""
    weight = header(S).cost_weight
    request(S, r).late |= TPOT_LATE
    charge(S, T_TPOT, weight[W_TPOT_STEP], t)
    change_rate(S, T_TPOT, weight[W_TPOT_SLOPE], t)


@kernel
def take_dues(S, t):
    """Carry out every due before `t`."""
    while header(S).n_dues > 0 and due(S, 0).t < t - DUE_MARGIN_S:
        entry = due(S, 0)
        stale = is_stale(S, 0)
        r = entry.request
        at = entry.t
        kind = entry.kind
        pop_due(S)
        if stale:
            continue
        if kind == DUE_TTFT:
            ttft_passes(S, r, at)
        elif kind == DUE_TPOT:
            tpot_passes(S, r, at)
        else:
            first_token_comes(S, r, at)


# ---- what happens to a request ----------------------------------------------------------------------


@kernel
def arrival_accrues(S, r):
    """Waiting for the prefill starts."""
    it = request(S, r)
    it.stage = STAGE_NONE
    it.late = 0
    it.first_t = np.nan
    it.first_due_t = np.nan
    it.quality = 0.0
    if not is_charged(S, r):
        return
    h = header(S)
    it.stage = STAGE_PREFILL
    change_rate(S, T_PREFILL, h.cost_weight[W_PREFILL], it.arrival_t)
    push_due(S, it.arrival_t + h.ttft_limit_s, r, DUE_TTFT)


@kernel
def prefill_end_accrues(S, r, t):
    """The first prefill is over; the transfer, or the wait for decode, starts."""
    it = request(S, r)
    if it.stage == STAGE_PREFILL:
        weight = header(S).cost_weight
        change_rate(S, T_PREFILL, -weight[W_PREFILL], t)
        change_rate(S, T_TRANSFER, weight[W_TRANSFER], t)
        it.stage = STAGE_TRANSFER


@kernel
def decode_tokens(S, r):
    """m: tokens emitted from the first decode iteration on."""
    it = request(S, r)
    return it.output if header(S).decode_first and it.mode == 1 else it.output - 1


@kernel
def decode_rate(S, r):
    """Cost units per s of the decode part; in standard mode that part runs from the first token on."""
    h = header(S)
    tokens = request(S, r).output - 1 if h.standard else decode_tokens(S, r)
    return h.cost_weight[W_DECODE] / tokens if tokens > 0 else 0.0


@kernel
def decode_start_accrues(S, r, t):
    """The first iteration with the sequence starts."""
    it = request(S, r)
    if it.stage == STAGE_TRANSFER:
        change_rate(S, T_TRANSFER, -header(S).cost_weight[W_TRANSFER], t)
        it.stage = STAGE_DECODE
        if not header(S).standard:
            change_rate(S, T_DECODE, decode_rate(S, r), t)


@kernel
def expect_first_token(S, r, t):
    """The iteration that starts now emits the first token, at `t`."""
    it = request(S, r)
    if it.stage != STAGE_NONE and math.isnan(it.first_t):
        it.first_due_t = t
        push_due(S, t, r, DUE_FIRST_TOKEN)


@kernel
def first_token_comes(S, r, t):
    """TTFT is known; the time limit for the other tokens starts."""
    it = request(S, r)
    if it.stage == STAGE_NONE or not math.isnan(it.first_t):
        return
    h = header(S)
    settle_ttft(S, r, t)
    it.first_t = t
    if it.output > 1:
        push_due(S, t + h.tpot_limit_s * (it.output - 1), r, DUE_TPOT)
        if h.standard:
            change_rate(S, T_DECODE, decode_rate(S, r), t)


@kernel
def settle_ttft(S, r, t):
    """Waiting for the first token ends at `t`."""
    it = request(S, r)
    h = header(S)
    if not it.late & TTFT_LATE and t - it.arrival_t > h.ttft_limit_s:
        ttft_passes(S, r, it.arrival_t + h.ttft_limit_s)
    if it.late & TTFT_LATE:
        change_rate(S, T_TTFT, -h.cost_weight[W_TTFT_SLOPE], t)


@kernel
def settle_tpot(S, r, t):
    """Decoding ends at `t`."""
    it = request(S, r)
    h = header(S)
    span = h.tpot_limit_s * (it.output - 1)
    if not it.late & TPOT_LATE and it.output > 1 and t - it.first_t > span:
        tpot_passes(S, r, it.first_t + span)
    if it.late & TPOT_LATE:
        change_rate(S, T_TPOT, -h.cost_weight[W_TPOT_SLOPE], t)


@kernel
def end_accrues(S, r, t, status):
    """The request leaves: its rates end and penalties are due."""
    it = request(S, r)
    if it.stage == STAGE_NONE:
        return
    if it.first_due_t <= t:
        first_token_comes(S, r, it.first_due_t)
    weight = header(S).cost_weight
    if it.stage == STAGE_PREFILL:
        change_rate(S, T_PREFILL, -weight[W_PREFILL], t)
    elif it.stage == STAGE_TRANSFER:
        change_rate(S, T_TRANSFER, -weight[W_TRANSFER], t)
    elif not header(S).standard:
        change_rate(S, T_DECODE, -decode_rate(S, r), t)
    if math.isnan(it.first_t):
        settle_ttft(S, r, t)
    else:
        settle_tpot(S, r, t)
        if header(S).standard and it.output > 1:
            change_rate(S, T_DECODE, -decode_rate(S, r), t)
    it.stage = STAGE_NONE
    if status == REJECTED:
        charge(S, T_REJECTION, weight[W_REJECTION], t)
    elif status != COMPLETED:
        charge(S, T_FAILURE, weight[W_FAILURE], t)


@kernel
def quality_price(S, r, paired):
    """Cost units for the coarser of the wire and the store precision; the store counts once it is known."""
    it = request(S, r)
    weight = header(S).cost_weight
    price = weight[W_QUALITY + it.wire] if it.mode == 1 else 0.0
    return max(price, weight[W_QUALITY + it.store]) if paired else price


@kernel
def quality_accrues(S, r, price):
    """The request is now to be served at this price of quality (0: it is back at the gateway)."""
    it = request(S, r)
    if it.stage != STAGE_NONE and price != it.quality:
        charge(S, T_QUALITY, price - it.quality, header(S).now)
        it.quality = price


# ---- the pools --------------------------------------------------------------------------------------


@kernel
def billed_t(S, t):
    """`t`, or the end of the time in which GPUs are charged that is nearer."""
    h = header(S)
    return min(max(t, h.charged_since_t), h.charged_until_t)


@kernel
def gpus_accrue(S, gpus, t):
    """`gpus` more GPUs are billed from `t` on (fewer, if below 0)."""
    h = header(S)
    h.gpus_on += gpus
    if h.accruing:
        change_rate(S, T_GPU, gpus * h.cost_weight[W_GPU], billed_t(S, t))


@kernel
def scaling_accrues(S, t):
    """An instance has been switched on, or begins to drain."""
    h = header(S)
    h.scalings += 1
    if h.accruing and h.charged_since_t < t <= h.charged_until_t:
        charge(S, T_CHURN, h.cost_weight[W_CHURN], t)


# ---- reading ----------------------------------------------------------------------------------------


@kernel
def start_interval(S):
    """Accrue from now on. GPUs that are on already count from when they are charged."""
    h = header(S)
    h.origin_t = h.now
    for k in range(N_TERMS):
        term(S, k).value = 0.0
    it = term(S, T_GPU)
    it.value = -it.rate * phi(S, billed_t(S, h.now))


@kernel
def start_accrual(S):
    """Nothing has accrued and nobody is charged yet."""
    h = header(S)
    h.accruing = 1
    h.n_dues = 0
    for k in range(N_TERMS):
        term(S, k).rate = 0.0
    term(S, T_GPU).rate = h.gpus_on * h.cost_weight[W_GPU]
    start_interval(S)


@kernel
def take_accrual(S, out):
    """Fill `out[0:N_TERMS]` with what has accrued since the last time, discounted to then, in cost units."""
    h = header(S)
    take_dues(S, h.now)
    for k in range(N_TERMS):
        t = billed_t(S, h.now) if k == T_GPU else h.now
        out[k] = term(S, k).value + term(S, k).rate * phi(S, t)
    start_interval(S)
