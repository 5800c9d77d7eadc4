"""Scaling: how the pools change at a control tick. Each class is the twin of a compiled scaler."""

from __future__ import annotations

import math
from typing import Protocol

from baselines.estimates import base_seconds, speed_seconds
from pdenv.sim.state import ACTIVE, OFF, WARMING
from pdenv.sim.view import Scale, View


class Scaling(Protocol):
    """Anything that sizes the pools."""

    def scale(self, view: View) -> Scale:
        """Pool deltas at a control tick."""
        ...


class FixedScaling:
    """The pools stay as they are."""

    name = "fixed"

    def scale(self, view: View) -> Scale:
        return Scale()


class UtilisationScaling:
    """Prefill pool by demanded compute utilisation, decode pool by memory utilisation, independently.

    Nothing happens inside the (low, high) bands, nor for `quiet_ticks` ticks after an action, so that its
    effect is seen before the next one. Dynamo's planner, in its `throughput` and `load` modes, scales the two
    pools by thresholds on the prefill queue and on decode KV memory.
    """

    name = "utilisation"

    def __init__(self, prefill: tuple[float, float], decode: tuple[float, float], quiet_ticks: float) -> None:
        self.prefill = prefill
        self.decode = decode
        self.quiet_ticks = quiet_ticks
        self.ticks = 0  # since the last action

    def scale(self, view: View) -> Scale:
        self.ticks += 1
        if self.ticks <= self.quiet_ticks:
            return Scale()
        answer = Scale(_band(view.prefill_demanded, *self.prefill), _band(view.decode_memory, *self.decode))
        if answer != Scale():
            self.ticks = 0
        return answer


def _band(value: float, low: float, high: float) -> int:
    """+1 above the band, −1 below it, 0 inside."""
    if value > high:
        return 1
    return -1 if value < low else 0


class GrowAtOnceShrinkLate:
    """+1 where a pool is short; −1 where it could do without one for more than `quiet_ticks` ticks in a row.

    A part of the scalers below. Being short of capacity costs at once, and what is asked for comes only after its
    start-up; too much costs little for a while. Nothing is removed while instances warm up.
    """

    def __init__(self, quiet_ticks: float) -> None:
        self.quiet_ticks = quiet_ticks
        self.spare_ticks = [0, 0]  # prefill, decode

    def scale(self, view: View, grow: tuple[bool, bool], spare: tuple[bool, bool]) -> Scale:
        """Deltas of (prefill, decode), of which some are short and others could do with one instance fewer."""
        return Scale(*(self._delta(view, pool, grow[pool], spare[pool]) for pool in (0, 1)))

    def _delta(self, view: View, pool: int, grow: bool, spare: bool) -> int:
        states = (view.prefill_state, view.decode_state)[pool]
        spare = spare and not grow and WARMING not in states
        self.spare_ticks[pool] = self.spare_ticks[pool] + 1 if spare else 0
        if grow and _can_add(view, pool):
            return 1
        if self.spare_ticks[pool] > self.quiet_ticks:
            self.spare_ticks[pool] = 0
            return -1
        return 0


