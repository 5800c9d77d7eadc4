"""The workload of one run: one *window* of a *split* (train, validation, test).

- Generated arrivals: every (split, window) has random streams of its own, so windows are disjoint. Measured
  are the requests that the scenario's `window` names; later ones go on as load for at most `drain_max_s` and
  at most `generate.extra_requests` requests.
- A trace with `span="whole"`: all of it, measured from `warmup_s` on, or from a tenth of its length if that is
  sooner. There is no later load.
- A trace with `span="window"`: the first 60 % of its requests are for training, the next 20 % for
  validation, the last 20 % for testing. A split is cut into consecutive windows of the scenario's size. Each
  has a warm-up of its own; the requests that follow it in the split are its later load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pdenv.errors import InputError, nearest
from pdenv.sim.records import ARRIVAL
from pdenv.workload.config import WindowConfig
from pdenv.workload.generate import (
    Arrivals,
    Streams,
    calibration_lengths,
    draw_classes,
    draw_lengths,
    mark_measured,
    predict_lengths,
    random_arrivals,
)
from pdenv.workload.load import offered_prefill_load
from pdenv.workload.rhythm import rhythm_of
from pdenv.workload.traces import MOONCAKE_BLOCK_TOKENS, Trace, read_trace

if TYPE_CHECKING:
    from pdenv.scenario import Scenario

SPLITS = ("train", "validation", "test")
SPLIT_SHARES = (0.6, 0.2, 0.2)  # of a trace's requests
SPANS = ("whole", "window")
MAX_TIME_S = 1e8  # arrivals beyond it lose the precision that the clock needs
LONGEST_WARMUP = 0.1  # of the length of a trace taken whole

_JITTER_KEY = len(SPLITS)  # seeds what belongs to the trace file itself, alike in every split and window


@dataclass(frozen=True)
class Workload:
    """The requests of one run in order of arrival; `arrivals[measured_from:measured_to]` are measured."""

    arrivals: np.ndarray  # (n,) ARRIVAL
    blocks: np.ndarray  # (b,) int64 prefix-block hashes, reached by block_start and block_count
    measured_from: int
    measured_to: int
    warmup_s: float  # effective; measured requests arrive in [warmup_s, end_s]
    end_s: float
    drain_max_s: float  # longest wait for measured requests after end_s
    rate_scale: float  # factor on the arrival rate that was applied
    tier_names: tuple[str, ...]  # by tier index
    source: str  # what the requests are, for people


def build(
    scenario: Scenario,
    seed: int = 0,
    window: int = 0,
    split: str = "test",
    trace: str | Path | None = None,
    rate_scale: float | str = 1.0,
    span: Literal["whole", "window"] = "whole",
) -> Workload:
    """The workload of one run.

    Args:
        scenario: says what arrives, how much of it is measured and which tiers there are.
        seed: fixes everything random. The same seed shares lengths, tiers, priorities and predictor errors
            between runs that differ in rate only.
        window: which window of the split, from 0.
        split: "train", "validation" or "test".
        trace: a trace file that takes the place of the scenario's arrivals and lengths.
        rate_scale: factor on the arrival rate (2 halves all gaps), or "auto": the factor at which the offered
            prefill load (see `offered_prefill_load`), taken over the whole trace or the law of lengths, is
            `scenario.target.prefill_load`.
        span: a trace as a whole (`window` is then 0; `split` only chooses random streams) or in windows.

    Raises:
        InputError: a bad trace or argument, or a window that does not fit.
    """
    if span not in SPANS:
        raise InputError(f"{span!r} is neither 'whole' nor 'window'", where="span")
    seeds = _seeds(seed, window, split)
    own_trace = scenario.workload.trace if scenario.workload.kind == "trace" else None
    path = trace if trace is not None else own_trace
    if path is None:
        return _generated(scenario, Streams.of(seeds), rate_scale)
    recorded = read_trace(path, np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_JITTER_KEY,))))
    _check_blocks(scenario, recorded, path)
    scale = _scale(scenario, rate_scale, _rows(recorded.prompt_tokens), recorded.span_s)
    _check_last(float(recorded.arrival_s[-1]), scale, recorded.name)
    times = recorded.arrival_s / scale
    if span == "whole":
        if window:
            message = f"a whole trace is one window, {window} (from 0) was asked for; cut it with span='window'"
            raise InputError(message, where=recorded.name)
        warmup_s = min(scenario.window.warmup_s, LONGEST_WARMUP * float(times[-1]))
        first, marked = 0, _whole_trace(times, warmup_s)
    else:
        warmup_s = scenario.window.warmup_s
        first, marked = _trace_window(times, scenario.window, split, window, recorded.name)
    rows = _recorded_rows(recorded, first, marked)
    mean_output = float(recorded.output_tokens.mean())
    _draw(rows, scenario, mean_output, Streams.of(seeds))
    return _workload(scenario, rows, recorded.blocks, marked, warmup_s, scale, recorded.name)


def count_windows(
    scenario: Scenario, split: str, trace: str | Path | None = None, rate_scale: float | str = 1.0, seed: int = 0
) -> int | None:
    """How many windows a split of a trace holds; None where arrivals are generated, without end."""
    own_trace = scenario.workload.trace if scenario.workload.kind == "trace" else None
    path = trace if trace is not None else own_trace
    if path is None:
        return None
    recorded = read_trace(path, np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_JITTER_KEY,))))
    times = recorded.arrival_s / _scale(scenario, rate_scale, _rows(recorded.prompt_tokens), recorded.span_s)
    found = 0
    while True:
        try:
            _trace_window(times, scenario.window, split, found, recorded.name)
        except InputError:
            return found
        found += 1


def _seeds(seed: int, window: int, split: str) -> np.random.SeedSequence:
    if split not in SPLITS:
        raise InputError(f"no split '{split}'{nearest(split, SPLITS)}", where="split")
    for name, value in (("seed", seed), ("window", window)):
        if value < 0:
            raise InputError(f"{value} is below 0; give a whole number from 0", where=name)
    return np.random.SeedSequence(int(seed), spawn_key=(SPLITS.index(split), int(window)))


def _check_last(last_s: float, scale: float, source: str) -> None:
    """Refuse a last arrival, before the scale of the rate, that comes too late for a precise clock."""
    if last_s > MAX_TIME_S * scale:
        message = f"the last request arrives after {MAX_TIME_S:.0e} s, where the clock loses precision"
        raise InputError(f"{message}; raise the rate, or shorten the window or trace", where=source)


def _scale(scenario: Scenario, rate_scale: float | str, rows: np.ndarray, span_s: float) -> float:
    """The factor on the rate at which `rows` (ARRIVAL) arrive in `span_s`."""
    if rate_scale != "auto":
        value = as_number(rate_scale)
        if not 0.0 < value < math.inf:
            message = f"{rate_scale!r} is not a factor; give a number above 0, or 'auto'"
            raise InputError(message, where="rate scale")
        return value
    target = scenario.target.prefill_load
    if target is None:
        message = "'auto' needs target.prefill_load in the scenario; set it, or give a number"
        raise InputError(message, where="rate scale")
    load = offered_prefill_load(scenario.cluster(), rows, span_s)
    if not 0.0 < load < math.inf:
        message = "'auto' needs an active prefill instance and arrivals that span some time; give a number"
        raise InputError(message, where="rate scale")
    return target / load


def as_number(value: object) -> float:
    """A number of Python or numpy; NaN for anything else, or too large."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def _rows(prompt_tokens: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(prompt_tokens), ARRIVAL)
    rows["prompt_tokens"] = prompt_tokens
    return rows


