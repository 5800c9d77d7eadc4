"""Routing rules that look at one number: random, round-robin, fewest requests, least work, co-located."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import decode_legal, prefill_legal
from pdenv.sim.layout import kernel
from pdenv.sim.rules.common import (
    act_colocated_or_wait,
    act_pair_or_else,
    finest_precision,
    least_tokens_decode,
    least_work_colocated,
    least_work_prefill,
    seen_batch,
    seen_prefill,
)
from pdenv.sim.state import header


@kernel
def draw(S, n):
    """A uniform integer in [0, n) from the environment's splitmix64 stream (Steele et al., OOPSLA 2014)."""
    h = header(S)
    h.random += np.uint64(0x9E3779B97F4A7C15)
    z = h.random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64((z >> np.uint64(11)) % np.uint64(n))


@kernel
def nth_legal_prefill(S, r, n):
    """The n-th legal prefill instance (n counts from 0), or −1; with n < 0, how many there are."""
    found = np.int64(0)
    for p in range(header(S).n_prefill):
        if prefill_legal(S, r, p):
            if found == n:
                return np.int64(p)
            found += 1
    return found if n < 0 else np.int64(-1)


@kernel
def nth_legal_decode(S, r, q, n):
    """The same for decode instances."""
    found = np.int64(0)
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, q):
            if found == n:
                return np.int64(d)
            found += 1
    return found if n < 0 else np.int64(-1)


@kernel
def random_decode(S, r, q):
    n = nth_legal_decode(S, r, q, -1)
    return nth_legal_decode(S, r, q, draw(S, n)) if n > 0 else np.int64(-1)


@kernel
def route_random(S, r):
    q = finest_precision(S, r)
    n = nth_legal_prefill(S, r, -1)
    p = nth_legal_prefill(S, r, draw(S, n)) if n > 0 else np.int64(-1)
    d = np.int64(-1) if header(S).bind_at_prefill_end else random_decode(S, r, q)
    act_pair_or_else(S, r, p, d, q)


@kernel
def next_decode(S, r, q):
    """The next legal decode instance in turn, or −1."""
    h = header(S)
    for i in range(1, h.n_decode + 1):
        d = (h.last_d + i) % h.n_decode
        if decode_legal(S, r, d, q):
            h.last_d = d
            return d
    return np.int64(-1)


@kernel
def next_prefill(S, r):
    """The next legal prefill instance in turn, or −1."""
    h = header(S)
    for i in range(1, h.n_prefill + 1):
        p = (h.last_p + i) % h.n_prefill
        if prefill_legal(S, r, p):
            h.last_p = p
            return p
    return np.int64(-1)


@kernel
def route_round_robin(S, r):
    q = finest_precision(S, r)
    p = next_prefill(S, r)
    d = np.int64(-1) if header(S).bind_at_prefill_end else next_decode(S, r, q)
    act_pair_or_else(S, r, p, d, q)


@kernel
def fewest_requests_decode(S, r, q):
    best = np.int64(-1)
    for d in range(header(S).n_decode):
        if (best < 0 or seen_batch(S, d).requests < seen_batch(S, best).requests) and decode_legal(S, r, d, q):
            best = d
    return best


@kernel
def route_least_requests(S, r):
    """Join the shortest queue, counted in requests."""
    best = np.int64(-1)
    for p in range(header(S).n_prefill):
        if (best < 0 or seen_prefill(S, p).requests < seen_prefill(S, best).requests) and prefill_legal(S, r, p):
            best = p
    q = finest_precision(S, r)
    act_pair_or_else(S, r, best, fewest_requests_decode(S, r, q), q)


@kernel
def route_least_work(S, r):
    """Least predicted prefill seconds; decode with the fewest prompt and predicted tokens."""
    q = finest_precision(S, r)
    act_pair_or_else(S, r, least_work_prefill(S, r), least_tokens_decode(S, r, q), q)


@kernel
def route_colocated(S, r):
    act_colocated_or_wait(S, least_work_colocated(S, r))