class QueueScaling:
    """Prefill pool by its backlog in tokens, the gateway's included; decode pool by KV memory demanded.

    A backlog shows at once what utilisation shows only after an interval, and how much there is to do. A pool shrinks
    only if the instances that are left could carry the load of now: else the next tick would want it back. Dynamo's
    planner has such a mode, on queued prefill tokens and KV utilisation.

    Args:
        backlog_high_tokens: add a prefill instance above so many tokens for each that is active or warming up.
        backlog_low_tokens: remove one below so many for each that would be left,
        busy_after: if demanded utilisation would stay below this.
        decode_high: add a decode instance above this share of KV memory demanded (in use, granted or queued for).
        memory_after: remove one if the share would stay below this.
        quiet_ticks: ticks in a row in which a pool must be too large before it shrinks.
    """

    name = "queue"

    def __init__(
        self,
        backlog_high_tokens: float = 16384.0,
        backlog_low_tokens: float = 4096.0,
        busy_after: float = 0.75,
        decode_high: float = 0.8,
        memory_after: float = 0.5,
        quiet_ticks: float = 3.0,
    ) -> None:
        self.backlog_high_tokens = backlog_high_tokens
        self.backlog_low_tokens = backlog_low_tokens
        self.busy_after = busy_after
        self.decode_high = decode_high
        self.memory_after = memory_after
        self.patience = GrowAtOnceShrinkLate(quiet_ticks)

    def scale(self, view: View) -> Scale:
        active = _in_state(view.prefill_state, ACTIVE)
        n = len(active)
        backlog = view.waiting_tokens + sum(view.prefill[p].tokens for p in active)
        short = backlog > self.backlog_high_tokens * (n + len(_in_state(view.prefill_state, WARMING)))
        spare = backlog < self.backlog_low_tokens * (n - 1)
        spare = spare and view.prefill_demanded * n < self.busy_after * (n - 1)
        demanded, capacity, coming = demanded_bytes(view), decode_bytes(view, ACTIVE), decode_bytes(view, WARMING)
        full = demanded > self.decode_high * (capacity + coming)
        empty = demanded * memory_growth(view) < self.memory_after * capacity
        return self.patience.scale(view, (short, full), (spare, empty))


class HoltForecast:
    """Double exponential smoothing of a level and its trend a tick (Holt 1957)."""

    def __init__(self, level_weight: float, trend_weight: float) -> None:
        self.level_weight = level_weight
        self.trend_weight = trend_weight
        self.level: float | None = None  # before the first value
        self.trend = 0.0

    def after(self, value: float, ticks_ahead: float) -> float:
        """What is expected so many ticks after this value."""
        if self.level is None:
            self.level = value
        else:
            a, b, before = self.level_weight, self.trend_weight, self.level
            self.level = a * value + (1.0 - a) * (before + self.trend)
            self.trend = b * (self.level - before) + (1.0 - b) * self.trend
        return self.level + self.trend * ticks_ahead


class ForecastScaling:
    """A floor for each pool from a forecast of its load, and one more where the pool is overloaded already.

    The forecasts are of the prefill work that arrives and of the KV memory demanded, as far ahead as the slowest
    start-up and one interval. Dynamo's planner combines two loops in this way: one from predicted traffic gives the
    floor, one from load reacts to bursts.

    Args:
        level_weight: of the last interval in the forecast's level.
        trend_weight: of the last change in its trend.
        prefill_target: provide for this utilisation of prefill by the work forecast.
        decode_target: provide for this share of KV memory demanded.
        shrink_below: remove an instance only if the others would stay below this share of the target.
        prefill_high: add a prefill instance above this demanded utilisation, unless one warms up.
        decode_high: add a decode instance above this share of KV memory in use, unless one warms up.
        quiet_ticks: ticks in a row in which a pool must be too large before it shrinks.
    """

    name = "forecast"

    def __init__(
        self,
        level_weight: float = 0.4,
        trend_weight: float = 0.1,
        prefill_target: float = 0.75,
        decode_target: float = 0.7,
        shrink_below: float = 0.7,
        prefill_high: float = 0.95,
        decode_high: float = 0.9,
        quiet_ticks: float = 3.0,
    ) -> None:
        self.work = HoltForecast(level_weight, trend_weight)
        self.kv = HoltForecast(level_weight, trend_weight)
        self.target = (prefill_target, decode_target)
        self.shrink_below = shrink_below
        self.high = (prefill_high, decode_high)
        self.patience = GrowAtOnceShrinkLate(quiet_ticks)

    def scale(self, view: View) -> Scale:
        interval_s = view.cluster.scaling_interval_s
        offered = view.offered_prefill_s / interval_s
        work = self.work.after(offered, _ticks_ahead(interval_s, [it.startup_s for it in view.cluster.prefill]))
        kv_ticks = _ticks_ahead(interval_s, [it.startup_s for it in view.cluster.decode])
        kv_bytes = self.kv.after(demanded_bytes(view), kv_ticks)
        prefill = self._judge_prefill(view, work)
        decode = self._judge_decode(view, kv_bytes)
        return self.patience.scale(view, (prefill[0], decode[0]), (prefill[1], decode[1]))

    def _judge_prefill(self, view: View, work: float) -> tuple[bool, bool]:
        """(short, spare) by the work expected, in seconds of instance 0 a second."""
        target, use, n = self.target[0], view.prefill_demanded, len(_in_state(view.prefill_state, ACTIVE))
        speed, coming = prefill_speed(view, ACTIVE), prefill_speed(view, WARMING)
        hot = use > self.high[0] and WARMING not in view.prefill_state
        cool = use * n < target * (n - 1)
        spare = cool and work * n < self.shrink_below * target * speed * (n - 1)
        return hot or work > target * (speed + coming), spare

    def _judge_decode(self, view: View, kv_bytes: float) -> tuple[bool, bool]:
        """(short, spare) by the KV memory expected to be demanded."""
        target, growth = self.target[1], memory_growth(view)
        capacity, coming = decode_bytes(view, ACTIVE), decode_bytes(view, WARMING)
        hot = view.decode_memory > self.high[1] and WARMING not in view.decode_state
        cool = view.decode_memory * growth < target
        spare = cool and kv_bytes * growth < self.shrink_below * target * capacity
        return hot or kv_bytes > target * (capacity + coming), spare


