"""Arrival rates that change over time: bursts and a daily rhythm.

Arrivals are a non-homogeneous Poisson process, sampled exactly: arrival k comes when the integral of the rate reaches
the sum of k unit exponentials (Çinlar 1975). A *rhythm* is the rate relative to its mean; it maps the time at which an
arrival would come at the mean rate to the time at which it comes. It has a random stream of its own and does not
depend on the mean rate, so that two runs which differ in rate only see the same bursts.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from pdenv.errors import InputError
from pdenv.workload.config import DiurnalConfig, OnOffConfig, WorkloadConfig

MAX_PHASES = 20_000_000  # bursts and pauses of one window
_MORE_PHASES = 256
_NEWTON_STEPS = 100
_BEYOND_ALL_S = 1e100


class Rhythm(Protocol):
    """A rate over time relative to its mean."""

    def real_time(self, steady_s: np.ndarray) -> np.ndarray:
        """`(n,)` s at which arrivals come that at the mean rate would come at `steady_s`, `(n,)` s, never falling."""
        ...


def rhythm_of(workload: WorkloadConfig, rng: np.random.Generator) -> Rhythm | None:
    """The rhythm of a window; None where the rate is steady."""
    if workload.kind == "on_off":
        assert workload.on_off is not None  # WorkloadConfig saw to it
        return OnOff(workload.on_off, rng)
    if workload.kind == "diurnal":
        assert workload.diurnal is not None
        return Diurnal(workload.diurnal, rng)
    return None


class OnOff:
    """Bursts and pauses of exponentially distributed durations, from a random instant of the process on."""

    def __init__(self, config: OnOffConfig, rng: np.random.Generator) -> None:
        on_s, off_s = config.mean_on_s, config.mean_off_s
        high = (on_s + off_s) / (on_s + off_s * config.off_ratio)
        self._rng = rng
        self._means_s = np.array([on_s, off_s])
        self._rates = np.array([high, high * config.off_ratio])
        if rng.random() >= on_s / (on_s + off_s):  # the first phase is a pause
            self._means_s, self._rates = self._means_s[::-1], self._rates[::-1]
        self._ends_s = np.zeros(1)  # (phases + 1,) s, 0 and the end of each phase
        self._steady_s = np.zeros(1)  # (phases + 1,) s, the same at the mean rate

    def real_time(self, steady_s: np.ndarray) -> np.ndarray:
        while self._steady_s[-1] < steady_s[-1]:
            self._draw_phases(float(steady_s[-1]))
        return np.interp(steady_s, self._steady_s, self._ends_s)

    def _draw_phases(self, until_steady_s: float) -> None:
        known = len(self._ends_s) - 1
        missing = 2.0 * (until_steady_s - self._steady_s[-1]) / self._means_s.sum()
        if known + missing > MAX_PHASES:
            message = f"about {known + missing:.4g} bursts and pauses fall into a window, more than {MAX_PHASES:,}"
            raise InputError(f"{message}; make them longer", where="workload.on_off")
        pairs = max(_MORE_PHASES, int(missing)) // 2
        phases_s = self._rng.standard_exponential((pairs, 2)) * self._means_s
        steady_s = phases_s * self._rates
        self._ends_s = np.append(self._ends_s, self._ends_s[-1] + np.cumsum(phases_s.ravel()))
        self._steady_s = np.append(self._steady_s, self._steady_s[-1] + np.cumsum(steady_s.ravel()))


class Diurnal:
    """A sine around the mean rate."""

    def __init__(self, config: DiurnalConfig, rng: np.random.Generator) -> None:
        drawn = float(rng.random())
        self._amplitude = config.amplitude
        self._period_s = config.period_s
        self._start = 2.0 * math.pi * (drawn if config.phase is None else config.phase)

    def real_time(self, steady_s: np.ndarray) -> np.ndarray:
        """Solves x − amplitude × cos(x) = y for the angle x: Kepler's equation, a quarter of a turn away."""
        turn = 2.0 * math.pi
        first = self._start + 0.25 * turn
        bounded_s = np.minimum(steady_s, _BEYOND_ALL_S)  # next to no rate: no arrival in any time
        mean = turn * bounded_s / self._period_s + first - self._amplitude * math.sin(first)
        return (_kepler(mean, self._amplitude) - first) * self._period_s / turn


def _kepler(mean: np.ndarray, e: float) -> np.ndarray:
    """`(n,)` angles x with x − e·sin(x) = `mean`, for e in [0, 1].

    Newton's steps from π, within one turn: x − e·sin(x) is convex from 0 to π and concave from π to 2π, so that they
    cannot overshoot.
    """
    turns = np.floor(mean / (2.0 * math.pi)) * 2.0 * math.pi
    rest = mean - turns
    x = np.full(len(rest), math.pi)
    for _ in range(_NEWTON_STEPS):
        step = (x - e * np.sin(x) - rest) / np.maximum(1.0 - e * np.cos(x), 1e-12)
        x -= step
        if not len(x) or np.abs(step).max() < 1e-13:
            break
    return turns + x
