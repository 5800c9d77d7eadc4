"""Compiled scaling rules: pool deltas at a control tick."""

from __future__ import annotations

import numpy as np

from pdenv.sim.instances import count_decode, count_prefill, fits_budget, next_decode_on, next_prefill_on
from pdenv.sim.layout import kernel
from pdenv.sim.rules.common import seen_batch, seen_prefill, speed_s
from pdenv.sim.rules.rows import (
    BACKLOG_HIGH_TOKENS,
    BACKLOG_LOW_TOKENS,
    BUSY_AFTER,
    DECODE_HIGH,
    DECODE_LOW,
    DECODE_TARGET,
    LEVEL_WEIGHT,
    MEMORY_AFTER,
    PREFILL_HIGH,
    PREFILL_LOW,
    PREFILL_TARGET,
    QUIET_TICKS,
    SHRINK_BELOW,
    TREND_WEIGHT,
)
from pdenv.sim.state import ACTIVE, WARMING, batch, header, prefill, profile
from pdenv.sim.steps import decode_base_seconds


@kernel
def band(value, low, high):
    """+1 above the band, −1 below it, 0 inside (hysteresis)."""
    if value > high:
        return 1
    return -1 if value < low else 0


@kernel
def scale_by_utilisation(S):
    """Prefill by demanded compute utilisation, decode by memory utilisation, independently.

    After an action both pools rest for QUIET_TICKS ticks, so that its effect is seen before the next one.
    """
    h = header(S)
    if h.scale_quiet <= h.parameter[QUIET_TICKS]:
        return
    up = band(h.tick_prefill_demanded, h.parameter[PREFILL_LOW], h.parameter[PREFILL_HIGH])
    down = band(h.tick_decode_memory, h.parameter[DECODE_LOW], h.parameter[DECODE_HIGH])
    h.act_scale_prefill = up
    h.act_scale_decode = down


@kernel
def can_add_prefill(S):
    """Is there a prefill instance to switch on, and does the GPU budget allow it?"""
    p = next_prefill_on(S)
    return p >= 0 and fits_budget(S, prefill(S, p).gpus)


@kernel
def can_add_decode(S):
    d = next_decode_on(S)
    return d >= 0 and fits_budget(S, batch(S, d).gpus)


@kernel
def decode_bytes(S, state):
    """KV memory of the decode instances in a state."""
    total = 0.0
    for d in range(header(S).n_decode):
        if batch(S, d).state == state:
            total += batch(S, d).capacity
    return total


@kernel
def demanded_bytes(S):
    """KV in use or granted on ACTIVE decode instances, and about what their receive queues wait for."""
    h = header(S)
    total = h.tick_decode_memory * decode_bytes(S, ACTIVE)
    for d in range(h.n_decode):
        known = seen_batch(S, d)
        if batch(S, d).state == ACTIVE and known.requests > 0:
            total += known.receiving * (known.kv_bytes / known.requests)
    return total


@kernel
def memory_growth(S):
    """By what factor the share of KV memory demanded would grow with one ACTIVE decode instance fewer; ∞: no bound.

    Sequences stay as long as their iterations take, and those grow with the batch. Where a share f of an iteration
    grows in proportion to it and g times the requests come to an instance, g (1 − f) / (1 − g f) times as many are
    there on average (Little's law with an iteration time linear in the batch).
    """
    h = header(S)
    fixed = 0.0
    whole = 0.0
    n = 0
    for d in range(h.n_decode):
        box = batch(S, d)
        if box.state == ACTIVE:
            known = seen_batch(S, d)
            tokens = known.kv_bytes // h.kv_bytes_per_token[box.store]
            sequences = min(max(known.requests, 1), box.max_batch)
            n += 1
            fixed += decode_base_seconds(S, box.profile, 1)
            whole += (
                decode_base_seconds(S, box.profile, sequences) + profile(S, box.profile).decode_c[box.store] * tokens
            )
    if n < 2:
        return np.inf
    more = n / (n - 1)
    growing = 1.0 - fixed / whole
    left = 1.0 - more * growing
    return more * (1.0 - growing) / left if left > 0.0 else np.inf


@kernel
def grow_at_once_shrink_late(S, grow_prefill, spare_prefill, grow_decode, spare_decode):
    """+1 where a pool is short; −1 where it could do without one for more than QUIET_TICKS ticks in a row.

    A pool with instances that warm up is not spare: what they bring has not been seen yet.
    """
    h = header(S)
    spare_prefill = spare_prefill and not grow_prefill and count_prefill(S, WARMING) == 0
    spare_decode = spare_decode and not grow_decode and count_decode(S, WARMING) == 0
    h.spare_prefill_ticks = h.spare_prefill_ticks + 1 if spare_prefill else 0
    h.spare_decode_ticks = h.spare_decode_ticks + 1 if spare_decode else 0
    if grow_prefill and can_add_prefill(S):
        h.act_scale_prefill = 1
    elif h.spare_prefill_ticks > h.parameter[QUIET_TICKS]:
        h.act_scale_prefill = -1
        h.spare_prefill_ticks = 0
    if grow_decode and can_add_decode(S):
        h.act_scale_decode = 1
    elif h.spare_decode_ticks > h.parameter[QUIET_TICKS]:
        h.act_scale_decode = -1
        h.spare_decode_ticks = 0


