"""Routing rules that look at one number: round-robin, fewest requests or tokens, least work, co-located."""

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
def route_least_tokens(S, r):
    """Fewest prompt tokens to compute; decode with the fewest prompt and predicted tokens."""
    best = np.int64(-1)
    for p in range(header(S).n_prefill):
        if (best < 0 or seen_prefill(S, p).tokens < seen_prefill(S, best).tokens) and prefill_legal(S, r, p):
            best = p
    q = finest_precision(S, r)
    act_pair_or_else(S, r, best, least_tokens_decode(S, r, q), q)


@kernel
def route_colocated(S, r):
    act_colocated_or_wait(S, least_work_colocated(S, r))
