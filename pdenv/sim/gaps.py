"""Inter-token gaps of a run of iterations, counted in closed form (docs/model.md, section 9)."""

from __future__ import annotations

import math

import numpy as np

from pdenv.sim import lists
from pdenv.sim.layout import kernel
from pdenv.sim.records import GAP_BINS, GAP_FIRST_S, GAP_RATIO
from pdenv.sim.state import LINK_BATCH, batch, gap_bin, header, queue, record, request

LOG_RATIO = math.log(GAP_RATIO)


@kernel
def gap_index(gap):
    k = np.int64(math.floor(math.log(gap / GAP_FIRST_S) / LOG_RATIO))
    return min(max(k, 0), GAP_BINS - 1)


@kernel
def count_gap(S, gap, times):
    """`times` gaps of `gap` seconds."""
    if times <= 0:
        return
    h = header(S)
    gap_bin(S, gap_index(max(gap, 1e-12))).count += times
    h.gap_sum_s += gap * times
    h.gap_max_s = max(h.gap_max_s, gap)


@kernel
def count_series(S, first, slope, steps, times):
    """`times` gaps for each of `steps` durations first, first + slope, …"""
    if steps <= 0 or times <= 0:
        return
    h = header(S)
    last = first + slope * (steps - 1)
    h.gap_sum_s += times * (steps * first + slope * (steps * (steps - 1) / 2))
    h.gap_max_s = max(h.gap_max_s, last)
    k = gap_index(first)
    end = gap_index(last)
    done = 0
    while k < end:
        edge = GAP_FIRST_S * GAP_RATIO ** (k + 1)
        upto = min(max(np.int64(math.ceil((edge - first) / slope)), done), steps)
        gap_bin(S, k).count += times * (upto - done)
        done = upto
        k += 1
    gap_bin(S, end).count += times * (steps - done)


@kernel
def count_fresh(S, b, t1, t2, steps):
    """Sequences whose next token has a gap of its own, or is their first: token times t1 and, if any, t2."""
    q = lists.fresh_list(S, b)
    r = queue(S, q).head
    while r >= 0:
        it = request(S, r)
        row = record(S, it.id)
        after = it.link_next[LINK_BATCH]
        if math.isnan(it.last_token_t):
            row.first_token_s = t1
            it.last_token_t = t1
            if steps >= 2:
                row.second_token_s = t2
        else:
            count_gap(S, t1 - it.last_token_t, 1)
            if math.isnan(row.second_token_s):
                row.second_token_s = t1
            it.fresh = 0
        if steps >= 2:
            it.fresh = 0
        if it.fresh == 0:
            lists.remove(S, q, LINK_BATCH, r)
        r = after


@kernel
def count_tokens(S, b, steps):
    """The batch has made `steps` iterations from its anchor: count every gap, note first and second tokens."""
    it = batch(S, b)
    if steps <= 0:
        return
    t1 = it.anchor_t + it.first_s
    bulk = it.active - queue(S, lists.fresh_list(S, b)).count
    count_gap(S, it.first_s + it.carry_s, bulk)
    count_fresh(S, b, t1, t1 + (it.first_s + it.slope_s), steps)
    count_series(S, it.first_s + it.slope_s, it.slope_s, steps - 1, it.active)
    it.carry_s = 0.0
