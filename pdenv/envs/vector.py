"""The environments, many at a time: one compiled call advances all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pdenv.envs import single
from pdenv.envs.fleet import Fleet, check_options
from pdenv.envs.layout import Layout
from pdenv.envs.settings import make_settings, whole
from pdenv.envs.single import DECISIONS
from pdenv.errors import InputError, nearest
from pdenv.sim.state import TERMS

_NAMES = np.array([DECISIONS[kind] for kind in range(len(DECISIONS))], object)

METADATA = {**single.METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}


class ClusterVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` environments that equal as many single ones, step for step, for the same seeds.

    Observations, masks and infos are those of `pdenv.envs.single.ClusterEnv` with a leading axis.

    Args:
        kind: "routing", "scaling" or "cluster".
        num_envs: how many.
        autoreset_mode: of Gymnasium: "next_step" (the step after an episode's end resets), "same_step" (that step
            itself does, with `final_obs` and `final_info`) or "disabled" (`reset(options={"reset_mask": …})`).
        rollouts_per_window: so many neighbours serve the same windows, for comparisons with less noise.
        threads: of the compiled calls, which release the interpreter lock; 1 is best below some 100 environments.
        settings: as for `pdenv.envs.single.ClusterEnv`.

    Raises:
        InputError: an argument that is not valid, in one line.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(
        self,
        kind: str = "cluster",
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        rollouts_per_window: int = 1,
        threads: int = 1,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if render_mode is not None:
            raise InputError("is for single environments; make one with gymnasium.make", where="render_mode")
        for name, value in (("num_envs", num_envs), ("rollouts_per_window", rollouts_per_window), ("threads", threads)):
            whole(value, name, 1, 100_000)
        self.fleet = Fleet(make_settings(kind, **settings), int(num_envs), int(threads), int(rollouts_per_window))
        self.num_envs = int(num_envs)
        self.autoreset_mode = checked_autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = None
        self.single_observation_space = self.layout.observation_space()
        self.single_action_space = self.layout.action_space()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._yes = np.ones(self.num_envs, np.bool_)

    @property
    def layout(self) -> Layout:
        """Shapes of the observation, and actions by what they do."""
        return self.fleet.layout

    # ---- Gymnasium ----------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start episodes.

        Args:
            seed: a number s gives environment i the seed s + i (those that share windows share it), a list one each.
            options: as for a single environment, for all of them; `window` may be a list with one for each;
                `reset_mask` `(num_envs,)` bool resets only some.
        """
        given = dict(options) if isinstance(options, Mapping) else options
        mask = given.pop("reset_mask", None) if isinstance(given, dict) else None
        check_options(given or {})
        chosen = self._yes.copy() if mask is None else self._mask(mask)
        seeds = self.fleet.seeds_from(seed)
        if seed is not None:
            self.fleet.seed(seeds)
        self.fleet.reset(np.flatnonzero(chosen), given)
        return self._observation(), self._start_info(chosen)

    def _mask(self, mask: Any) -> np.ndarray:
        """Which environments to reset."""
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.shape != (self.num_envs,):
            raise InputError(f"give True or False for each of the {self.num_envs} environments", where="reset_mask")
        return array.copy() if self.fleet.sims else self._yes.copy()

    def step(self, actions: Any) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a decision in every environment, and run each to its next one.

        Raises:
            IllegalAction: nothing has happened in any of them.
        """
        fleet = self.fleet
        taken = fleet.actions_from(actions)
        resetting = fleet.over.copy()
        if resetting.any() and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise RuntimeError("an episode is over: call reset(options={'reset_mask': …})")
        acting = np.flatnonzero(~resetting) if resetting.any() else fleet.all
        fleet.step(acting, taken)
        rewards = -fleet.faces["cost"]
        truncated = fleet.over & ~resetting
        infos = self._step_info(~resetting)
        for i in np.flatnonzero(truncated):
            infos = self._add_info(infos, self._final_info(int(i)), int(i))
        if resetting.any():
            rewards[resetting] = 0.0
            fleet.reset(np.flatnonzero(resetting))
            self._merge_start(infos, resetting)
        if truncated.any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = self._reset_at_once(infos, truncated)
        return self._observation(), rewards, np.zeros(self.num_envs, np.bool_), truncated, infos

    def action_masks(self) -> np.ndarray:
        """`(num_envs, A)` bool: legal actions."""
        return self.fleet.masks.copy()

    def close_extras(self, **_: Any) -> None:
        if hasattr(self, "fleet"):  # Gymnasium 1.2 also closes one whose arguments were refused
            self.fleet.close()

    # ---- parts --------------------------------------------------------------------------------------

    def _observation(self) -> dict[str, np.ndarray]:
        return self.layout.parts(self.fleet.observations.copy())

    def _common(self, which: np.ndarray) -> dict[str, Any]:
        fleet = self.fleet
        info = {
            "action_mask": fleet.masks.copy(),
            "decision": _NAMES[fleet.faces["pending"]],
            "time_s": fleet.faces["now"].copy(),
        }
        for name in tuple(info):
            info[f"_{name}"] = which
        return info

    def _start_info(self, which: np.ndarray) -> dict[str, Any]:
        info = self._common(which)
        info["window"] = np.array([start.window for start in self.fleet.episodes])
        info["_window"] = which
        return info

    def _step_info(self, which: np.ndarray) -> dict[str, Any]:
        fleet = self.fleet
        info = self._common(which)
        terms = {name: -fleet.terms[:, k] for k, name in enumerate(TERMS)}
        info["reward_terms"] = {**terms, **{f"_{name}": which for name in TERMS}}
        info["dt"] = fleet.faces["dt"].copy()
        if fleet.settings.reference:
            info["reference_reward"] = -fleet.reference_cost
        if fleet.settings.replace_illegal:
            info["replaced_actions"] = fleet.faces["replaced"].copy()
        for name in ("reward_terms", "dt", "reference_reward", "replaced_actions"):
            if name in info:
                info[f"_{name}"] = which
        return info

    def _final_info(self, i: int) -> dict[str, Any]:
        return {"metrics": self.fleet.summary(i), "score": self.fleet.score(i)}

    def _merge_start(self, infos: dict[str, Any], which: np.ndarray) -> None:
        """What a reset says, for the environments that this step has reset."""
        for name, value in self._start_info(which).items():
            if name.startswith("_"):
                infos[name] = infos.get(name, np.zeros(self.num_envs, np.bool_)) | value
            else:
                infos[name] = value

    def _reset_at_once(self, infos: dict[str, Any], truncated: np.ndarray) -> dict[str, Any]:
        """Reset what has just ended; its last observation and info go to `final_obs` and `final_info`."""
        last = self._observation()
        finals = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(truncated):
            finals[i] = {part: value[i] for part, value in last.items()}
        final_info = {name: value for name, value in infos.items() if not name.startswith("_")}
        final_info |= {name: truncated.copy() for name in infos if name.startswith("_")}
        self.fleet.reset(np.flatnonzero(truncated))
        fresh = self._step_info(~truncated)
        self._merge_start(fresh, truncated)
        fresh |= {"final_obs": finals, "final_info": final_info}
        return fresh | {"_final_obs": truncated.copy(), "_final_info": truncated.copy()}


def checked_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """A member of AutoresetMode, by itself, name or value."""
    if isinstance(mode, AutoresetMode):
        return mode
    names = {text.lower(): member for member in AutoresetMode for text in (member.name, member.value)}
    if not isinstance(mode, str) or mode.lower() not in names:
        raise InputError(f"no mode {mode!r}{nearest(str(mode), names)}", where="autoreset_mode")
    return names[mode.lower()]


def routing(**settings: Any) -> ClusterVectorEnv:
    """Vector entry point of `pdenv/Routing-v0`."""
    return ClusterVectorEnv("routing", **settings)


def scaling(**settings: Any) -> ClusterVectorEnv:
    """Vector entry point of `pdenv/Scaling-v0`."""
    return ClusterVectorEnv("scaling", **settings)


def cluster(**settings: Any) -> ClusterVectorEnv:
    """Vector entry point of `pdenv/Cluster-v0`."""
    return ClusterVectorEnv("cluster", **settings)
