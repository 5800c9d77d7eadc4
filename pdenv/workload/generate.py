"""Generated requests: random arrivals, length laws, quality tiers, priorities and predicted lengths.

Every quantity draws from a random stream of its own, one number a request, so that two scenarios with the
same seed share them as far as they can (common random numbers): another rate moves the arrivals and leaves
the i-th request's lengths, tier, priority and predictor error as they were, and a longer run only adds
requests at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import yaml

from pdenv.errors import InputError
from pdenv.workload.config import (
    FITTED,
    MAX_TOKENS,
    FixedLengths,
    LengthsConfig,
    LognormalLengths,
    MixtureLengths,
    OneLaw,
    PredictorConfig,
    WindowConfig,
)
from pdenv.workload.rhythm import Rhythm

#: Load that may go on after the measured requests: a share of the requests up to there, and at least so many.
EXTRA_SHARE = 0.5
EXTRA_REQUESTS = 20_000
MAX_REQUESTS = 20_000_000  # expected up to the end of one window

_CALIBRATION_REQUESTS = 200_000
_Z = np.linspace(-6.0, 6.0, 8193)  # standard normal deviates at which a quantile table is resampled


@dataclass(frozen=True)
class Streams:
    """One random generator a quantity."""

    arrivals: np.random.Generator
    prompts: np.random.Generator
    outputs: np.random.Generator
    tiers: np.random.Generator
    priorities: np.random.Generator
    predictor: np.random.Generator
    modulation: np.random.Generator  # of the arrival rate over time
    parts: np.random.Generator  # of a mixture of length laws

    @classmethod
    def of(cls, seed: np.random.SeedSequence) -> Streams:
        """The streams of a seed, independent of each other."""
        return cls(*(np.random.default_rng(child) for child in seed.spawn(len(cls.__dataclass_fields__))))


@dataclass(frozen=True)
class FittedTable:
    """Quantile tables of a public trace, resampled at the deviates `_Z` of a standard normal variable."""

    prompt_tokens: np.ndarray  # (len(_Z),) tokens, never falling
    output_tokens: np.ndarray  # (len(_Z),) tokens, never falling
    spearman: float  # rank correlation of prompt and output
    source: str


@lru_cache
def fitted_table(name: str) -> FittedTable:
    """The fitted table of this name (see `pdenv.workload.config.fitted_names`)."""
    data = yaml.safe_load((FITTED / f"{name}.yaml").read_text(encoding="utf-8"))
    normal = NormalDist()
    probabilities = np.array([normal.cdf(z) for z in _Z])
    prompts = np.interp(probabilities, data["probabilities"], data["prompt_tokens"])
    outputs = np.interp(probabilities, data["probabilities"], data["output_tokens"])
    return FittedTable(prompts, outputs, data["spearman"], data["source"])


# ---- arrivals -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrivals:
    """Arrival times with the measured ones marked: `times_s[measured_from:measured_to]`."""

    times_s: np.ndarray  # (n,) s, never falling
    measured_from: int
    measured_to: int
    end_s: float  # last instant at which a measured request may arrive, s


def random_arrivals(
    rng: np.random.Generator, rate_per_s: float, window: WindowConfig, rhythm: Rhythm | None = None
) -> Arrivals:
    """Poisson arrivals of a window and the load that goes on after it.

    The load goes on for `window.drain_max_s` but for at most `extra_requests` requests.

    Args:
        rng: draws the gaps between arrivals.
        rate_per_s: mean rate, requests/s.
        window: which arrivals are measured.
        rhythm: how the rate changes over time; None: not at all.
    """
    before = rate_per_s * window.warmup_s
    measured = window.requests or rate_per_s * (window.duration_s or 0.0)
    if before + measured > MAX_REQUESTS:
        message = f"about {before + measured:.4g} requests arrive in it, more than {MAX_REQUESTS:,}"
        raise InputError(f"{message}; shorten it or lower the rate", where="window")
    expected = before + math.ceil(measured)
    until_end = expected + 6.0 * math.sqrt(expected) + 10.0
    later = min(rate_per_s * window.drain_max_s, extra_requests(until_end))
    gaps = rng.standard_exponential(int(until_end + later))
    while True:
        times = np.cumsum(gaps)
        with np.errstate(divide="ignore", over="ignore"):  # next to no rate: no arrival in any time
            times /= rate_per_s
        if rhythm is not None:
            times = rhythm.real_time(times)
        marked = mark_measured(times, window)
        if marked is not None and (rhythm is None or _load_goes_on(times, marked, window)):
            return marked
        gaps = np.concatenate([gaps, rng.standard_exponential(len(gaps))])


def _load_goes_on(times_s: np.ndarray, marked: Arrivals, window: WindowConfig) -> bool:
    """Whether the arrivals reach the end of the load after the window: in a burst more come than on average."""
    enough = len(marked.times_s) - marked.measured_to >= extra_requests(marked.measured_to)
    return enough or float(times_s[-1]) > marked.end_s + window.drain_max_s


def mark_measured(times_s: np.ndarray, window: WindowConfig) -> Arrivals | None:
    """Mark the measured arrivals and cut the load after them; None if `times_s` ends too early.

    Args:
        times_s: `(n,)` times from the start of the window, never falling, s.
        window: which arrivals are measured; at most `extra_requests` later ones are kept.
    """
    first = int(np.searchsorted(times_s, window.warmup_s))
    if window.requests is not None:
        last = first + window.requests
        if last > len(times_s):
            return None
        end_s = float(times_s[last - 1])
    else:
        end_s = window.warmup_s + (window.duration_s or 0.0)
        if not len(times_s) or times_s[-1] < end_s:
            return None
        last = int(np.searchsorted(times_s, end_s, side="right"))
    kept = int(np.searchsorted(times_s, end_s + window.drain_max_s, side="right"))
    kept = max(last, min(kept, last + extra_requests(last)))
    return Arrivals(times_s[:kept], first, last, end_s)


def extra_requests(requests: float) -> int:
    """The most requests that go on as load after `requests` have arrived."""
    return max(EXTRA_REQUESTS, int(EXTRA_SHARE * requests))


# ---- lengths --------------------------------------------------------------------------------------------


def draw_lengths(lengths: LengthsConfig, n: int, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """`(n,)` prompt and `(n,)` output lengths, int64 tokens."""
    if isinstance(lengths, FixedLengths):
        return _of_law(lengths, np.zeros(n), np.zeros(n))
    z_prompt, z_output = streams.prompts.standard_normal(n), streams.outputs.standard_normal(n)
    if not isinstance(lengths, MixtureLengths):
        return _of_law(lengths, z_prompt, z_output)
    part = draw_classes([p.share for p in lengths.parts], n, streams.parts)
    prompts, outputs = np.empty(n, np.int64), np.empty(n, np.int64)
    for k, law in enumerate(lengths.parts):
        rows = part == k
        prompts[rows], outputs[rows] = _of_law(law.lengths, z_prompt[rows], z_output[rows])
    return prompts, outputs


def _of_law(lengths: OneLaw, z_prompt: np.ndarray, z_output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output lengths, `(n,)` int64 tokens, at `(n,)` independent standard normal deviates."""
    if isinstance(lengths, FixedLengths):
        n = len(z_prompt)
        return np.full(n, lengths.prompt_tokens, np.int64), np.full(n, lengths.output_tokens, np.int64)
    if isinstance(lengths, LognormalLengths):
        prompts = lengths.prompt_median_tokens * np.exp(lengths.prompt_sigma * z_prompt)
        outputs = lengths.output_median_tokens * np.exp(lengths.output_sigma * z_output)
        return _whole(prompts, lengths.prompt_max_tokens), _whole(outputs, lengths.output_max_tokens)
    table = fitted_table(lengths.table)
    # Correlation of the normal variables of a Gaussian copula with this Spearman correlation (Pearson 1907).
    rho = 2.0 * math.sin(math.pi / 6.0 * table.spearman)
    z_output = rho * z_prompt + math.sqrt(1.0 - rho * rho) * z_output
    prompts = np.interp(z_prompt, _Z, table.prompt_tokens)
    outputs = np.interp(z_output, _Z, table.output_tokens)
    return _whole(prompts), _whole(outputs)


