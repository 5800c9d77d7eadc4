"""A policy that scores every (prefill, decode) pair with one shared network.

Instances of a pool are interchangeable: showing them in another order shows the same scores in that order, and the
same weights serve a cluster of any size. Rows of padding count for nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from pdenv.envs.kernels.features import FEATURES, Scale
from pdenv.topology import N_PRECISIONS

Observation = dict[str, th.Tensor]

#: Times and counts are also shown in proportion, because costs are: in these units, up to 4 of them.
LINEAR_UNITS = {"s": 10.0, "count": 50.0}
LINEAR_MOST = 4.0

#: Column of `present` in the rows of instances.
PRESENT = 0


class Features(nn.Module):
    """Widens normalised features: logarithms in natural units, then times and counts in proportion."""

    def __init__(self, part: str) -> None:
        super().__init__()
        features = FEATURES[part]
        logarithmic = [f.scale is Scale.LOG for f in features]
        span = [
            float(np.log1p(f.most / f.scale_unit)) if log else f.most
            for f, log in zip(features, logarithmic, strict=True)
        ]
        linear = [k for k, f in enumerate(features) if logarithmic[k] and f.unit in LINEAR_UNITS]
        unit = [features[k].scale_unit / LINEAR_UNITS[features[k].unit] for k in linear]
        self.register_buffer("span", th.tensor(span), persistent=False)
        self.register_buffer("linear", th.tensor(linear, dtype=th.long), persistent=False)
        self.register_buffer("unit", th.tensor(unit), persistent=False)
        self.size = len(features) + len(linear)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """`(..., F)` in [−1, 1] to `(..., size)`."""
        natural = x * self.span
        part = natural[..., self.linear]
        linear = (part.sign() * part.abs().expm1() * self.unit).clamp(-LINEAR_MOST, LINEAR_MOST)
        return th.cat((natural, linear), dim=-1)


class Pools(nn.Module):
    """Embeds every instance, and the whole situation from what the request, the cluster and the pools look like."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.features = nn.ModuleDict({part: Features(part) for part in FEATURES if part != "pair"})
        self.rows = nn.ModuleDict(
            {part: linear(self.size(part), hidden) for part in ("prefill", "decode", "colocated")}
        )
        self.whole = linear(self.size("request") + self.size("cluster") + 6 * hidden, hidden)

    def size(self, part: str) -> int:
        return int(self.features[part].size)

    def forward(self, observation: Observation) -> tuple[dict[str, th.Tensor], th.Tensor]:
        """Embeddings of the rows of each pool `(B, rows, hidden)` and of the situation `(B, hidden)`."""
        rows, pooled = {}, []
        for part, layer in self.rows.items():
            present = observation[part][..., PRESENT : PRESENT + 1]
            rows[part] = th.relu(layer(self.features[part](observation[part]))) * present
            count = present.sum(dim=1).clamp(min=1.0)
            pooled += [rows[part].sum(dim=1) / count, rows[part].amax(dim=1)]
        situation = [self.features[part](observation[part]) for part in ("request", "cluster")]
        return rows, th.relu(self.whole(th.cat((*situation, *pooled), dim=-1)))


class Scorer(nn.Module):
    """Logits of all actions of the `pair` form: pairs × precisions, co-located instances, hold, reject, scalings."""

    def __init__(self, hidden: int, n_other: int) -> None:
        super().__init__()
        self.pools = Pools(hidden)
        self.pair_features = Features("pair")
        self.from_pair = linear(self.pair_features.size, hidden)
        self.from_prefill = linear(hidden, hidden)
        self.from_decode = linear(hidden, hidden)
        self.from_whole = linear(hidden, hidden)
        self.pair_hidden = linear(hidden, hidden)
        self.pair_score = linear(hidden, N_PRECISIONS, gain=0.01)
        self.colocated_hidden = linear(2 * hidden, hidden)
        self.colocated_score = linear(hidden, 1, gain=0.01)
        self.other_score = linear(hidden, n_other, gain=0.01)

    def forward(self, observation: Observation) -> th.Tensor:
        """`(B, A)` logits."""
        rows, whole = self.pools(observation)
        pairs = self.from_pair(self.pair_features(observation["pair"]))
        pairs = pairs + self.from_prefill(rows["prefill"])[:, :, None] + self.from_decode(rows["decode"])[:, None]
        pairs = th.relu(pairs + self.from_whole(whole)[:, None, None])
        pair_scores = self.pair_score(th.relu(self.pair_hidden(pairs)))
        colocated = rows["colocated"]
        beside = th.cat((colocated, whole[:, None].expand_as(colocated)), dim=-1)
        colocated_scores = self.colocated_score(th.relu(self.colocated_hidden(beside)))
        return th.cat((pair_scores.flatten(1), colocated_scores.flatten(1), self.other_score(whole)), dim=-1)


class Critic(nn.Module):
    """Value of a situation, from pooled features."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.pools = Pools(hidden)
        self.hidden = linear(hidden, hidden)
        self.value = linear(hidden, 1, gain=1.0)

    def forward(self, observation: Observation) -> th.Tensor:
        """`(B, 1)`."""
        _, whole = self.pools(observation)
        return self.value(th.relu(self.hidden(whole)))


def linear(inputs: int, outputs: int, gain: float = 2.0**0.5) -> nn.Linear:
    """A layer with orthogonal weights and no bias at the start."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class PairPolicy(MaskableActorCriticPolicy):
    """The policy for `MaskablePPO` on normalised Dict observations and `action_mode="pair"`.

    Args:
        hidden: width of the layers.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        hidden: int = 64,
        **kwargs: Any,
    ) -> None:
        self.hidden = hidden
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        space = self.observation_space
        assert isinstance(space, spaces.Dict)
        assert isinstance(self.action_space, spaces.Discrete)
        prefill, decode, _ = space["pair"].shape or ()
        routes = prefill * decode * N_PRECISIONS + (space["colocated"].shape or ())[0]
        self.scorer = Scorer(self.hidden, int(self.action_space.n) - routes)
        self.critic = Critic(self.hidden)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}

    def set_training_mode(self, mode: bool) -> None:
        """As in Stable-Baselines3, which walks through all modules at every prediction."""
        if mode != self.training:
            super().set_training_mode(mode)

    def get_distribution(self, obs: Any, action_masks: Any = None) -> MaskableDistribution:
        """Probabilities of the actions; 0 where the mask is."""
        distribution = self.action_dist.proba_distribution(self.scorer(obs))
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def forward(
        self, obs: Any, deterministic: bool = False, action_masks: np.ndarray | None = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Actions `(B,)`, values `(B, 1)` and log-probabilities `(B,)`."""
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.critic(obs), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Any, actions: th.Tensor, action_masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Values `(B, 1)`, log-probabilities `(B,)` and entropies `(B,)`."""
        distribution = self.get_distribution(obs, action_masks)
        return self.critic(obs), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: Any) -> th.Tensor:
        """`(B, 1)`."""
        return self.critic(obs)