def _draw(rows: np.ndarray, scenario: Scenario, mean_output: float, streams: Streams) -> None:
    """Fill in tiers, priorities and predictions of `(n,)` ARRIVAL rows."""
    n = len(rows)
    workload = scenario.workload
    shares = [tier.share for tier in scenario.quality.tiers.values()]
    rows["tier"] = draw_classes(shares, n, streams.tiers)
    rows["priority"] = draw_classes(workload.priority_shares, n, streams.priorities)
    rows["predicted_tokens"] = predict_lengths(
        workload.predictor, rows["output_tokens"], mean_output, streams.predictor
    )


def _workload(
    scenario: Scenario,
    rows: np.ndarray,
    blocks: np.ndarray,
    marked: Arrivals,
    warmup_s: float,
    scale: float,
    source: str,
) -> Workload:
    if marked.measured_from == marked.measured_to:
        message = f"no request arrives between {warmup_s:.6g} s and {marked.end_s:.6g} s"
        raise InputError(f"{message}; lengthen the window or raise the rate", where=source)
    return Workload(
        arrivals=rows,
        blocks=blocks,
        measured_from=marked.measured_from,
        measured_to=marked.measured_to,
        warmup_s=warmup_s,
        end_s=marked.end_s,
        drain_max_s=scenario.window.drain_max_s,
        rate_scale=scale,
        tier_names=tuple(scenario.quality.tiers),
        source=source + (", oracle lengths" if scenario.workload.predictor.is_oracle else ""),
    )


