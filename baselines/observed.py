"""Schedulers that act on an environment's observation alone.

They show that it holds what the good heuristics need. Each follows the compiled rule of the same name; float32 and the
estimates in the observation make them differ in a few decisions of close calls. Observations are raw (physical units),
actions of the `pair` form, both with or without a leading axis of environments:

    action, _ = observed.Greedy().predict(observation, action_masks=env.unwrapped.action_masks())
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdenv.envs.kernels.features import column
from pdenv.envs.layout import SCALE_NOTHING
from pdenv.topology import N_PRECISIONS, PRECISIONS

#: Bytes of stored KV relative to BF16 by precision, to tell the store precision by.
_STORE_SIZES = np.array([1.0, 0.5, 0.25, 0.28125])


@dataclass(frozen=True)
class Seen:
    """A batch of n observations, features by name.

    Attributes:
        parts: `(n, …, F)` each.
        legal: `(n, P, D, Q)` bool, pairs in each precision.
        legal_colocated: `(n, H)` bool.
    """

    parts: Mapping[str, np.ndarray]
    legal: np.ndarray
    legal_colocated: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        """A feature as "part.name", `(n, …)` float64."""
        part, _, feature = name.partition(".")
        return self.parts[part][..., column(part, feature)].astype(np.float64)

    def flag(self, name: str) -> np.ndarray:
        """The same as bool."""
        return self[name] > 0.5

    def of_each_precision(self, prefix: str, suffix: str = "") -> np.ndarray:
        """`(n, …, Q)`: a feature that there is for every precision."""
        return np.stack([self[f"{prefix}{name}{suffix}"] for name in PRECISIONS], axis=-1)

    @property
    def n_pairs(self) -> int:
        """Actions that name a pair."""
        return int(np.prod(self.legal.shape[1:]))

    @property
    def hold(self) -> int:
        """The action that holds."""
        return self.n_pairs + self.legal_colocated.shape[1]


class Observed:
    """An agent with SB3's `predict`. Scaling decisions are answered by leaving the pools as they are."""

    name = ""

    def predict(
        self,
        observation: Mapping[str, np.ndarray],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Actions of the `pair` form, `()` or `(n,)` int64.

        Args:
            observation: the Dict, raw.
            state: handed back.
            episode_start, deterministic: have no effect.
            action_masks: `(A,)` or `(n, A)` bool. Without it what is legal is taken from the observation, which does
                not tell the precisions of one decode instance apart (they differ only with `kv.mixed_store`).
        """
        single = observation["cluster"].ndim == 1
        parts = {name: part[None] if single else part for name, part in observation.items()}
        masks = action_masks[None] if single and action_masks is not None else action_masks
        seen = see(parts, masks)
        actions = np.where(seen.flag("request.scale"), seen.hold + 2 + SCALE_NOTHING, self.choose(seen))
        return (actions[0] if single else actions), state

    @abstractmethod
    def choose(self, seen: Seen) -> np.ndarray:
        """`(n,)` int64 answers to the requests that are to be dispatched or paired."""


def see(parts: Mapping[str, np.ndarray], masks: np.ndarray | None) -> Seen:
    """What is legal by the masks `(n, A)`, or without them by the observation `parts`."""
    n, n_prefill, n_decode = parts["pair"].shape[:3]
    n_colocated = parts["colocated"].shape[1]
    shape = (n, n_prefill, n_decode, N_PRECISIONS)
    n_pairs = n_prefill * n_decode * N_PRECISIONS
    if masks is not None:
        return Seen(parts, masks[:, :n_pairs].reshape(shape), masks[:, n_pairs : n_pairs + n_colocated])
    seen = Seen(parts, np.zeros(shape, np.bool_), np.zeros((n, n_colocated), np.bool_))
    prefills = np.where(seen.flag("request.pair")[:, None], seen.flag("prefill.chosen"), seen.flag("prefill.legal"))
    decodes = seen.flag("decode.legal")
    precisions = seen.of_each_precision("request.may_") > 0.5
    legal = prefills[:, :, None, None] & decodes[:, None, :, None] & precisions[:, None, None, :]
    return Seen(parts, legal, seen.flag("colocated.legal"))


# ---- parts that the schedulers share ----------------------------------------------------------------------


def first_least(values: np.ndarray, legal: np.ndarray | np.bool_) -> np.ndarray:
    """`(n,)` position of the least legal value of each row; 0 where none is legal."""
    return np.where(legal, values, np.inf).argmin(axis=1)


def finest(seen: Seen) -> np.ndarray:
    """`(n,)` the most precise wire format that the request's tier allows."""
    return (seen.of_each_precision("request.may_") > 0.5).argmax(axis=1)


def legal_in(seen: Seen, precision: np.ndarray) -> np.ndarray:
    """`(n, P, D)` pairs that are legal in a precision `(n,)`."""
    return np.take_along_axis(seen.legal, precision[:, None, None, None], axis=3)[..., 0]


def least_work_prefill(seen: Seen, legal: np.ndarray) -> np.ndarray:
    return first_least(seen["prefill.work_s"], legal.any(axis=2))


def colocated_or_hold(seen: Seen) -> np.ndarray:
    """The co-located instance with the least prefill work, then the fewest tokens; else hold."""
    work_s, legal = seen["colocated.work_s"], seen.legal_colocated
    least = np.where(legal, work_s, np.inf).min(axis=1, keepdims=True)
    best = first_least(seen["colocated.tokens"], legal & (work_s == least))
    return np.where(legal.any(axis=1), seen.n_pairs + best, seen.hold)


def pair_or_else(seen: Seen, p: np.ndarray, d: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The pair where it is legal, else a co-located instance, else hold."""
    n_decode = seen.legal.shape[2]
    legal = seen.legal[np.arange(len(p)), p, d, q]
    return np.where(legal, (p * n_decode + d) * N_PRECISIONS + q, colocated_or_hold(seen))


def kv_aware_pair(seen: Seen, long_tokens: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prefill, decode, precision): long prompts take the pair that they join soonest, short ones the least loaded."""
    q = finest(seen)
    legal = legal_in(seen, q)
    n, _, n_decode = legal.shape
    transfer_s = np.take_along_axis(seen.of_each_precision("pair.transfer_", "_s"), q[:, None, None, None], axis=3)[
        ..., 0
    ]
    arrives_s = seen["prefill.work_s"][:, :, None] + transfer_s + seen["decode.memory_wait_s"][:, None, :]
    soonest = first_least(arrives_s.reshape(n, -1), legal.reshape(n, -1))
    dispatched_late = seen.flag("cluster.late_binding") & seen.flag("request.route")
    link_decides = (seen["request.prompt_tokens"] >= long_tokens) & ~dispatched_late
    p = np.where(link_decides, soonest // n_decode, least_work_prefill(seen, legal))
    d = np.where(link_decides, soonest % n_decode, first_least(seen["decode.kv"], legal.any(axis=1)))
    return p, d, q


# ---- the schedulers ---------------------------------------------------------------------------------------


class LeastWork(Observed):
    """Least predicted prefill work; decode with the fewest prompt and predicted tokens."""

    name = "least-work"

    def choose(self, seen: Seen) -> np.ndarray:
        q = finest(seen)
        legal = legal_in(seen, q)
        d = first_least(seen["decode.tokens"], legal.any(axis=1))
        return pair_or_else(seen, least_work_prefill(seen, legal), d, q)


class KvAware(Observed):
    """Long prompts follow the fastest links, short ones go where there is room."""

    name = "kv-aware"

    def __init__(self, long_tokens: float = 4096.0) -> None:
        self.long_tokens = long_tokens

    def choose(self, seen: Seen) -> np.ndarray:
        return pair_or_else(seen, *kv_aware_pair(seen, self.long_tokens))


class ThreePart(Observed):
    """The routing of the three-part scheduler: rate matching, KV-aware pairing, precision by tier."""

    name = "three-part"

    def __init__(self, long_tokens: float = 4096.0, receive_limit: float = 4.0, compress_above_s: float = 0.2) -> None:
        self.long_tokens = long_tokens
        self.receive_limit = receive_limit
        self.compress_above_s = float(np.float32(compress_above_s))  # observations are float32: equal stays equal

    def choose(self, seen: Seen) -> np.ndarray:
        p, d, q = kv_aware_pair(seen, self.long_tokens)
        each = np.arange(len(p))
        legal = seen.legal[each, p, d]
        seconds = np.where(legal, seen.of_each_precision("pair.transfer_", "_s")[each, p, d], np.inf)
        short = seconds <= self.compress_above_s
        compressed = np.where(short.any(axis=1), short.argmax(axis=1), seconds.argmin(axis=1))
        early = seen.flag("request.route") & ~seen.flag("cluster.late_binding")
        actions = pair_or_else(seen, p, d, np.where(early & legal.any(axis=1), compressed, q))
        full = (seen["decode.receiving"] >= self.receive_limit) | ~seen.flag("decode.active")
        throttled = full.all(axis=1) & seen.flag("decode.present").any(axis=1)
        return np.where(throttled & seen.flag("request.may_hold"), seen.hold, actions)


class Greedy(Observed):
    """Least predicted cost of this request over every pair, precision and co-located instance."""

    name = "greedy"

    def choose(self, seen: Seen) -> np.ndarray:
        n = len(seen.legal)
        pairs = np.where(seen.legal, pair_costs(seen), np.inf).reshape(n, -1)
        colocated = np.where(seen.legal_colocated, colocated_costs(seen), np.inf)
        costs = np.concatenate((pairs, colocated), axis=1)
        cheapest = np.where(np.isfinite(costs.min(axis=1)), costs.argmin(axis=1), seen.hold)
        q = finest(seen)
        legal = legal_in(seen, q)
        later = pair_or_else(seen, least_work_prefill(seen, legal), np.zeros(n, np.int64), q)
        paired = pair_or_else(seen, *kv_aware_pair(seen, 0.0))
        dispatched = np.where(seen.flag("cluster.late_binding"), later, cheapest)
        return np.where(seen.flag("request.pair"), paired, dispatched)


def pair_costs(seen: Seen) -> np.ndarray:
    """`(n, P, D, Q)` predicted cost units; the transfer that a prefill hides is taken from its whole step."""
    hidden = seen["cluster.hidden"][:, None, None, None]
    whole_s = seen.of_each_precision("pair.transfer_", "_s")
    prefill_s = seen["prefill.prefill_s"][:, :, None, None]
    moved_s = np.where(hidden > 0.0, np.maximum(whole_s - hidden * prefill_s, whole_s * (1.0 - hidden)), whole_s)
    moved_s = moved_s + seen["decode.memory_wait_s"][:, None, :, None]
    ttft_s = seen["prefill.work_s"][:, :, None, None] + prefill_s
    decode_s = seen["decode.iteration_s"][:, None, :, None]
    prices = seen.of_each_precision("cluster.price_")
    stored = store_prices(seen, "decode")
    tokens = np.maximum(seen["request.predicted_tokens"] - 1.0, 1.0)[:, None, None, None]
    return (
        weight(seen, "w_prefill") * ttft_s
        + weight(seen, "w_transfer") * moved_s
        + weight(seen, "w_decode") * decode_s
        + np.maximum(prices[:, None, None, :], stored[:, None, :, None])
        + sla_cost(seen, ttft_s, decode_s + moved_s / tokens)
    )


def colocated_costs(seen: Seen) -> np.ndarray:
    """`(n, H)` predicted cost units."""
    ttft_s = (seen["colocated.work_s"] + seen["colocated.prefill_s"])[:, None, None, :]
    tokens = np.maximum(seen["request.predicted_tokens"], 1.0)[:, None, None, None]
    slowed_s = seen["colocated.iteration_s"][:, None, None, :] + ttft_s / tokens
    cost = weight(seen, "w_prefill") * ttft_s + weight(seen, "w_decode") * slowed_s + sla_cost(seen, ttft_s, slowed_s)
    return cost[:, 0, 0, :] + store_prices(seen, "colocated")


def store_prices(seen: Seen, pool: str) -> np.ndarray:
    """`(n, instances)` price of the precision in which each instance stores KV, cost units."""
    store = np.abs(seen[f"{pool}.store"][..., None] - _STORE_SIZES).argmin(axis=-1)
    return np.take_along_axis(seen.of_each_precision("cluster.price_"), store, axis=1)


def sla_cost(seen: Seen, ttft_s: np.ndarray, tpot_s: np.ndarray) -> np.ndarray:
    """Penalties for the limits that are predicted to be missed: a step, and a slope beyond it."""
    cost = np.zeros(np.broadcast_shapes(ttft_s.shape, tpot_s.shape))
    for name, seconds in (("ttft", ttft_s), ("tpot", tpot_s)):
        late_s = seconds - weight(seen, f"{name}_limit_s")
        penalty = weight(seen, f"{name}_step") + weight(seen, f"{name}_slope_per_s") * late_s
        cost = cost + np.where(late_s > 0.0, penalty, 0.0)
    return cost


def weight(seen: Seen, name: str) -> np.ndarray:
    """`(n, 1, 1, 1)`: a feature of the cluster, ready to be combined with pairs."""
    return seen[f"cluster.{name}"][:, None, None, None]
