"""MaskablePPO in continuous time: what lies dt seconds ahead counts e^(−β·dt), whatever the number of steps between.

Semi-Markov form of generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438), with γ = e^(−β·dt) and
λ = e^(−κ·dt) of each step's own length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv


class EventTimeRolloutBuffer(MaskableDictRolloutBuffer):
    """A rollout buffer whose steps have lengths in seconds.

    Args:
        beta_per_s: discount rate β, 1/s.
        trace_decay_per_s: rate κ at which advantage traces fade beyond that, 1/s.
        group: so many neighbouring environments share arrivals; the mean of their advantages at the same step is
            subtracted. It depends on arrivals and on what the others did, hardly on the action at hand, so it takes
            away the noise of heavy-tailed arrivals and leaves the direction of the gradient. 1: nothing is.
    """

    def __init__(
        self, *args: Any, beta_per_s: float = 0.0, trace_decay_per_s: float = 0.0, group: int = 1, **kwargs: Any
    ) -> None:
        self.beta_per_s = beta_per_s
        self.trace_decay_per_s = trace_decay_per_s
        self.group = group
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        super().reset()
        self.dt = np.zeros((self.buffer_size, self.n_envs))  # seconds

    def add(self, *args: Any, dt: np.ndarray, **kwargs: Any) -> None:
        """Add a step of every environment that took `dt (n_envs,)` seconds."""
        self.dt[self.pos] = dt
        super().add(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        """Advantages and returns, `(n_steps, n_envs)`.

        Args:
            last_values: `(n_envs,)` or `(n_envs, 1)` of the observations after the last step.
            dones: `(n_envs,)` whether an episode ended with it.
        """
        goes_on = 1.0 - np.vstack((self.episode_starts[1:], dones[None].astype(np.float32)))
        following = np.vstack((self.values[1:], last_values.cpu().numpy().reshape(1, -1)))
        discount = np.exp(-self.beta_per_s * self.dt) * goes_on
        trace = np.exp(-self.trace_decay_per_s * self.dt) * discount
        errors = self.rewards + discount * following - self.values
        advantage = np.zeros(self.n_envs)
        for step in reversed(range(self.buffer_size)):
            advantage = errors[step] + trace[step] * advantage
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values
        if self.group > 1:
            grouped = self.advantages.reshape(self.buffer_size, -1, self.group)
            grouped -= grouped.mean(axis=2, keepdims=True)


class EventTimePPO(MaskablePPO):
    """MaskablePPO on a `ClusterVecEnv` with event-time discounting.

    All randomness and all episodes start anew every `restart_updates` updates, from seeds that depend on `seed` and
    the update only. The parameters at such a point are therefore everything that the rest of the run depends on.

    Args:
        beta_per_s, trace_decay_per_s, group: as for `EventTimeRolloutBuffer`; the environment has the same β.
        reward_scale: factor on rewards.
        restart_updates: updates between restarts.
        kwargs: as for `MaskablePPO`.
    """

    def __init__(
        self,
        *args: Any,
        beta_per_s: float = 0.0,
        trace_decay_per_s: float = 0.0,
        group: int = 1,
        reward_scale: float = 1.0,
        restart_updates: int = 8,
        **kwargs: Any,
    ) -> None:
        self.beta_per_s = beta_per_s
        self.reward_scale = reward_scale
        self.restart_updates = restart_updates
        buffer = {"beta_per_s": beta_per_s, "trace_decay_per_s": trace_decay_per_s, "group": group}
        super().__init__(
            *args, rollout_buffer_class=EventTimeRolloutBuffer, rollout_buffer_kwargs=buffer, gamma=1.0, **kwargs
        )

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.num_timesteps // (self.n_envs * self.n_steps)

    def restart(self) -> None:
        """Start randomness and episodes anew."""
        assert self.env is not None
        seed = np.random.SeedSequence((self.seed or 0, self.updates)).generate_state(1)[0]
        self.set_random_seed(int(seed >> 1))
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self._last_episode_starts = np.ones(self.n_envs, dtype=bool)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """Fill the buffer; False if the callback says that it is enough."""
        assert isinstance(rollout_buffer, EventTimeRolloutBuffer)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        if self.updates % self.restart_updates == 0:
            self.restart()
        for _ in range(n_rollout_steps):
            before, starts = self._last_obs, self._last_episode_starts
            masks = np.stack(env.env_method("action_masks"))
            with th.no_grad():
                actions, values, log_probs = self.policy(obs_as_tensor(before, self.device), action_masks=masks)
            chosen = actions.cpu().numpy()
            after, rewards, dones, infos = env.step(chosen)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            dt = np.array([info["dt"] for info in infos])
            rewards = self._shaped(rewards, infos) + np.exp(-self.beta_per_s * dt) * self._beyond(dones, infos)
            rollout_buffer.add(before, chosen, rewards, starts, values, log_probs, action_masks=masks, dt=dt)
            self._last_obs, self._last_episode_starts = after, dones
        with th.no_grad():
            last_values = self.policy.predict_values(obs_as_tensor(self._last_obs, self.device))
        rollout_buffer.compute_returns_and_advantage(last_values, dones)
        callback.on_rollout_end()
        return True

    def _shaped(self, rewards: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """Scaled rewards, less the reference rule's where there is one."""
        if "reference_reward" in infos[0]:
            rewards = rewards - np.array([info["reference_reward"] for info in infos])
        return rewards * self.reward_scale

    def _beyond(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """`(n_envs,)` value of what lies behind the end of truncated episodes, 0 elsewhere."""
        values = np.zeros(self.n_envs)
        cut = [i for i in np.flatnonzero(dones) if infos[i].get("TimeLimit.truncated", False)]
        if cut:
            last = [infos[i]["terminal_observation"] for i in cut]
            stacked = {part: np.stack([observation[part] for observation in last]) for part in last[0]}
            with th.no_grad():
                values[cut] = self.policy.predict_values(obs_as_tensor(stacked, self.device)).cpu().numpy()[:, 0]
        return values
