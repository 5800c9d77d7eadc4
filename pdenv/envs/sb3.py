"""The environments as a native VecEnv of Stable-Baselines3, without sub-processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from pdenv.envs.fleet import Fleet
from pdenv.envs.layout import Layout
from pdenv.envs.normalize import Normalizer, flat_space, normalized_space
from pdenv.envs.registration import IDS
from pdenv.envs.settings import flag, make_settings, whole
from pdenv.envs.single import DECISIONS, ClusterEnv
from pdenv.errors import InputError, nearest
from pdenv.sim.state import TERMS

_PARTS = ("raw", "normalized")


class ClusterVecEnv(VecEnv):
    """`n_envs` environments in one process; episodes restart in the step in which they end.

    `infos[i]` has `action_mask`, `dt`, `reward_terms`, at an episode's end also `terminal_observation`,
    `TimeLimit.truncated`, `metrics`, `score` and `episode` (return `r` and length `l`).

    Args:
        env_id: an id of `pdenv`.
        n_envs: how many.
        observation: "raw" (physical units) or "normalized" (in [−1, 1]).
        flat: one box in place of the Dict.
        rollouts_per_window, threads: as for `pdenv.envs.vector.ClusterVectorEnv`.
        settings: as for `pdenv.envs.single.ClusterEnv`.

    Raises:
        InputError: an argument that is not valid, in one line.
    """

    def __init__(
        self,
        env_id: str,
        n_envs: int = 1,
        observation: str = "normalized",
        flat: bool = False,
        rollouts_per_window: int = 1,
        threads: int = 1,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(env_id, str) or env_id not in IDS:
            raise InputError(f"no environment {env_id!r}{nearest(str(env_id), IDS)}", where="env_id")
        for name, value in (("n_envs", n_envs), ("threads", threads), ("rollouts_per_window", rollouts_per_window)):
            whole(value, name, 1, 100_000)
        flag(flat, "flat")
        if observation not in _PARTS:
            raise InputError(f"is {observation!r}{nearest(str(observation), _PARTS)}", where="observation")
        self.fleet = Fleet(make_settings(IDS[env_id], **settings), n_envs, threads, rollouts_per_window)
        self.env_id = env_id
        self.flat = flat
        self._normalize = Normalizer(self.layout) if observation == "normalized" else None
        raw = flat_space(self.layout) if flat else self.layout.observation_space()
        space = raw if self._normalize is None else normalized_space(self.layout, flat)
        self.render_mode = None
        self._actions = np.zeros((n_envs, 1), np.int64)
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, np.int64)
        self._single: ClusterEnv | None = None
        super().__init__(n_envs, space, self.layout.action_space())
        if seed is not None:
            self.seed(seed)

    @property
    def layout(self) -> Layout:
        """Shapes of the observation, and actions by what they do."""
        return self.fleet.layout

    # ---- VecEnv -------------------------------------------------------------------------------------

    def reset(self) -> Any:
        if any(seed is not None for seed in self._seeds):
            self.fleet.seed(self._seeds)
        self.fleet.reset(self.fleet.all, self._options)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.reset_infos = [
            {"action_mask": mask, "window": start.window, "decision": self._decision(i), "time_s": self._time_s(i)}
            for i, (mask, start) in enumerate(zip(self.action_masks(), self.fleet.episodes, strict=True))
        ]
        return self._observation(self.fleet.observations)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Environment i gets `seed + i`; those that share windows share a seed."""
        self._seeds = self.fleet.seeds_from(int(np.random.default_rng().integers(2**31)) if seed is None else seed)
        return self._seeds

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = self.fleet.actions_from(actions)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        fleet = self.fleet
        fleet.step(fleet.all, self._actions)
        rewards = -fleet.faces["cost"]
        self._returns += rewards
        self._lengths += 1
        dones = fleet.over.copy()
        infos = self._infos()
        if dones.any():
            self._restart(np.flatnonzero(dones), infos)
        masks = fleet.masks.copy()
        for info, mask in zip(infos, masks, strict=True):
            info["action_mask"] = mask
        return self._observation(fleet.observations), rewards.astype(np.float32), dones, infos

    def _infos(self) -> list[dict[str, Any]]:
        fleet = self.fleet
        rows = (-fleet.terms).tolist()
        infos: list[dict[str, Any]] = [
            {"dt": dt, "reward_terms": dict(zip(TERMS, row, strict=True))}
            for dt, row in zip(fleet.faces["dt"].tolist(), rows, strict=True)
        ]
        if fleet.settings.reference:
            for info, cost in zip(infos, fleet.reference_cost.tolist(), strict=True):
                info["reference_reward"] = -cost
        if fleet.settings.replace_illegal:
            for info, count in zip(infos, fleet.faces["replaced"].tolist(), strict=True):
                info["replaced_actions"] = count
        return infos

    def _restart(self, which: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Note how the episodes `which` ended, and start new ones."""
        last = self._observation(self.fleet.observations)
        for i in which.tolist():
            final = last[i] if self.flat else {part: value[i] for part, value in last.items()}
            infos[i] |= {
                "terminal_observation": final,
                "TimeLimit.truncated": True,
                "metrics": self.fleet.summary(i),
                "score": self.fleet.score(i),
                "episode": {"r": float(self._returns[i]), "l": int(self._lengths[i])},
            }
        self.fleet.reset(which)
        self._returns[which] = 0.0
        self._lengths[which] = 0

    def _observation(self, flat: np.ndarray) -> Any:
        rows = flat.copy() if self._normalize is None else self._normalize(flat)
        return rows if self.flat else self.layout.parts(rows)

    def _decision(self, i: int) -> str:
        return DECISIONS[int(self.fleet.faces["pending"][i])]

    def _time_s(self, i: int) -> float:
        return float(self.fleet.faces["now"][i])

    # ---- what agents ask ----------------------------------------------------------------------------

    def action_masks(self) -> np.ndarray:
        """`(n_envs, A)` bool: legal actions."""
        return self.fleet.masks.copy()

    def close(self) -> None:
        self.fleet.close()

    def has_attr(self, attr_name: str) -> bool:
        return attr_name == "action_masks" or hasattr(self._one(), attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        which = list(self._get_indices(indices))
        if attr_name == "render_mode":
            return [None for _ in which]
        if attr_name == "scenario":
            return [
                self.fleet.episodes[i].scenario if self.fleet.episodes else self.fleet.settings.scenario for i in which
            ]
        if attr_name == "simulation":
            return [self.fleet.sims[i] for i in which]
        return [getattr(self._one(), attr_name) for _ in which]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"'{attr_name}' of an environment is set when it is made")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        which = list(self._get_indices(indices))
        if method_name == "action_masks":
            masks = self.action_masks()
            return [masks[i] for i in which]
        if method_name == "choice":
            return [self.layout.choice(*args, **kwargs) for _ in which]
        raise AttributeError(f"no method '{method_name}'; there are action_masks and choice")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def _one(self) -> ClusterEnv:
        """A single environment, for what is the same in all of them."""
        if self._single is None:
            self._single = ClusterEnv.__new__(ClusterEnv)
            self._single.fleet = self.fleet
            self._single.render_mode = None
            self._single.observation_space = self.observation_space
            self._single.action_space = self.action_space
        return self._single


def make_sb3_vec_env(env_id: str, n_envs: int = 1, **settings: Any) -> ClusterVecEnv:
    """A native VecEnv of `n_envs` environments; see `ClusterVecEnv` for the arguments."""
    return ClusterVecEnv(env_id, n_envs, **settings)
