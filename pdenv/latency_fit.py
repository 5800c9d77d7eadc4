"""Least-squares fits of the step-time laws to measured tables.

All fits minimise *relative* residuals, since step times span four decades, with coefficients that are not
negative, so that every law grows with its load. `benchmarks/fit_profiles.py` uses them on public tables;
they serve your own measurements as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdenv.errors import InputError
from pdenv.topology import StepLaw

MAX_KNOTS = 24


@dataclass(frozen=True)
class FitError:
    """Relative errors over the fitted rows."""

    mape: float  # mean
    p95: float
    max: float
    n: int  # rows


def fit_prefill(batch: Any, tokens: Any, seconds: Any, knots: Sequence[float] = ()) -> tuple[StepLaw, FitError]:
    """Fit `a + b·N + c·Σn²` to uncached prefill batches of equal prompts.

    Args:
        batch: (n,) prompts in the batch.
        tokens: (n,) tokens of each prompt.
        seconds: (n,) step times.
        knots: values of N = batch × tokens for the table form; empty for the affine one.
    """
    batch, tokens = _column(batch), _column(tokens)
    return _fit(batch * tokens, batch * tokens**2, _column(seconds), knots)


def fit_decode(batch: Any, context: Any, seconds: Any, knots: Sequence[float] = ()) -> tuple[StepLaw, FitError]:
    """Fit `a + b·B + c·ΣL` to decode iterations of equal contexts; `c_s[0]` is the slope of the measured KV.

    Args:
        batch: (n,) sequences.
        context: (n,) tokens of context of each.
        seconds: (n,) iteration times.
        knots: values of B for the table form; empty for the affine one.
    """
    batch, context = _column(batch), _column(context)
    return _fit(batch, batch * context, _column(seconds), knots)


def fit_piggyback(decode_s: Any, prefill_s: Any, mixed_s: Any) -> tuple[float, FitError]:
    """Fit κ in `mixed = D + C − κ·min(D, C)`, kept in [0, 1]; all arguments (n,) seconds."""
    decode_s, prefill_s, mixed_s = _column(decode_s), _column(prefill_s), _column(mixed_s)
    saving = np.minimum(decode_s, prefill_s) / mixed_s
    excess = (decode_s + prefill_s) / mixed_s - 1.0
    kappa = float(np.clip(saving @ excess / (saving @ saving), 0.0, 1.0))
    return kappa, relative_error(excess + 1.0 - kappa * saving)


def relative_error(ratio: np.ndarray) -> FitError:
    """Errors of predicted/measured ratios, (n,)."""
    error = np.abs(np.asarray(ratio) - 1.0)
    return FitError(float(error.mean()), float(np.quantile(error, 0.95)), float(error.max()), len(error))


def nnls(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with x ≥ 0 by the active-set method of Lawson and Hanson (1974), chapter 23."""
    norm = np.linalg.norm(matrix, axis=0)
    scale = np.where(norm > 0, norm, 1.0)  # columns differ by ten decades
    scaled = matrix / scale
    x = np.zeros(scaled.shape[1])
    free = np.zeros(scaled.shape[1], dtype=bool)
    for _ in range(10 * len(x)):
        gradient = np.where(free, -np.inf, scaled.T @ (target - scaled @ x))
        if gradient.max() <= 1e-12 * np.linalg.norm(target):
            break
        free[np.argmax(gradient)] = True
        x = _feasible_step(scaled, target, x, free)
    return x / scale


def _feasible_step(matrix: np.ndarray, target: np.ndarray, x: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Solve on the free columns, and give up those (in `free`, in place) that would turn negative."""
    while True:
        trial = np.zeros_like(x)
        trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        blocked = free & (trial <= 0.0)
        if not blocked.any():
            return trial
        step = np.min(x[blocked] / (x[blocked] - trial[blocked]))
        x = x + step * (trial - x)
        free &= x > 1e-15
        x[~free] = 0.0


def _fit(x: np.ndarray, weighted: np.ndarray, seconds: np.ndarray, knots: Sequence[float]) -> tuple[StepLaw, FitError]:
    _check(x, seconds, knots)
    base = _ramps(x, np.asarray(knots, dtype=float)) if len(knots) else np.stack([np.ones_like(x), x], axis=1)
    relative = np.column_stack([base, weighted]) / seconds[:, None]
    coefficients = nnls(relative, np.ones_like(seconds))
    c_s = (float(coefficients[-1]), 0.0, 0.0, 0.0)
    if len(knots):
        heights = np.cumsum(coefficients[:-1])
        law = StepLaw(c_s=c_s, table_x=tuple(map(float, knots)), table_s=tuple(map(float, heights)))
    else:
        law = StepLaw(a_s=float(coefficients[0]), b_s=float(coefficients[1]), c_s=c_s)
    return law, relative_error(relative @ coefficients)


def _ramps(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(n, k) basis whose coefficients are the first height and the rises from knot to knot."""
    rises = np.clip((x[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    return np.column_stack([np.ones_like(x), rises])


def _column(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=float)


def _check(x: np.ndarray, seconds: np.ndarray, knots: Sequence[float]) -> None:
    if len(x) < max(3, len(knots) + 1):
        raise InputError(f"{len(x)} measured rows cannot fix {max(3, len(knots) + 1)} coefficients: add rows")
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise InputError("measured step times must be positive numbers of seconds")
    if len(knots) == 1 or len(knots) > MAX_KNOTS or any(np.diff(knots) <= 0):
        raise InputError(f"a table takes 2 to {MAX_KNOTS} increasing knots, not {list(knots)}")
