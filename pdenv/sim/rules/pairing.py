"""Rules that weigh prefill, link and decode together: KV-aware pairing, greedy, three-part."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import colocated_legal, decode_legal, may_hold, precision_allowed, prefill_legal
from pdenv.sim.layout import kernel
from pdenv.sim.rules.common import (
    act_colocated_or_wait,
    act_hold,
    act_pair,
    act_pair_or_else,
    finest_precision,
    iteration_estimate_s,
    least_work_colocated,
    least_work_prefill,
    path_seconds,
    prefill_estimate_s,
    profile_of_prefill,
    seen_batch,
    seen_prefill,
)
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_WAIT,
    ACTIVE,
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
    request,
)
from pdenv.sim.steps import prefill_seconds

# Rows of Header.parameter.
LONG_TOKENS = 0  # kv-aware, three-part: from this prompt length on the link decides
RECEIVE_LIMIT = 1  # three-part: hold while every decode instance has so many requests in its receive queue
COMPRESS_ABOVE_S = 2  # three-part: compress a transfer that would take longer
# 3..9: scaler, see rules/scalers.py


@kernel
def kv_share(S, d):
    """Share of the instance's KV memory that its known requests' prompts take."""
    return seen_batch(S, d).kv_bytes / batch(S, d).capacity


@kernel
def emptiest_decode(S, r, q):
    best = np.int64(-1)
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, q) and (best < 0 or kv_share(S, d) < kv_share(S, best)):
            best = d
    return best


@kernel
def memory_wait_s(S, r, d, decode_s):
    """Estimated wait for decode memory: what is over capacity, at the rate at which sequences leave."""
    h = header(S)
    box = batch(S, d)
    need = seen_batch(S, d).kv_bytes + request(S, r).prompt * h.kv_bytes_per_token[box.store]
    over = need / box.capacity - 1.0
    return over * request(S, r).predicted * decode_s if over > 0.0 else 0.0


@kernel
def arrival_estimate_s(S, r, p, d, q):
    """Estimated time from prefill end to a place in decode memory: the transfer and the wait for room."""
    return path_seconds(S, r, p, d, q) + memory_wait_s(S, r, d, iteration_estimate_s(S, d, r))


@kernel
def nearest_decode(S, r, p, q):
    """The legal decode instance that KV from p reaches soonest; ties: emptiest, then first."""
    best = np.int64(-1)
    least = np.inf
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, q):
            t = arrival_estimate_s(S, r, p, d, q)
            if best < 0 or t < least or (t == least and kv_share(S, d) < kv_share(S, best)):
                best = d
                least = t
    return best


@kernel
def kv_aware_decode(S, r, p, q):
    """Long prompts follow the fastest link, short ones go where there is most room."""
    if request(S, r).prompt >= header(S).parameter[LONG_TOKENS]:
        return nearest_decode(S, r, p, q)
    return emptiest_decode(S, r, q)


@kernel
def kv_aware_pair(S, r, q):
    """Best (p, d): for long prompts the least sum of predicted prefill wait, transfer and wait for room."""
    h = header(S)
    if h.bind_at_prefill_end or request(S, r).prompt < h.parameter[LONG_TOKENS]:
        return least_work_prefill(S, r), emptiest_decode(S, r, q)
    best_p = np.int64(-1)
    best_d = np.int64(-1)
    least = np.inf
    for p in range(h.n_prefill):
        if not prefill_legal(S, r, p):
            continue
        for d in range(h.n_decode):
            if decode_legal(S, r, d, q):
                t = seen_prefill(S, p).work_s + arrival_estimate_s(S, r, p, d, q)
                if t < least:
                    best_p = p
                    best_d = d
                    least = t
    return best_p, best_d


@kernel
def route_kv_aware(S, r):
    q = finest_precision(S, r)
    p, d = kv_aware_pair(S, r, q)
    act_pair_or_else(S, r, p, d, q)


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
def pair_cost(S, r, p, d, q):
    """Predicted joint TPOT of the request on (p, d, q) plus SLA penalties and the price of the precisions."""
    h = header(S)
    store = q if h.mixed_store else batch(S, d).store
    k = profile_of_prefill(S, p)
    ttft = seen_prefill(S, p).work_s + prefill_seconds(S, k, request(S, r).prompt, float(request(S, r).prompt) ** 2)
    decode_s = iteration_estimate_s(S, d, r)
    moved = exposed_seconds(S, r, p, d, q) + memory_wait_s(S, r, d, decode_s)
    cost = h.cost_weight[W_PREFILL] * ttft + h.cost_weight[W_TRANSFER] * moved + h.cost_weight[W_DECODE] * decode_s
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
    cost = h.cost_weight[W_PREFILL] * ttft + h.cost_weight[W_DECODE] * slowed
    return cost + h.cost_weight[W_QUALITY + batch(S, b).store] + late_cost(S, ttft, slowed)


@kernel
def route_greedy(S, r):
    """The legal action with the least predicted cost; ties go to the first in (p, d, precision) order."""
    h = header(S)
    least = np.inf
    h.act_kind = ACT_WAIT
    if h.bind_at_prefill_end:
        act_pair_or_else(S, r, least_work_prefill(S, r), -1, finest_precision(S, r))
        return
    for p in range(h.n_prefill):
        if not prefill_legal(S, r, p):
            continue
        for d in range(h.n_decode):
            for q in range(N_PRECISIONS):
                if precision_allowed(S, r, q) and decode_legal(S, r, d, q):
                    cost = pair_cost(S, r, p, d, q)
                    if cost < least:
                        least = cost
                        act_pair(S, p, d, q)
    for c in range(h.n_colocated):
        if colocated_legal(S, r, c):
            cost = colocated_cost(S, r, c)
            if cost < least:
                least = cost
                h.act_kind = ACT_COLOCATED
                h.act_h = c


@kernel
def shallowest_receive_queue(S):
    """Smallest receive-queue depth of the ACTIVE decode instances."""
    least = np.inf
    for d in range(header(S).n_decode):
        if batch(S, d).state == ACTIVE:
            least = min(least, float(seen_batch(S, d).receiving))
    return least


@kernel
def tier_precision(S, r, p, d):
    """The least compression, within the tier, that keeps the transfer below the limit; else the most."""
    q = finest_precision(S, r)
    best = q
    least = np.inf
    while q < N_PRECISIONS:
        if precision_allowed(S, r, q) and decode_legal(S, r, d, q):
            t = path_seconds(S, r, p, d, q)
            if t <= header(S).parameter[COMPRESS_ABOVE_S]:
                return q
            if t < least:
                least = t
                best = q
        q += 1
    return best


@kernel
def route_three_part(S, r):
    """Rate matching by receive-queue depth, least-loaded prefill, KV-aware pairing, precision by tier."""
    h = header(S)
    if h.n_decode > 0 and may_hold(S, r) and shallowest_receive_queue(S) >= h.parameter[RECEIVE_LIMIT]:
        act_hold(S)
        return
    q = finest_precision(S, r)
    p, d = kv_aware_pair(S, r, q)
    if p < 0 or (d < 0 and not h.bind_at_prefill_end):
        act_colocated_or_wait(S, least_work_colocated(S, r))
        return
    if d >= 0 and not h.bind_at_prefill_end:
        q = tier_precision(S, r, p, d)
    act_pair(S, p, d, q)
