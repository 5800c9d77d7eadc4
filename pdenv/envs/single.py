"""The environments, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from pdenv.envs.fleet import Fleet, check_options
from pdenv.envs.kernels.act import DECIDED
from pdenv.envs.layout import Choice, Layout
from pdenv.envs.settings import make_settings
from pdenv.scenario import Scenario
from pdenv.sim import decisions
from pdenv.sim.engine import Simulation
from pdenv.sim.state import ACT_COLOCATED, ACT_HOLD, ACT_PAIR, NO_DECISION, PAIR, ROUTE, SCALE, TERMS
from pdenv.topology import PRECISIONS

#: Kind of decision that an observation asks for.
DECISIONS = {NO_DECISION: "none", ROUTE: "route", PAIR: "pair", SCALE: "scale"}

METADATA = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 10}

_ONE = np.arange(1)


class ClusterEnv(gym.Env[Any, Any]):
    """A prefill / decode / KV-link cluster whose scheduler is the agent.

    **Step.** From one decision to the next: of dispatch (`pdenv/Routing-v0`), of scaling at every control interval
    (`pdenv/Scaling-v0`), or of either kind as they fall due (`pdenv/Cluster-v0`).

    **Observation.** A Dict of float32 boxes: `request (F_r,)`, `prefill (P, F_p)`, `decode (D, F_d)`,
    `pair (P, D, F_l)`, `colocated (H, F_h)`, `cluster (F_g,)`; `docs/environments.md` lists every feature. It holds
    what a scheduler may see: never a true output length, never the future.

    **Action.** One Discrete (`action_mode="pair"`), a MultiDiscrete (`"factored"`), or one Discrete a stage
    (`"sequential"`). `action_masks()` and `info["action_mask"]` say what is legal.

    **Reward.** −(cost accrued since the last decision), in cost units; `info["reward_terms"]` sum to it.

    **End.** Truncated at the end of the window, never terminated.

    Args:
        kind: "routing", "scaling" or "cluster".
        render_mode: "ansi", "rgb_array", "human" or None.
        scenario: a Scenario, or the name or path of one.
        overrides: dotted key → value, for a scenario by name or path.
        reward: "joint", "standard" or "normalised"; takes the place of the scenario's `cost.mode`.
        action_mode: "pair", "factored" or "sequential".
        split: "train", "validation" or "test".
        window: which window of the split; default: one at random at every reset.
        windows: draw from the first so many windows of the split; None: from as many as there are.
        rate_scale: factor on the arrival rate, or "auto".
        trace: a trace file that replaces the scenario's arrivals.
        workload_seed: seed of the workload, as in `pdenv.simulate(seed=…)`.
        evaluation: serve the whole window from an empty cluster on and drain it, as `pdenv.simulate` does; only the
            measured requests are charged.
        horizon_requests, horizon_s: length of an episode after the warm-up; default: the scenario's window.
        warm_start: compiled rule that serves the warm-up of a training episode; None: start empty.
        rule: compiled rule that takes the decisions that are not the agent's.
        interval_s: time between scaling decisions; default: the scenario's, or where it has none a twentieth of its
            window, 1 to 30 s.
        reference: compiled rule that serves the same window beside the agent, for `info["reference_reward"]` and the
            final `info["score"]`.
        work_conserving: holding is legal only where there is nowhere to go.
        on_illegal: "error" raises IllegalAction; "replace" takes the first legal action instead and counts it.
        shuffle_instances: show instances in another order in every episode.
        pad: (P, D, H) rows of the observation, for clusters up to that size; default: those of the scenario.
        beta_per_s: discount rate within a step, 1/s.

    Raises:
        InputError: an argument that is not valid, in one line.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(self, kind: str = "cluster", render_mode: str | None = None, **settings: Any) -> None:
        self.fleet = Fleet(make_settings(kind, **settings), 1)
        self.render_mode = checked_render_mode(render_mode, self.metadata)
        self.observation_space = self.layout.observation_space()
        self.action_space = self.layout.action_space()
        self._steps = 0
        self._return = 0.0
        self._last_decision = ""
        self._picture: Any = None
        self._started = False

    # ---- what it is made of -------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Shapes of the observation, and actions by what they do (`layout.index`, `layout.choice`)."""
        return self.fleet.layout

    @property
    def scenario(self) -> Scenario:
        """The scenario of this episode, with the environment's reward mode, interval and horizon."""
        return self.fleet.episodes[0].scenario if self.fleet.episodes else self.fleet.settings.scenario

    @property
    def simulation(self) -> Simulation:
        """The engine, for policies in Python and for looking; changing it is on your own responsibility."""
        if not self.fleet.sims:
            raise RuntimeError("call reset() first")
        return self.fleet.sims[0]

    @property
    def shown(self) -> dict[str, np.ndarray]:
        """Instance that each row of the observation shows, −1 for padding: `prefill (P,)`, `decode (D,)`, …"""
        layout, order = self.layout, self.fleet.orders[0]
        prefill, decode, colocated = np.split(order, (layout.prefill, layout.prefill + layout.decode))
        return {"prefill": prefill.copy(), "decode": decode.copy(), "colocated": colocated.copy()}

    # ---- Gymnasium ----------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: of the draw of windows and of the order of instances.
            options: `window`, `scenario`, `rate_scale` and `split` for this episode.

        Raises:
            InputError: an option that is not valid.
        """
        check_options({} if options is None else options)
        super().reset(seed=seed)
        if seed is not None:
            self.fleet.seed([seed])
        self.fleet.reset(_ONE, options)
        self._np_random = self.fleet.rngs[0]
        self._np_random_seed = self.fleet.seeds[0]
        self._steps, self._return = 0, 0.0
        self._last_decision = ""
        self._started = True
        if self.render_mode == "human":
            self.render()
        return self._observation(), {
            "action_mask": self.fleet.masks[0].copy(),
            "decision": DECISIONS[int(self.fleet.faces["pending"][0])],
            "time_s": float(self.fleet.faces["now"][0]),
            "window": self.fleet.episodes[0].window,
        }

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Take a decision and run to the next one.

        Raises:
            IllegalAction: not in the action space, or (with `on_illegal="error"`) not legal; nothing has happened.
            RuntimeError: the episode is over, or `reset` has not been called.
        """
        fleet = self.fleet
        if fleet.over[0]:
            raise RuntimeError("the episode is over: call reset()" if self._started else "call reset() first")
        taken = fleet.action_from(action)
        asked = self._asked() if self.render_mode is not None else None
        fleet.step(_ONE, taken)
        if asked is not None and fleet.done[0] == DECIDED:
            self._last_decision = self._describe(*asked)
        terms = (-fleet.terms[0]).tolist()
        face = fleet.faces[0]
        reward = -float(face["cost"])
        self._steps += 1
        self._return += reward
        over = bool(fleet.over[0])
        info = {
            "action_mask": fleet.masks[0].copy(),
            "decision": DECISIONS[int(face["pending"])],
            "time_s": float(face["now"]),
            "dt": float(face["dt"]),
            "reward_terms": dict(zip(TERMS, terms, strict=True)),
        }
        if fleet.settings.reference:
            info["reference_reward"] = -float(fleet.reference_cost[0])
        if fleet.settings.replace_illegal:
            info["replaced_actions"] = int(fleet.faces["replaced"][0])
        if over:
            info["metrics"] = fleet.summary(0)
            info["score"] = fleet.score(0)
        if self.render_mode == "human":
            self.render()
        return self._observation(), reward, False, over, info

    def action_masks(self) -> np.ndarray:
        """`(A,)` bool: legal actions; in the `factored` form those of each factor, one after the other."""
        return self.fleet.masks[0].copy()

    def close(self) -> None:
        self.fleet.close()
        if self._picture is not None and hasattr(self._picture, "close"):
            self._picture.close()
            self._picture = None

    def _observation(self) -> dict[str, np.ndarray]:
        return self.layout.parts(self.fleet.observations[0].copy())

    # ---- looking ------------------------------------------------------------------------------------

    def choice(self, action: Any) -> Choice:
        """What an action of the `pair` or `factored` form does, in rows of the observation."""
        return self.layout.choice(action)

    def render(self) -> Any:
        """The cluster now: text for `ansi`, `(H, W, 3)` uint8 for `rgb_array`, a window for `human`."""
        if self.render_mode is None:
            gym.logger.warn("render() was called without a render_mode; give one to gym.make")
            return None
        from pdenv.envs import render

        scene = render.look(
            self.simulation,
            title=f"{self.scenario.name} · window {self.fleet.episodes[0].window}",
            decision=self._last_decision,
            measured=slice(self.fleet.episodes[0].load.measured_from, self.fleet.episodes[0].load.measured_to),
            reward=self._return,
            step=self._steps,
        )
        if self.render_mode == "ansi":
            return render.to_text(scene)
        if self._picture is None:
            self._picture = render.Window() if self.render_mode == "human" else render.Picture()
        if self.render_mode == "human":
            self._picture.show(scene)
            return None
        return self._picture.draw(scene)

    def _asked(self) -> tuple[int, int]:
        """Kind of the pending decision, and the number of the request that it is about."""
        header = self.simulation.block.header
        kind = int(header["pending"])
        return kind, int(decisions.pending_request(self.simulation)["id"]) if kind in (ROUTE, PAIR) else -1

    def _describe(self, kind: int, number: int) -> str:
        """The decision that has just been taken, in words."""
        header, names = self.simulation.block.header, self.simulation.cluster.names
        if kind == SCALE:
            flips = ("", ", prefill → decode", ", decode → prefill")[int(header["act_flip"])]
            return f"scale prefill {header['act_scale_prefill']:+d}, decode {header['act_scale_decode']:+d}{flips}"
        request, d = f"request {number:,}", int(header["act_d"])
        if kind == PAIR:
            return f"{request} → {names['decode'][d]}"
        act = int(header["act_kind"])
        if act == ACT_COLOCATED:
            return f"{request} → {names['colocated'][int(header['act_h'])]}"
        if act != ACT_PAIR:
            return f"{'hold' if act == ACT_HOLD else 'reject'} {request}"
        decode = f" → {names['decode'][d]}" if d >= 0 else ""
        precision = PRECISIONS[int(header["act_precision"])].upper()
        return f"{request} → {names['prefill'][int(header['act_p'])]}{decode} as {precision}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_picture": None}


def checked_render_mode(mode: str | None, metadata: dict[str, Any]) -> str | None:
    """The mode, if there is such a one."""
    from pdenv.errors import InputError, nearest

    if mode is not None and not (isinstance(mode, str) and mode in metadata["render_modes"]):
        raise InputError(f"no render mode {mode!r}{nearest(str(mode), metadata['render_modes'])}", where="render_mode")
    return mode


def routing(**settings: Any) -> ClusterEnv:
    """Entry point of `pdenv/Routing-v0`."""
    return ClusterEnv("routing", **settings)


def scaling(**settings: Any) -> ClusterEnv:
    """Entry point of `pdenv/Scaling-v0`."""
    return ClusterEnv("scaling", **settings)


def cluster(**settings: Any) -> ClusterEnv:
    """Entry point of `pdenv/Cluster-v0`."""
    return ClusterEnv("cluster", **settings)


__all__ = ["ClusterEnv", "cluster", "routing", "scaling"]
