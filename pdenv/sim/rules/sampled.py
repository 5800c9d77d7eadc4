"""Routing rules that draw instances at random: random, power of two, join-idle-queue."""

from __future__ import annotations

import numpy as np

from pdenv.sim.gateway import decode_legal, prefill_legal
from pdenv.sim.layout import kernel
from pdenv.sim.rules.common import act_pair_or_else, finest_precision, seen_batch, seen_prefill
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
def nth_prefill(S, r, idle, n):
    """The n-th legal prefill instance (n counts from 0), or −1; with n < 0, how many there are.

    Only those without requests if `idle`.
    """
    found = np.int64(0)
    for p in range(header(S).n_prefill):
        if prefill_legal(S, r, p) and not (idle and seen_prefill(S, p).requests > 0):
            if found == n:
                return np.int64(p)
            found += 1
    return found if n < 0 else np.int64(-1)


@kernel
def nth_decode(S, r, q, idle, n):
    """The same for decode instances."""
    found = np.int64(0)
    for d in range(header(S).n_decode):
        if decode_legal(S, r, d, q) and not (idle and seen_batch(S, d).requests > 0):
            if found == n:
                return np.int64(d)
            found += 1
    return found if n < 0 else np.int64(-1)


@kernel
def random_prefill(S, r, idle):
    n = nth_prefill(S, r, idle, -1)
    return nth_prefill(S, r, idle, draw(S, n)) if n > 0 else np.int64(-1)


@kernel
def random_decode(S, r, q, idle):
    n = nth_decode(S, r, q, idle, -1)
    return nth_decode(S, r, q, idle, draw(S, n)) if n > 0 else np.int64(-1)


@kernel
def idle_or_random_prefill(S, r):
    p = random_prefill(S, r, True)
    return p if p >= 0 else random_prefill(S, r, False)


@kernel
def idle_or_random_decode(S, r, q):
    d = random_decode(S, r, q, True)
    return d if d >= 0 else random_decode(S, r, q, False)


@kernel
def shorter_of_two_prefills(S, r):
    """Of two legal prefill instances drawn without repetition the one with fewer requests (the first drawn)."""
    n = nth_prefill(S, r, False, -1)
    if n < 2:
        return nth_prefill(S, r, False, 0)
    i = draw(S, n)
    k = draw(S, n - 1)
    a = nth_prefill(S, r, False, i)
    b = nth_prefill(S, r, False, k + 1 if k >= i else k)
    return b if seen_prefill(S, b).requests < seen_prefill(S, a).requests else a


@kernel
def shorter_of_two_decodes(S, r, q):
    n = nth_decode(S, r, q, False, -1)
    if n < 2:
        return nth_decode(S, r, q, False, 0)
    i = draw(S, n)
    k = draw(S, n - 1)
    a = nth_decode(S, r, q, False, i)
    b = nth_decode(S, r, q, False, k + 1 if k >= i else k)
    return b if seen_batch(S, b).requests < seen_batch(S, a).requests else a


@kernel
def route_random(S, r):
    q = finest_precision(S, r)
    p = random_prefill(S, r, False)
    d = np.int64(-1) if header(S).bind_at_prefill_end else random_decode(S, r, q, False)
    act_pair_or_else(S, r, p, d, q)


@kernel
def route_power_of_two(S, r):
    q = finest_precision(S, r)
    p = shorter_of_two_prefills(S, r)
    d = np.int64(-1) if header(S).bind_at_prefill_end else shorter_of_two_decodes(S, r, q)
    act_pair_or_else(S, r, p, d, q)


@kernel
def route_join_idle_queue(S, r):
    """A random idle instance in each pool, else a random one."""
    q = finest_precision(S, r)
    p = idle_or_random_prefill(S, r)
    d = np.int64(-1) if header(S).bind_at_prefill_end else idle_or_random_decode(S, r, q)
    act_pair_or_else(S, r, p, d, q)
