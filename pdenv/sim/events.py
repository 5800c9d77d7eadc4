"""The event queue: one time a slot, and the minimum of every block of 16 slots.

Slots in order of priority: transfers into d (D), prefill p (P), batch b (B), then the single ones below.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.state import header, slot, slot_block

BLOCK = 16

# Single slots, after the instances'.
DELIVERY, TIMERS, HOLD, SCRAPE, SCRAPE_SEEN, CONTROL, ARRIVALS, N_SINGLE = range(8)


@kernel
def transfer_slot(S, d):
    return d


@kernel
def prefill_slot(S, p):
    return header(S).n_decode + p


@kernel
def batch_slot(S, b):
    return header(S).n_decode + header(S).n_prefill + b


@kernel
def single_slot(S, k):
    return 2 * header(S).n_decode + header(S).n_prefill + header(S).n_colocated + k


def count_slots(n_prefill: int, n_decode: int, n_colocated: int) -> int:
    return 2 * n_decode + n_prefill + n_colocated + N_SINGLE


@kernel
def refresh_block(S, k):
    first = k * BLOCK
    last = min(first + BLOCK, header(S).n_slots)
    best = np.inf
    where = first
    for i in range(first, last):
        t = slot(S, i).t
        if t < best:
            best = t
            where = i
    slot_block(S, k).t = best
    slot_block(S, k).slot = where


@kernel
def schedule(S, i, t):
    """The next event of slot `i` is at `t` (infinity: none)."""
    k = i // BLOCK
    top = slot_block(S, k)
    before = slot(S, i).t
    if t == before:
        return
    slot(S, i).t = t
    if t < top.t or (t == top.t and i < top.slot):
        top.t = t
        top.slot = i
    elif top.slot == i:
        refresh_block(S, k)


@kernel
def next_due(S, limit):
    """The lowest slot with an event at `limit` or earlier, or −1."""
    h = header(S)
    for k in range((h.n_slots + BLOCK - 1) // BLOCK):
        if slot_block(S, k).t <= limit:
            for i in range(k * BLOCK, min((k + 1) * BLOCK, h.n_slots)):
                if slot(S, i).t <= limit:
                    return np.int64(i)
    return np.int64(-1)


@kernel
def next_slot(S):
    """The slot with the earliest event; ties go to the lowest."""
    best = np.inf
    where = np.int64(0)
    for k in range((header(S).n_slots + BLOCK - 1) // BLOCK):
        top = slot_block(S, k)
        if top.t < best:
            best = top.t
            where = top.slot
    return where