def _whole(tokens: np.ndarray, most: int = MAX_TOKENS) -> np.ndarray:
    return np.clip(np.rint(tokens), 1, most).astype(np.int64)


@lru_cache
def calibration_lengths(lengths: LengthsConfig) -> tuple[np.ndarray, np.ndarray]:
    """A large sample of prompt and output lengths that no seed changes, for means and offered load."""
    return draw_lengths(lengths, _CALIBRATION_REQUESTS, Streams.of(np.random.SeedSequence(0)))


# ---- classes and predictions ----------------------------------------------------------------------------


def draw_classes(shares: Sequence[float], n: int, rng: np.random.Generator) -> np.ndarray:
    """`(n,)` int32 class indices, class k with probability `shares[k]` / sum of shares."""
    bounds = np.cumsum(shares) / np.sum(shares)
    return np.searchsorted(bounds[:-1], rng.random(n), side="right").astype(np.int32)


def predict_lengths(
    predictor: PredictorConfig, output_tokens: np.ndarray, mean_tokens: float, rng: np.random.Generator
) -> np.ndarray:
    """`(n,)` predicted output lengths, int64 tokens, at least 1.

    Args:
        predictor: kind of predictor.
        output_tokens: `(n,)` true lengths.
        mean_tokens: mean output of the workload, what `kind: mean` answers.
        rng: draws the error of `kind: noisy`, which has mean 1 so that sums of predictions are unbiased.
    """
    if predictor.kind == "oracle":
        return output_tokens.copy()
    if predictor.kind == "mean":
        return _whole(np.full(len(output_tokens), mean_tokens))
    error = rng.standard_normal(len(output_tokens))
    error *= predictor.sigma
    error -= 0.5 * predictor.sigma**2
    return _whole(output_tokens * np.exp(error, out=error))
