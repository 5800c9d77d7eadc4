"""Schedulers in Python as agents of an environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from pdenv.envs.kernels.face import STAGE_COLOCATED, STAGE_DECODE, STAGE_PRECISION, STAGE_PREFILL
from pdenv.envs.layout import SCALINGS
from pdenv.envs.single import ClusterEnv
from pdenv.errors import InputError
from pdenv.policies import Policy, check_object
from pdenv.sim import decisions
from pdenv.sim.view import Kind, Scale, see, see_request


class PolicyAgent:
    """Lets a `pdenv.policies.Policy` act in an environment, through SB3's `predict`.

    The policy sees the engine, as under `pdenv.simulate`, so an evaluation episode and a run of `pdenv.simulate` on
    the same window give the same records. Its holds and waits are the environment's hold. Of a scaling answer that
    the cluster cannot carry out in full, the part that it can is taken, prefill first, as the engine does.

    Args:
        env: an environment of this package, wrapped or not, in any form of actions.
        policy: in Python; it keeps its state from episode to episode.

    Raises:
        InputError: another environment, or no policy.
    """

    def __init__(self, env: gym.Env[Any, Any], policy: Policy) -> None:
        if not isinstance(env.unwrapped, ClusterEnv):
            raise InputError(f"is {type(env.unwrapped).__name__}; give an environment of pdenv", where="env")
        check_object(policy)
        self.env = env.unwrapped
        self.policy = policy
        self._stages: list[int] = []  # what is left of a sequential decision

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """The policy's answer to the decision that the environment asks for now.

        Args:
            observation: only its leading axis matters: with one (of length 1), the action has one too.
            state: handed back.
            episode_start, deterministic, action_masks: have no effect.
        """
        action = np.asarray(self._next_stage() if self.env.layout.mode == "sequential" else self._decide())
        rows = observation["cluster"] if isinstance(observation, dict) else observation
        return (action[None] if np.ndim(rows) > 1 else action), state

    def _next_stage(self) -> int:
        """The next action of a sequential decision; the first one asks the policy."""
        if not self._is_under_way():
            self._stages = self._decide()
        return self._stages.pop(0)

    def _is_under_way(self) -> bool:
        stage = int(self.env.fleet.faces[0]["stage"])
        later = (STAGE_PREFILL, STAGE_DECODE, STAGE_PRECISION, STAGE_COLOCATED)
        return stage in later and decisions.pending(self.env.simulation) != "pair"

    def _decide(self) -> Any:
        """The whole decision: an action, or in the sequential form the list of its stages."""
        kind = decisions.pending(self.env.simulation)
        if kind == "scale":
            return self._encoded("scale", scaling=self._possible(self.policy.scale(see(self.env.simulation))))
        if kind == "pair":
            return self._pair()
        if kind == "route":
            return self._route()
        return self._encoded("hold") if self.env.layout.routes else self._encoded("scale")

    def _route(self) -> Any:
        sim = self.env.simulation
        route = self.policy.route(see(sim), see_request(sim))
        if route.kind is Kind.PAIR:
            decode = 0 if route.decode < 0 else self._row("decode", route.decode)
            return self._encoded(
                "pair", prefill=self._row("prefill", route.prefill), decode=decode, precision=route.precision
            )
        if route.kind is Kind.COLOCATED:
            return self._encoded("colocated", colocated=self._row("colocated", route.instance))
        return self._encoded("reject" if route.kind is Kind.REJECT else "hold")

    def _pair(self) -> Any:
        request = see_request(self.env.simulation)
        decode = self._row("decode", self.policy.pair(see(self.env.simulation), request))
        return self._encoded(
            "pair", pairing=True, prefill=self._row("prefill", request.prefill), decode=decode, precision=request.wire
        )

    def _possible(self, scale: Scale) -> tuple[int, int, int]:
        """The part of a scaling answer that is legal."""
        if scale.flip and (scale.prefill or scale.decode):
            message = f"{scale}: an environment scales by deltas or by a flip, not by both at once"
            raise InputError(message, where=f"policy '{self.policy.name}'")
        parts = (tuple(scale), (scale.prefill, 0, 0), (0, scale.decode, 0))
        first = self.env.layout.n_routes if self.env.layout.mode == "pair" else 0
        legal = self.env.action_masks()[first:]
        return next((part for part in parts if part in SCALINGS and legal[SCALINGS.index(part)]), (0, 0, 0))

    def _row(self, pool: str, instance: int) -> int:
        """Row of the observation that shows an instance."""
        rows = np.flatnonzero(self.env.shown[pool] == instance)
        if not rows.size:
            raise InputError(f"there is no {pool} instance {instance}", where=f"policy '{self.policy.name}'")
        return int(rows[0])

    def _encoded(self, kind: str, pairing: bool = False, **choice: Any) -> Any:
        layout = self.env.layout
        if layout.mode != "sequential":
            return layout.index(kind, **choice)
        late = bool(self.env.simulation.block.header["bind_at_prefill_end"])
        return layout.stages(kind, **choice, late_binding=late, pairing=pairing)