def _in_state(states: tuple[int, ...], state: int) -> list[int]:
    return [i for i, it in enumerate(states) if it == state]


def _can_add(view: View, pool: int) -> bool:
    """Does the GPU budget allow the pool's first instance that is OFF?"""
    cluster = view.cluster
    gpus = ([it.gpus for it in cluster.prefill], [it.gpus for it in cluster.decode])
    states = (view.prefill_state, view.decode_state)
    in_use = sum(it.gpus for it in cluster.colocated)
    in_use += sum(n for k in (0, 1) for n, state in zip(gpus[k], states[k], strict=True) if state != OFF)
    first_off = next((n for n, state in zip(gpus[pool], states[pool], strict=True) if state == OFF), None)
    return first_off is not None and in_use + first_off <= cluster.gpu_budget


def decode_bytes(view: View, state: int) -> float:
    """KV memory of the decode instances in a state."""
    return float(sum(view.cluster.decode[d].kv_bytes for d in _in_state(view.decode_state, state)))


def demanded_bytes(view: View) -> float:
    """KV in use or granted on ACTIVE decode instances, and about what their receive queues wait for."""
    total = view.decode_memory * decode_bytes(view, ACTIVE)
    for d in _in_state(view.decode_state, ACTIVE):
        known = view.decode[d]
        if known.requests > 0:
            total += known.receiving * (known.kv_bytes / known.requests)
    return total


def memory_growth(view: View) -> float:
    """By what factor the share of KV memory demanded would grow with one ACTIVE decode instance fewer; ∞: no bound.

    Sequences stay as long as their iterations take, and those grow with the batch. Where a share f of an iteration
    grows in proportion to it and g times the requests come to an instance, g (1 − f) / (1 − g f) times as many are
    there on average (Little's law with an iteration time linear in the batch).
    """
    active = _in_state(view.decode_state, ACTIVE)
    if len(active) < 2:
        return math.inf
    fixed_s = whole_s = 0.0
    for d in active:
        instance, known = view.cluster.decode[d], view.decode[d]
        law, store = view.cluster.profiles[instance.profile].decode, instance.store_precision
        tokens = known.kv_bytes // view.cluster.kv_bytes_per_token[store]
        sequences = min(max(known.requests, 1), instance.max_batch)
        fixed_s += base_seconds(law, 1)
        whole_s += base_seconds(law, sequences) + law.c_s[store] * tokens
    more = len(active) / (len(active) - 1)
    growing = 1.0 - fixed_s / whole_s
    left = 1.0 - more * growing
    return more * (1.0 - growing) / left if left > 0.0 else math.inf


def prefill_speed(view: View, state: int) -> float:
    """How many prefill instances like instance 0 those in a state are worth."""
    return sum((speed_seconds(view, 0) / speed_seconds(view, p) for p in _in_state(view.prefill_state, state)), 0.0)


def _ticks_ahead(interval_s: float, startups_s: list[float]) -> float:
    """How far to look: what is asked for now serves from its start-up time on, until the tick after that."""
    return (max(startups_s, default=0.0) + interval_s) / interval_s
