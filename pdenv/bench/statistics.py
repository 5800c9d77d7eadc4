"""Intervals and tests for policies that ran on the same windows.

A window is the unit: policies see the same arrivals in it, so differences are taken window by window. Intervals are
bootstrap percentile intervals over windows, from a fixed random stream. With few windows such intervals are too short;
they are widened as Hesterberg proposes ("What Teachers Should Know About the Bootstrap", 2015): the
percentiles are those at which a normal interval would be as wide as Student's t interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999
#: Resamples in memory at a time.
BATCH = 500
#: Below so many windows an interval is rough: the sample hardly shows the tails of the law that it comes from.
ROUGH_BELOW = 10
#: From this p value on, after correction, two policies are tied.
SIGNIFICANCE = 0.05
#: Share of the scenarios that the interquartile mean leaves out at either end.
QUARTER = 0.25


class Interval(NamedTuple):
    """An estimate and its 95 % interval, None without one."""

    mid: float
    low: float | None
    high: float | None


def _level(n: int) -> float:
    """Nominal confidence at which a percentile interval of n windows covers about as often as `CONFIDENCE` says."""
    from scipy import stats

    wide = math.sqrt(n / (n - 1)) * stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)
    return float(1.0 - 2.0 * stats.norm.sf(wide))


def _bootstrap(
    samples: Sequence[np.ndarray], statistic: Callable[..., Any], paired: bool, windows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of a statistic that is computed along the last axis."""
    from scipy import stats

    found = stats.bootstrap(
        tuple(samples),
        statistic,
        axis=-1,
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=BATCH,
        confidence_level=_level(windows),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return np.asarray(found.low), np.asarray(found.high)


def mean_intervals(values: np.ndarray) -> list[Interval]:
    """Mean of each row over windows.

    Args:
        values: `(rows, windows)`; rows share the windows that are drawn.
    """
    middle = values.mean(axis=1).tolist()
    if values.shape[1] < 2:
        return [Interval(mid, None, None) for mid in middle]
    low, high = _bootstrap((values,), lambda x, axis: x.mean(axis=axis), False, values.shape[1])
    return [Interval(*ends) for ends in zip(middle, low.tolist(), high.tolist(), strict=True)]


def difference(costs: np.ndarray, other: np.ndarray) -> Interval:
    """Mean of `costs − other`, both `(windows,)`, window by window."""
    return mean_intervals((costs - other)[None])[0]


def ratio(costs: np.ndarray, other: np.ndarray) -> Interval:
    """Mean of `costs` over mean of `other`, both `(windows,)`; windows are drawn in pairs."""

    def statistic(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return x.mean(axis=axis) / y.mean(axis=axis)

    mid = float(statistic(costs, other, -1))
    if len(costs) < 2:
        return Interval(mid, None, None)
    low, high = _bootstrap((costs, other), statistic, True, len(costs))
    return Interval(mid, float(low), float(high))


def can_tell(windows: int, policies: int) -> bool:
    """Whether so many windows can tell any of so many policies from the best.

    Of the `2^windows` exchanges of `p_value` two are as extreme as the most extreme one; Holm's correction multiplies
    by the number of comparisons.
    """
    return windows > 1 and (policies - 1) * 2.0 ** (1 - windows) < SIGNIFICANCE


def fewest_to_tell(policies: int) -> int:
    """The fewest windows with which `can_tell`."""
    return next(windows for windows in range(2, 100) if can_tell(windows, policies))


def p_value(costs: np.ndarray, other: np.ndarray) -> float:
    """Two-sided p value of no difference in mean, by exchanging the two in each window.

    All `2^windows` exchanges up to 13 windows, 9,999 drawn ones above.
    """
    from scipy import stats

    found = stats.permutation_test(
        (costs, other),
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(min(found.pvalue, 1.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for the number of comparisons (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min((len(order) - rank) * p_values[i], 1.0))
        corrected[i] = largest
    return corrected


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean along the first axis without the lowest and the highest quarter, rounded down to whole entries."""
    from scipy import stats

    return stats.trim_mean(values, QUARTER, axis=0)


def relative_over_scenarios(costs: Sequence[np.ndarray], base: Sequence[np.ndarray]) -> Interval:
    """Interquartile mean over scenarios of mean cost relative to that of a base policy.

    The bootstrap is stratified: each scenario's windows are drawn for themselves, in pairs.

    Args:
        costs, base: an array `(windows,)` a scenario.
    """

    def relative(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        ratios = [
            c[rows].mean(axis=axis) / b[rows].mean(axis=axis) for c, b, rows in zip(costs, base, drawn, strict=True)
        ]
        return interquartile_mean(np.array(ratios))

    rows = [np.arange(len(c)) for c in costs]
    mid = float(relative(*rows))
    fewest = min(len(c) for c in costs)
    if fewest < 2:
        return Interval(mid, None, None)
    low, high = _bootstrap(rows, relative, False, fewest)
    return Interval(mid, float(low), float(high))