# ---- generated ------------------------------------------------------------------------------------------


def _generated(scenario: Scenario, streams: Streams, rate_scale: float | str) -> Workload:
    workload = scenario.workload
    assert workload.rate_per_s is not None and workload.lengths is not None  # WorkloadConfig saw to it
    sample, sample_outputs = calibration_lengths(workload.lengths)
    scale = _scale(scenario, rate_scale, _rows(sample), len(sample) / workload.rate_per_s)
    rate_per_s = workload.rate_per_s * scale
    if math.isinf(rate_per_s):
        raise InputError(f"{scale:.4g} makes the arrival rate infinite; give a smaller factor", where="rate scale")
    table = getattr(workload.lengths, "table", workload.lengths.kind)
    source = f"{workload.kind} {rate_per_s:.4g}/s, {table}"
    marked = random_arrivals(streams.arrivals, rate_per_s, scenario.window, rhythm_of(workload, streams.modulation))
    _check_last(float(marked.times_s[-1]) if len(marked.times_s) else 0.0, 1.0, source)
    prompts, outputs = draw_lengths(workload.lengths, len(marked.times_s), streams)
    rows = _rows(prompts)
    rows["arrival_s"] = marked.times_s
    rows["output_tokens"] = outputs
    _draw(rows, scenario, float(sample_outputs.mean()), streams)
    return _workload(scenario, rows, np.zeros(0, np.int64), marked, scenario.window.warmup_s, scale, source)


# ---- recorded -------------------------------------------------------------------------------------------


def _check_blocks(scenario: Scenario, trace: Trace, path: str | Path) -> None:
    if not trace.blocks.size:
        return
    cluster = scenario.cluster()
    caches = [p.prefix_cache_blocks for p in cluster.prefill] + [h.prefix_cache_blocks for h in cluster.colocated]
    if any(caches) and cluster.block_tokens != MOONCAKE_BLOCK_TOKENS:
        message = f"its hashes are of {MOONCAKE_BLOCK_TOKENS}-token blocks, the scenario caches blocks of "
        message += f"{cluster.block_tokens}; set kv.block_tokens={MOONCAKE_BLOCK_TOKENS}"
        raise InputError(message, where=f"{path}, field hash_ids")


def _recorded_rows(trace: Trace, first: int, marked: Arrivals) -> np.ndarray:
    part = slice(first, first + len(marked.times_s))
    rows = np.zeros(len(marked.times_s), ARRIVAL)
    rows["arrival_s"] = marked.times_s
    for name in ("prompt_tokens", "output_tokens", "block_start", "block_count"):
        rows[name] = getattr(trace, name)[part]
    return rows


def _whole_trace(times_s: np.ndarray, warmup_s: float) -> Arrivals:
    return Arrivals(times_s, int(np.searchsorted(times_s, warmup_s)), len(times_s), float(times_s[-1]))


def _trace_window(times_s: np.ndarray, window: WindowConfig, split: str, index: int, name: str) -> tuple[int, Arrivals]:
    """First request of window `index` of a split, and its arrivals counted from the window's start."""
    bounds = np.round(len(times_s) * np.cumsum((0.0, *SPLIT_SHARES))).astype(int)
    k = SPLITS.index(split)
    first, stop = int(bounds[k]), int(bounds[k + 1])
    start_s = float(times_s[first]) if first < stop else 0.0
    earlier = 0
    while True:
        marked = mark_measured(times_s[first:stop] - start_s, window)
        if marked is None:
            size = f"{window.requests:,} requests" if window.requests else f"{window.duration_s:.6g} s"
            message = f"the {split} part ({stop - bounds[k]:,} requests) holds {earlier} windows of {size} "
            message += f"and {window.warmup_s:.6g} s of warm-up, window {index} (from 0) was asked for"
            raise InputError(f"{message}; use fewer or shorter windows", where=name)
        if earlier == index:
            return first, marked
        first, start_s, earlier = first + marked.measured_to, start_s + marked.end_s, earlier + 1
