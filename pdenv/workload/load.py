"""How much prefill work arrivals offer, as a share of what the active prefill pool can do."""

from __future__ import annotations

import math

import numpy as np

from pdenv.topology import Cluster, PrefillInstance, StepLaw

_SHORTEST_STEP_S = 1e-6


def linear_part_s(law: StepLaw, tokens: np.ndarray) -> np.ndarray:
    """`(n,)` s: the part of a prefill step that depends on its tokens alone, `a + b·x` or the table.

    Beyond a table its outermost segments go on.
    """
    if not law.table_x:
        return law.a_s + law.b_s * tokens
    x, y = np.array(law.table_x), np.array(law.table_s)
    if len(x) == 1:
        return np.full(len(tokens), y[0])
    segment = np.clip(np.searchsorted(x, tokens, side="right") - 1, 0, len(x) - 2)
    slope = np.diff(y) / np.diff(x)
    return y[segment] + slope[segment] * (tokens - x[segment])


def prefill_work_s(cluster: Cluster, instance: PrefillInstance, prompt_tokens: np.ndarray) -> np.ndarray:
    """`(n,)` s that each prompt takes alone on an idle instance, without a prefix hit.

    A chunked prompt takes steps of `max_batch_tokens`, each with the step's overhead a.
    """
    law = cluster.profiles[instance.profile].prefill
    tokens = prompt_tokens.astype(np.float64)
    quadratic = law.c_s[0] * tokens**2
    if not instance.chunked:
        return np.maximum(linear_part_s(law, tokens) + quadratic, _SHORTEST_STEP_S)
    budget = float(instance.max_batch_tokens)
    full_chunks = np.ceil(tokens / budget) - 1.0
    last_chunk = tokens - full_chunks * budget
    linear = full_chunks * linear_part_s(law, np.array([budget])) + linear_part_s(law, last_chunk)
    return np.maximum(linear + quadratic, _SHORTEST_STEP_S)


def offered_prefill_load(cluster: Cluster, arrivals: np.ndarray, span_s: float) -> float:
    """Offered prefill work over the capacity of the active prefill pool, dimensionless.

    1.0 means that the arrivals keep all active prefill instances busy all the time when each instance gets
    as many requests as it can serve: `λ / Σ_p 1/E[work on p]`. Prompts are counted one by one, so batching
    short prompts together, and prefix hits, leave instances less busy than this says.

    Args:
        cluster: the cluster; instances that are not active at the start do not count.
        arrivals: `(n,)` ARRIVAL rows, of which `prompt_tokens` is read.
        span_s: the time in which they arrive, s.

    Returns:
        The load: 0 without arrivals, infinite without an active prefill instance or with a span of 0.
    """
    if not len(arrivals):
        return 0.0
    capacity_per_s = 0.0
    counts = np.bincount(arrivals["prompt_tokens"])  # far fewer distinct lengths than requests
    lengths = np.flatnonzero(counts)
    known: dict[tuple[int, int, bool], float] = {}
    for instance in cluster.prefill:
        if not instance.active:
            continue
        key = (instance.profile, instance.max_batch_tokens, instance.chunked)
        if key not in known:
            work_s = prefill_work_s(cluster, instance, lengths)
            known[key] = float(work_s @ counts[lengths]) / len(arrivals)
        capacity_per_s += 1.0 / known[key]
    if capacity_per_s == 0.0 or span_s <= 0.0:
        return math.inf
    return len(arrivals) / span_s / capacity_per_s
