"""Rules that weigh prefill, link and room for KV: KV-aware pairing, topology score, three-part."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import decode_legal, may_hold, precision_allowed, prefill_legal
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
    seen_batch,
    seen_prefill,
    whole_prefill_s,
)
from pdenv.sim.rules.rows import COMPRESS_ABOVE_S, LINK_WEIGHT, LONG_TOKENS, RECEIVE_LIMIT, ROOM_WEIGHT_S
from pdenv.sim.state import ACTIVE, N_PRECISIONS, batch, header, request


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
def link_score_s(S, r, p, d, q):
    """Weighted transfer and room of a decode instance for KV from p, s."""
    h = header(S)
    return h.parameter[LINK_WEIGHT] * path_seconds(S, r, p, d, q) + h.parameter[ROOM_WEIGHT_S] * kv_share(S, d)


@kernel
def best_link_decode(S, r, p, q):
    best = np.int64(-1)
    least = np.inf
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, q):
            score = link_score_s(S, r, p, d, q)
            if score < least:
                best = d
                least = score
    return best


@kernel
def route_topology_score(S, r):
    """Least sum of prefill work, weighted transfer and weighted share of KV memory taken."""
    h = header(S)
    q = finest_precision(S, r)
    if h.bind_at_prefill_end:
        act_pair_or_else(S, r, least_work_prefill(S, r), -1, q)
        return
    best_p = np.int64(-1)
    best_d = np.int64(-1)
    least = np.inf
    for p in range(h.n_prefill):
        if prefill_legal(S, r, p):
            d = best_link_decode(S, r, p, q)
            if d >= 0:
                score = seen_prefill(S, p).work_s + whole_prefill_s(S, p, r) + link_score_s(S, r, p, d, q)
                if score < least:
                    best_p = p
                    best_d = d
                    least = score
    act_pair_or_else(S, r, best_p, best_d, q)


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
