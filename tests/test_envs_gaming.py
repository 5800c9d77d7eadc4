"""Tricks that exploit the reward instead of scheduling well cost more than the three-part scheduler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from env_policies import PRESETS, REWARDS, make, short

from baselines import observed
from pdenv.envs.layout import Choice
from pdenv.envs.single import ClusterEnv
from pdenv.scenario import load_scenario

#: From the coarsest precision to the finest.
COARSEST_FIRST = ("int4", "nvfp4", "fp8", "bf16")

#: (environment, mask, what three-part would do) → what the trick does.
Trick = Callable[[ClusterEnv, np.ndarray, int], int]


def honest(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    return action


def if_legal(mask: np.ndarray, wanted: int, action: int) -> int:
    return wanted if mask[wanted] else action


def always_hold(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    return if_legal(mask, env.layout.index("hold"), action)


def always_reject(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    return if_legal(mask, env.layout.index("reject"), action)


def changed(env: ClusterEnv, choice: Choice, **changes: int | str) -> int:
    parts = {"prefill": choice.prefill, "decode": choice.decode, "precision": choice.precision}
    return int(env.layout.index("pair", **{**parts, **changes}))


def one_decode_instance(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    choice = env.choice(action)
    return if_legal(mask, changed(env, choice, decode=0), action) if choice.kind == "pair" else action


def always_int4(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    """Three-part's pair, in the coarsest precision that the tier allows."""
    choice = env.choice(action)
    if choice.kind != "pair":
        return action
    coarser = [changed(env, choice, precision=name) for name in COARSEST_FIRST]
    return next(k for k in coarser if mask[k])


def idle_near_the_horizon(env: ClusterEnv, mask: np.ndarray, action: int) -> int:
    load = env.fleet.episodes[0].load
    last_tenth_s = load.end_s - 0.1 * (load.end_s - load.warmup_s)
    return always_hold(env, mask, action) if env.simulation.now > last_tenth_s else action


TRICKS: dict[str, Trick] = {
    "always hold": always_hold,
    "always reject": always_reject,
    "one decode instance": one_decode_instance,
    "always INT4": always_int4,
    "idle near the horizon": idle_near_the_horizon,
}


#: Requests of a short window. Idling lasts longer than the TTFT limit: `standard` charges no waiting before it passes.
SHORT = {name: 1600 if name == "idle near the horizon" else 100 for name in TRICKS}


def mean_cost(env: ClusterEnv, agent: observed.Observed, trick: Trick, windows: int) -> float:
    """Cost a measured request over evaluation windows of the test split."""
    costs = []
    for window in range(windows):
        observation, info = env.reset(options={"window": window})
        truncated = False
        while not truncated:
            mask = info["action_mask"]
            action = trick(env, mask, int(agent.predict(observation, action_masks=mask)[0]))
            observation, _, _, truncated, info = env.step(action)
        costs.append(info["score"]["cost"])
    return float(np.mean(costs))


def evaluation(preset: str, reward: str, requests: int | None, reject: bool) -> ClusterEnv:
    overrides = {"control.allow_reject": reject}
    if requests is None:
        scenario = load_scenario(preset, overrides)
    else:
        drained = {"window__drain_max_s": 60, "control__allow_reject": reject}
        scenario = short(preset, requests, warmup_s=10.0, **drained)
    return make("routing", scenario, reward=reward, evaluation=True, split="test")


@cache
def honest_cost(preset: str, reward: str, requests: int | None, windows: int) -> float:
    return mean_cost(evaluation(preset, reward, requests, False), observed.ThreePart(), honest, windows)


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_trick_pays(preset, reward, trick):
    env = evaluation(preset, reward, SHORT[trick], trick == "always reject")
    assert mean_cost(env, observed.ThreePart(), TRICKS[trick], 1) > 1.01 * honest_cost(preset, reward, SHORT[trick], 1)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_least_work_in_int4_does_not_pay(preset, reward):
    """Compression helps in hetero-links, even to three-part with its defaults: there greedy is the honest one."""
    env = evaluation(preset, reward, 100, False)
    cost = mean_cost(env, observed.LeastWork(), always_int4, 1)
    assert cost > 1.01 * min(honest_cost(preset, reward, 100, 1), mean_cost(env, observed.Greedy(), honest, 1))


@pytest.mark.slow
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_no_trick_pays_on_the_windows_of_the_presets(preset, reward, trick):
    env = evaluation(preset, reward, None, trick == "always reject")
    assert mean_cost(env, observed.ThreePart(), TRICKS[trick], 1) > 1.01 * honest_cost(preset, reward, None, 1)
