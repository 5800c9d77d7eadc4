"""Rules that predict what a choice would cost the request: greedy, and rules that narrow its choice down."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import colocated_legal, decode_legal, may_hold, precision_allowed
from pdenv.sim.layout import kernel
from pdenv.sim.rules.common import (
    act_colocated_or_wait,
    act_hold,
    act_pair,
    finest_precision,
    iteration_estimate_s,
    least_work_candidate,
    least_work_colocated,
    mark_legal,
    path_seconds,
    prefill_estimate_s,
    profile_of_prefill,
    seen_batch,
    seen_prefill,
    speed_s,
    whole_prefill_s,
)
from pdenv.sim.rules.numbers import ADMISSION, CONDITIONAL, GREEDY, PULL, SIZE_INTERVAL
from pdenv.sim.rules.pairing import memory_wait_s
from pdenv.sim.rules.rows import (
    ADMIT_FACTOR,
    CUT_TOKENS,
    DECODE_WEIGHT,
    LOCAL_QUEUE_S,
    LOCAL_TOKENS,
    PREFILL_WEIGHT,
    PULL_BELOW_S,
    QUEUE_S,
    SHORT_SHARE,
    SPILL_S,
    TRANSFER_WEIGHT,
)
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_REJECT,
    ACT_WAIT,
    N_PRECISIONS,
    W_DECODE,
    W_PREFILL,
    W_QUALITY,
    W_TPOT_SLOPE,
    W_TPOT_STEP,
    W_TRANSFER,
    W_TTFT_SLOPE,
    W_TTFT_STEP,
    batch,
    header,
    prefill,
    request,
)
from pdenv.sim.steps import prefill_seconds


@kernel
def exposed_seconds(S, r, p, d, q):
    """Estimated transfer time that prefill does not hide."""
    h = header(S)
    t = path_seconds(S, r, p, d, q)
    if not h.layerwise:
        return t
    own = prefill_estimate_s(S, profile_of_prefill(S, p), r)
    return max(t - own * (h.layers - 1) / h.layers, t / h.layers)


@kernel
def late_cost(S, ttft, tpot):
    """Predicted SLA penalties."""
    h = header(S)
    cost = 0.0
    if ttft > h.ttft_limit_s:
        cost += h.cost_weight[W_TTFT_STEP] + h.cost_weight[W_TTFT_SLOPE] * (ttft - h.ttft_limit_s)
    if tpot > h.tpot_limit_s:
        cost += h.cost_weight[W_TPOT_STEP] + h.cost_weight[W_TPOT_SLOPE] * (tpot - h.tpot_limit_s)
    return cost


@kernel
def weight(S, row, part):
    """Weight of a part of the predicted cost: the rule's times the scenario's."""
    return header(S).parameter[row] * header(S).cost_weight[part]


@kernel
def pair_cost(S, r, p, d, q):
    """Predicted joint TPOT of the request on (p, d, q) plus SLA penalties and the price of the precisions."""
    h = header(S)
    store = q if h.mixed_store else batch(S, d).store
    ttft = seen_prefill(S, p).work_s + whole_prefill_s(S, p, r)
    decode_s = iteration_estimate_s(S, d, r)
    moved = exposed_seconds(S, r, p, d, q) + memory_wait_s(S, r, d, decode_s)
    cost = weight(S, PREFILL_WEIGHT, W_PREFILL) * ttft + weight(S, TRANSFER_WEIGHT, W_TRANSFER) * moved
    cost += weight(S, DECODE_WEIGHT, W_DECODE) * decode_s
    cost += max(h.cost_weight[W_QUALITY + q], h.cost_weight[W_QUALITY + store])
    return cost + late_cost(S, ttft, decode_s + moved / max(request(S, r).predicted - 1, 1))


@kernel
def colocated_cost(S, r, c):
    """The same on a co-located instance, where prefill work slows decode in proportion to its share."""
    h = header(S)
    b = h.n_decode + c
    decode_s = iteration_estimate_s(S, b, r)
    own = prefill_seconds(S, batch(S, b).profile, request(S, r).prompt, float(request(S, r).prompt) ** 2)
    ttft = seen_batch(S, b).work_s + own
    slowed = decode_s + ttft / max(request(S, r).predicted, 1)
    cost = weight(S, PREFILL_WEIGHT, W_PREFILL) * ttft + weight(S, DECODE_WEIGHT, W_DECODE) * slowed
    return cost + h.cost_weight[W_QUALITY + batch(S, b).store] + late_cost(S, ttft, slowed)


@kernel
def cheapest_pair(S, r):
    """Leave the pair of a candidate with the least predicted cost in the header; that cost, or ∞ if there is none.

    Ties go to the first in (p, d, precision) order. With late binding it is the candidate with the least work, and −∞.
    """
    h = header(S)
    least = np.inf
    if h.bind_at_prefill_end:
        p = least_work_candidate(S)
        if p < 0:
            return np.inf
        act_pair(S, p, -1, finest_precision(S, r))
        return -np.inf
    for p in range(h.n_prefill):
        if not prefill(S, p).candidate:
            continue
        for d in range(h.n_decode):
            for q in range(N_PRECISIONS):
                if precision_allowed(S, r, q) and decode_legal(S, r, d, q):
                    cost = pair_cost(S, r, p, d, q)
                    if cost < least:
                        least = cost
                        act_pair(S, p, d, q)
    return least


@kernel
def slower_candidates(S, p):
    """How many candidates come before p when the slowest is first; of equally fast ones, the lowest index."""
    own = speed_s(S, p)
    n = 0
    for other in range(header(S).n_prefill):
        if prefill(S, other).candidate:
            t = speed_s(S, other)
            if t > own or (t == own and other < p):
                n += 1
    return n


@kernel
def close_to_long(S, n):
    """Size-interval: of the n candidates the slowest are for short prompts, unless they have much less work."""
    h = header(S)
    n_short = min(max(int(h.parameter[SHORT_SHARE] * n + 0.5), 1), n - 1)
    least = np.inf
    for p in range(h.n_prefill):
        if prefill(S, p).candidate:
            if slower_candidates(S, p) < n_short:
                prefill(S, p).candidate = 2
            else:
                least = min(least, seen_prefill(S, p).work_s)
    for p in range(h.n_prefill):
        if prefill(S, p).candidate == 2:
            prefill(S, p).candidate = 1 if seen_prefill(S, p).work_s < least - h.parameter[SPILL_S] else 0


@kernel
def is_settled_colocated(S, r):
    """Conditional: short prompts, and all while prefill is busy, stay on a co-located instance that is not."""
    h = header(S)
    c = least_work_colocated(S, r)
    if c < 0 or seen_batch(S, h.n_decode + c).work_s >= h.parameter[LOCAL_QUEUE_S]:
        return False
    p = least_work_candidate(S)
    long = request(S, r).prompt >= h.parameter[LOCAL_TOKENS]
    if long and p >= 0 and seen_prefill(S, p).work_s <= h.parameter[QUEUE_S]:
        return False
    h.act_kind = ACT_COLOCATED
    h.act_h = c
    return True


@kernel
def is_held(S, r, n):
    """Pull: of the n candidates only the free ones; while there is none, hold."""
    h = header(S)
    limit_s = h.parameter[PULL_BELOW_S]
    free = np.int64(0)
    for p in range(h.n_prefill):
        if prefill(S, p).candidate and seen_prefill(S, p).work_s <= limit_s:
            free += 1
    if n > 0 and free == 0:
        if not may_hold(S, r):
            return False
        act_hold(S)
        return True
    for p in range(h.n_prefill):
        if seen_prefill(S, p).work_s > limit_s:
            prefill(S, p).candidate = 0
    return False


@kernel
def is_rejected(S, r, n):
    """Admission: no candidate would answer in time, and rejecting is allowed."""
    h = header(S)
    if n == 0 or not h.allow_reject:
        return False
    least = np.inf
    for p in range(h.n_prefill):
        if prefill(S, p).candidate:
            least = min(least, seen_prefill(S, p).work_s + whole_prefill_s(S, p, r))
    if h.now - request(S, r).arrival_t + least <= h.parameter[ADMIT_FACTOR] * h.ttft_limit_s:
        return False
    h.act_kind = ACT_REJECT
    return True


@kernel
def is_decided(S, r):
    """Mark the prefill instances that the rule leaves open as candidates; whether it decides without them."""
    rule = header(S).rule
    n = mark_legal(S, r)
    if rule == CONDITIONAL:
        return is_settled_colocated(S, r)
    if rule == PULL:
        return is_held(S, r, n)
    if rule == ADMISSION:
        return is_rejected(S, r, n)
    if rule == SIZE_INTERVAL and n >= 2 and request(S, r).prompt >= header(S).parameter[CUT_TOKENS]:
        close_to_long(S, n)
    return False


@kernel
def route_predicted(S, r):
    """The cheapest pair of a candidate; greedy and size-interval weigh co-located instances as well.

    The others use one, the one with the least work, only where there is no pair.
    """
    h = header(S)
    if is_decided(S, r):
        return
    h.act_kind = ACT_WAIT
    least = cheapest_pair(S, r)
    if not (h.rule == GREEDY or h.rule == SIZE_INTERVAL) or h.bind_at_prefill_end:
        if least == np.inf:
            act_colocated_or_wait(S, least_work_colocated(S, r))
        return
    for c in range(h.n_colocated):
        if colocated_legal(S, r, c):
            cost = colocated_cost(S, r, c)
            if cost < least:
                least = cost
                h.act_kind = ACT_COLOCATED
                h.act_h = c