@kernel
def scale_by_queue(S):
    """Prefill by its backlog in tokens, the gateway's included; decode by KV memory demanded.

    A pool shrinks only if the instances that are left could carry the load of now.
    """
    h = header(S)
    active = count_prefill(S, ACTIVE)
    backlog = h.tick_waiting_tokens
    for p in range(h.n_prefill):
        if prefill(S, p).state == ACTIVE:
            backlog += seen_prefill(S, p).tokens
    grow_prefill = backlog > h.parameter[BACKLOG_HIGH_TOKENS] * (active + count_prefill(S, WARMING))
    short = backlog < h.parameter[BACKLOG_LOW_TOKENS] * (active - 1)
    spare_prefill = short and h.tick_prefill_demanded * active < h.parameter[BUSY_AFTER] * (active - 1)
    demanded = demanded_bytes(S)
    capacity = decode_bytes(S, ACTIVE)
    grow_decode = demanded > h.parameter[DECODE_HIGH] * (capacity + decode_bytes(S, WARMING))
    spare_decode = demanded * memory_growth(S) < h.parameter[MEMORY_AFTER] * capacity
    grow_at_once_shrink_late(S, grow_prefill, spare_prefill, grow_decode, spare_decode)


@kernel
def prefill_speed(S, state):
    """How many prefill instances like instance 0 those in a state are worth."""
    total = 0.0
    for p in range(header(S).n_prefill):
        if prefill(S, p).state == state:
            total += speed_s(S, 0) / speed_s(S, p)
    return total


@kernel
def ticks_ahead(S, startup_s):
    """How far to look: what is asked for now serves from its start-up time on, until the tick after that."""
    interval_s = header(S).scaling_interval_s
    return (startup_s + interval_s) / interval_s


@kernel
def slowest_prefill_startup_s(S):
    longest = 0.0
    for p in range(header(S).n_prefill):
        longest = max(longest, prefill(S, p).startup_s)
    return longest


@kernel
def slowest_decode_startup_s(S):
    longest = 0.0
    for d in range(header(S).n_decode):
        longest = max(longest, batch(S, d).startup_s)
    return longest


@kernel
def holt(S, level, trend, value):
    """Level and trend after one more value (double exponential smoothing; Holt 1957)."""
    h = header(S)
    a = h.parameter[LEVEL_WEIGHT]
    b = h.parameter[TREND_WEIGHT]
    if h.forecasts == 0:
        return value, 0.0
    now = a * value + (1.0 - a) * (level + trend)
    return now, b * (now - level) + (1.0 - b) * trend


@kernel
def forecast_prefill(S):
    """Prefill work expected to be offered, in seconds of instance 0 a second."""
    h = header(S)
    level, trend = holt(S, h.prefill_level, h.prefill_trend, h.tick_offered_s / h.scaling_interval_s)
    h.prefill_level = level
    h.prefill_trend = trend
    return level + trend * ticks_ahead(S, slowest_prefill_startup_s(S))


@kernel
def forecast_decode(S):
    """KV memory expected to be demanded, bytes."""
    h = header(S)
    level, trend = holt(S, h.decode_level, h.decode_trend, demanded_bytes(S))
    h.decode_level = level
    h.decode_trend = trend
    return level + trend * ticks_ahead(S, slowest_decode_startup_s(S))


@kernel
def scale_by_forecast(S):
    """A floor for each pool from a forecast of its load, and one more where the pool is overloaded already."""
    h = header(S)
    work = forecast_prefill(S)
    kv_bytes = forecast_decode(S)
    h.forecasts += 1
    target = h.parameter[PREFILL_TARGET]
    left = h.parameter[SHRINK_BELOW]
    active = count_prefill(S, ACTIVE)
    speed = prefill_speed(S, ACTIVE)
    hot = h.tick_prefill_demanded > h.parameter[PREFILL_HIGH] and count_prefill(S, WARMING) == 0
    grow_prefill = hot or work > target * (speed + prefill_speed(S, WARMING))
    cool = h.tick_prefill_demanded * active < target * (active - 1)
    spare_prefill = cool and work * active < left * target * speed * (active - 1)
    target = h.parameter[DECODE_TARGET]
    capacity = decode_bytes(S, ACTIVE)
    hot = h.tick_decode_memory > h.parameter[DECODE_HIGH] and count_decode(S, WARMING) == 0
    grow_decode = hot or kv_bytes > target * (capacity + decode_bytes(S, WARMING))
    growth = memory_growth(S)
    cool = h.tick_decode_memory * growth < target
    spare_decode = cool and kv_bytes * growth < left * target * capacity
    grow_at_once_shrink_late(S, grow_prefill, spare_prefill, grow_decode, spare_decode)
