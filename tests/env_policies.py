"""Environments that are small enough for tests, policies for them, and runs from reset to the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdenv.envs.single import ClusterEnv
from pdenv.scenario import Scenario, load_scenario

IDS = {"routing": "pdenv/Routing-v0", "scaling": "pdenv/Scaling-v0", "cluster": "pdenv/Cluster-v0"}
PRESETS = ("toy", "hetero-links", "operating-point")
REWARDS = ("joint", "standard", "normalised")

#: Every kind of environment in every form of actions that it has.
FORMS = tuple(
    (kind, mode)
    for kind in IDS
    for mode in ("pair", "factored", "sequential")
    if mode != "factored" or kind == "routing"
)

Policy = Callable[[ClusterEnv], Any]  # the action for the decision at which an environment stands


def short(preset: str, requests: int = 120, warmup_s: float = 2.0, **overrides: Any) -> Scenario:
    """A preset with a short window. Keys of `overrides` have `__` for the dots."""
    window = {"window.requests": requests, "window.warmup_s": warmup_s, "window.drain_max_s": 300}
    return load_scenario(preset, window | {key.replace("__", "."): value for key, value in overrides.items()})


def make(kind: str = "routing", scenario: Any = "toy", **settings: Any) -> ClusterEnv:
    """A bare environment, without the wrappers of `gymnasium.make`."""
    return ClusterEnv(kind, scenario=scenario, **settings)


def random_action(env: ClusterEnv, rng: np.random.Generator) -> Any:
    """A legal action, each with the same probability (in the factored form: in each factor)."""
    mask = env.action_masks()
    if env.layout.mode != "factored":
        return int(rng.choice(np.flatnonzero(mask)))
    parts = np.split(mask, np.cumsum(env.layout.widths)[:-1])
    return np.array([rng.choice(np.flatnonzero(part)) for part in parts])


def random_policy(seed: int = 0) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda env: random_action(env, rng)


def eager_random_policy(seed: int = 0, idle: float = 0.1) -> Policy:
    """A random policy that holds and rejects seldom, so that most requests are served; `pair` form only."""
    rng = np.random.default_rng(seed)

    def act(env: ClusterEnv) -> int:
        mask = env.action_masks()
        n = env.layout.n_routes
        busy = mask.copy()
        if n:
            busy[n - 2 : n] = False
        return int(rng.choice(np.flatnonzero(busy if busy.any() and rng.random() > idle else mask)))

    return act


def of_agent(agent: Any) -> Policy:
    """A policy from something with SB3's `predict`; it gets a copy of the last observation."""

    def act(env: ClusterEnv) -> Any:
        observation = env.layout.parts(env.fleet.observations[0].copy())
        return agent.predict(observation, action_masks=env.action_masks())[0]

    return act


def play(env: ClusterEnv, policy: Policy, **reset: Any) -> tuple[float, dict[str, Any]]:
    """(sum of rewards, last info) of one episode."""
    env.reset(**reset)
    total = 0.0
    while True:
        _, reward, _, truncated, info = env.step(policy(env))
        total += reward
        if truncated:
            return total, info


def trajectory(env: ClusterEnv, policy: Policy, steps: int = 10**9, **reset: Any) -> list[tuple]:
    """Everything that an agent gets, step by step: (observation, reward, truncated, info)."""
    observation, info = env.reset(**reset)
    rows = [(observation, 0.0, False, info)]
    while len(rows) <= steps and not rows[-1][2]:
        observation, reward, _, truncated, info = env.step(policy(env))
        rows.append((observation, reward, truncated, info))
    return rows


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    """Equal trees of dicts, lists and arrays; NaN equals NaN."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b), f"{where}: {list(a)} and {list(b)}"
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), f"{where}: {len(a)} and {len(b)} of them"
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{k}]")
    else:
        np.testing.assert_array_equal(a, b, err_msg=where)
