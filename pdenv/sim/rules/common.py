"""What compiled rules share: legal candidates, loads as schedulers see them, and estimates from them."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import (
    colocated_legal,
    decode_legal,
    precision_allowed,
    predicted_prefill_s,
    prefill_legal,
)
from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_HOLD,
    ACT_PAIR,
    ACT_WAIT,
    N_PRECISIONS,
    batch,
    header,
    path,
    port,
    prefill,
    profile,
    request,
    seen,
)
from pdenv.sim.steps import decode_base_seconds, prefill_seconds

SPEED_TOKENS = 4096  # length of the prompt by which the speeds of prefill instances are compared


@kernel
def seen_prefill(S, p):
    return seen(S, p)


@kernel
def seen_batch(S, b):
    return seen(S, header(S).n_prefill + b)


@kernel
def finest_precision(S, r):
    """The most precise wire format that the request's tier allows."""
    q = 0
    while q < N_PRECISIONS - 1 and not precision_allowed(S, r, q):
        q += 1
    return q


@kernel
def act_pair(S, p, d, q):
    h = header(S)
    h.act_kind = ACT_PAIR
    h.act_p = p
    h.act_d = -1 if h.bind_at_prefill_end else d
    h.act_precision = q


@kernel
def act_hold(S):
    header(S).act_kind = ACT_HOLD


@kernel
def least_work_prefill(S, r):
    """The legal prefill instance with the least predicted work, or −1."""
    best = np.int64(-1)
    for p in range(header(S).n_prefill):
        if (best < 0 or seen_prefill(S, p).work_s < seen_prefill(S, best).work_s) and prefill_legal(S, r, p):
            best = p
    return best


@kernel
def mark_legal(S, r):
    """Make the legal prefill instances the candidates; how many they are."""
    n = np.int64(0)
    for p in range(header(S).n_prefill):
        prefill(S, p).candidate = 1 if prefill_legal(S, r, p) else 0
        n += prefill(S, p).candidate
    return n


@kernel
def least_work_candidate(S):
    """The candidate with the least predicted work, or −1."""
    best = np.int64(-1)
    for p in range(header(S).n_prefill):
        if prefill(S, p).candidate and (best < 0 or seen_prefill(S, p).work_s < seen_prefill(S, best).work_s):
            best = p
    return best


@kernel
def least_tokens_decode(S, r, q):
    """The legal decode instance with the fewest prompt and predicted tokens, or −1."""
    best = np.int64(-1)
    for d in range(header(S).n_decode):
        if (best < 0 or seen_batch(S, d).tokens < seen_batch(S, best).tokens) and decode_legal(S, r, d, q):
            best = d
    return best


@kernel
def least_work_colocated(S, r):
    """The legal co-located instance with the least predicted prefill work, then fewest tokens, or −1."""
    h = header(S)
    best = np.int64(-1)
    for c in range(h.n_colocated):
        if not colocated_legal(S, r, c):
            continue
        if best < 0:
            best = c
            continue
        a = seen_batch(S, h.n_decode + c)
        b = seen_batch(S, h.n_decode + best)
        if a.work_s < b.work_s or (a.work_s == b.work_s and a.tokens < b.tokens):
            best = c
    return best


@kernel
def act_pair_or_else(S, r, p, d, q):
    """Dispatch to the pair if there is one, else co-located, else wait."""
    if p >= 0 and (d >= 0 or header(S).bind_at_prefill_end):
        act_pair(S, p, d, q)
    else:
        act_colocated_or_wait(S, least_work_colocated(S, r))


@kernel
def act_colocated_or_wait(S, c):
    h = header(S)
    if c >= 0:
        h.act_kind = ACT_COLOCATED
        h.act_h = c
    else:
        h.act_kind = ACT_WAIT


@kernel
def flows_seen(S, k):
    return port(S, k).seen_flows if header(S).scrape_interval_s > 0.0 else port(S, k).flows


@kernel
def path_seconds(S, r, p, d, q):
    """Transfer time if one more flow shared every port of the path evenly, with latency and cost per byte, s."""
    h = header(S)
    way = path(S, p * h.n_decode + d)
    share = np.inf
    for hop in range(way.hops):
        k = way.port[hop]
        share = min(share, port(S, k).capacity / (flows_seen(S, k) + 1))
    size = float(request(S, r).prompt * h.kv_bytes_per_token[q])
    return way.latency_s + size * way.cost[q] + size / share


@kernel
def iteration_estimate_s(S, b, r):
    """Iteration time of the batch with the requests that it is known to have and this one, s."""
    h = header(S)
    box = batch(S, b)
    known = seen_batch(S, b)
    tokens = known.kv_bytes // h.kv_bytes_per_token[box.store] + request(S, r).prompt
    law = profile(S, box.profile)
    sequences = min(known.requests + 1, box.max_batch)
    return decode_base_seconds(S, box.profile, sequences) + law.decode_c[box.store] * tokens


@kernel
def whole_prefill_s(S, p, r):
    """Step of the whole prompt on prefill instance p, s."""
    n = request(S, r).prompt
    return prefill_seconds(S, profile_of_prefill(S, p), n, float(n) ** 2)


@kernel
def speed_s(S, p):
    """How slow prefill instance p is: what a prompt of SPEED_TOKENS adds to its work, s."""
    return predicted_prefill_s(S, profile_of_prefill(S, p), SPEED_TOKENS)


@kernel
def prefill_estimate_s(S, k, r):
    return predicted_prefill_s(S, k, request(S, r).prompt)


@kernel
def profile_of_prefill(S, p):
    return prefill(S, p).profile
