"""Futures that a scheduler can imagine: arrivals and output lengths as they were in training windows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from pdenv import workload
from pdenv.errors import InputError
from pdenv.scenario import Scenario

WINDOWS = 8  # of training, from which futures are drawn
BINS = 8  # of predicted lengths, each with its own ratios
RATIOS = 512  # kept in a bin
RECENT = 30  # arrivals by whose rate a stretch of training is likened to the present
TRIES = 16  # stretches from which the likest is taken


@dataclass(frozen=True)
class Lengths:
    """What is known of output lengths given their prediction."""

    edges: np.ndarray  # (bins − 1,) predicted tokens at which bins end, ascending
    ratios: np.ndarray  # (bins, RATIOS) output/predicted, ascending in each bin


class Futures:
    """Stretches of training windows.

    Raises:
        InputError: the workload has no training window.
    """

    def __init__(
        self, scenario: Scenario, trace: str | Path | None, rate_scale: float | str, seed: int, windows: int = WINDOWS
    ) -> None:
        parts = _training(scenario, trace, rate_scale, seed, windows)
        self.lengths = _lengths(np.concatenate(parts))
        self.windows = parts
        self._paces = [_paces(part["arrival_s"]) for part in parts]  # 1/s, before each arrival but the first ones
        self._first = np.cumsum([0, *(len(pace) for pace in self._paces)])  # of each window among all paces
        self._pace = np.concatenate(self._paces)

    def fill(self, rows: np.ndarray, arrived: np.ndarray, now: float, rng: np.random.Generator) -> None:
        """Fill `rows` (ARRIVAL) with arrivals after `now`, from a stretch of training.

        Of a few stretches drawn at random it is the one before which arrivals came about as fast as of late.

        Args:
            arrived: `(n,)` s, arrival times so far, the last ones at least.
        """
        drawn = rng.integers(len(self._pace), size=TRIES)
        if len(arrived) > RECENT:
            unlike = np.abs(np.log(self._pace[drawn] * ((now - arrived[-1 - RECENT]) / RECENT)))
            drawn = drawn[np.argmin(unlike) :]
        k = int(np.searchsorted(self._first, drawn[0], side="right")) - 1
        window = self.windows[k]
        i = int(drawn[0] - self._first[k]) + RECENT
        before, after = window["arrival_s"][i - 1 : i + 1]
        t = after - rng.random() * (after - before)
        filled = 0
        while filled < len(rows):  # a stretch that ends goes on with a window's start
            part = window[i : i + len(rows) - filled]
            target = rows[filled : filled + len(part)]
            target[:] = part
            target["arrival_s"] += now - t
            filled += len(part)
            now = float(target["arrival_s"][-1]) if len(part) else now
            window, i, t = self.windows[int(rng.integers(len(self.windows)))], 0, 0.0


def _paces(times_s: np.ndarray) -> np.ndarray:
    """Arrivals per second over the RECENT gaps before each arrival, from the first that has so many before it."""
    return RECENT / np.maximum(times_s[RECENT:] - times_s[:-RECENT], 1e-9)


def _training(
    scenario: Scenario, trace: str | Path | None, rate_scale: float | str, seed: int, windows: int
) -> list[np.ndarray]:
    available = workload.window.count_windows(scenario, "train", trace, rate_scale, seed)
    if available == 0:
        raise InputError("has no training window to draw futures from; shorten the scenario's window", where="trace")
    n = windows if available is None else min(windows, available)
    made = (
        workload.build(scenario, seed=seed, window=k, split="train", trace=trace, rate_scale=rate_scale, span="window")
        for k in range(n)
    )
    found = [load.arrivals[: load.measured_to] for load in made]
    if min(map(len, found)) <= RECENT:
        message = f"holds {min(map(len, found))} requests, too few to draw futures from; make it longer"
        raise InputError(message, where="window")
    return found


def _lengths(rows: np.ndarray) -> Lengths:
    order = np.argsort(rows["predicted_tokens"], kind="stable")
    predicted = rows["predicted_tokens"][order].astype(float)
    ratios = rows["output_tokens"][order] / predicted
    bounds = [0, *(len(rows) * k // BINS for k in range(1, BINS)), len(rows)]
    edges = np.array([predicted[i] for i in bounds[1:-1]])
    shares = (np.arange(RATIOS) + 0.5) / RATIOS
    if predicted[0] == predicted[-1]:
        return Lengths(np.zeros(0), np.quantile(ratios, shares)[None, :])
    table = [np.quantile(ratios[a:b], shares) for a, b in pairwise(bounds)]
    return Lengths(edges, np.array(table))
