"""Measures the environments: steps, resets and training steps per CPU-second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import pdenv
from pdenv.envs.kernels.features import column
from pdenv.envs.layout import K_PAIR
from pdenv.scenario import Scenario

Raw = dict[str, Any]

SINGLE_TARGET, VECTOR_TARGET = 40_000, 400_000  # steps per CPU-second
CACHED_TARGET_S, FRESH_TARGET_S = 0.002, 0.020

WORK, TOKENS = column("prefill", "work_s"), column("decode", "tokens")


@dataclass(frozen=True)
class Steps:
    """One row of the table of steps."""

    name: str
    title: str
    n_envs: int = 64  # 0: a single environment through gym.make
    target: float | None = None
    scenario: Callable[[], Scenario | str] = lambda: "operating-point"
    settings: dict[str, Any] = field(default_factory=dict)


def rows(uniform: Callable[..., Scenario]) -> list[Steps]:
    """Rows of the table; `uniform` makes clusters of equal instances."""
    found = [
        Steps("env-single", "operating-point, gym.make", 0, SINGLE_TARGET),
        Steps("env-64-pair", "operating-point, 64 environments", 64, VECTOR_TARGET),
    ]
    modes: tuple[str, ...] = ("factored", "sequential")
    found += [
        Steps(f"env-64-{mode}", f"operating-point, 64 environments, {mode}", settings={"action_mode": mode})
        for mode in modes
    ]
    for pairs, n_envs in ((16, 64), (64, 16)):
        found += [
            Steps(
                f"env-{pairs}+{pairs}-{mode}",
                f"{pairs} + {pairs}, {n_envs} environments, {mode}",
                n_envs,
                scenario=partial(uniform, pairs, "layer_wise", None, 4000),
                settings={"action_mode": mode},
            )
            for mode in ("pair", *modes)
        ]
    return found


class LeastWork:
    """Actions of the least-work rule from a batch of observations, in any form; not timed."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        self.stage = 0

    def __call__(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        p = observation["prefill"][..., WORK].argmin(axis=-1)
        d = observation["decode"][..., TOKENS].argmin(axis=-1)
        if self.layout.mode == "pair":
            return (p * self.layout.decode + d) * 4
        if self.layout.mode == "factored":
            return np.stack([np.full_like(p, K_PAIR), p, d, np.zeros_like(p), np.zeros_like(p)], axis=-1)
        names = ("stage_kind", "stage_prefill", "stage_decode")
        stage = [observation["request"][..., column("request", name)] > 0 for name in names]
        return np.where(stage[0], K_PAIR, np.where(stage[1], p, np.where(stage[2], d, 0)))


def steps_per_cpu_s(row: Steps, steps: int, repeats: int) -> Raw:
    """Median over stretches of `steps` environment steps, resets included."""
    kwargs = {"scenario": row.scenario(), **row.settings}
    if row.n_envs:
        env: Any = gym.make_vec(
            "pdenv/Routing-v0", num_envs=row.n_envs, vectorization_mode="vector_entry_point", **kwargs
        )
    else:
        env = gym.make("pdenv/Routing-v0", **kwargs)
    observation, _ = env.reset(seed=0)
    act = LeastWork(env.unwrapped.layout)
    calls = max(steps // max(row.n_envs, 1), 1)
    observation = _advance(env, act, observation, max(calls // 5, 1))[0]
    runs = []
    for _ in range(repeats):
        observation, seconds = _advance(env, act, observation, calls)
        runs.append(calls * max(row.n_envs, 1) / seconds)
    result = {"name": row.name, "title": row.title, "target": row.target, "runs": runs, "steps_per_cpu_s": median(runs)}
    missed = row.target is not None and median(runs) < row.target
    result["parts"] = shares(env, act, observation, calls) if missed else None
    env.close()
    return result


def shares(env: Any, act: LeastWork, observation: Any, calls: int) -> Raw:
    """Where the time of a step goes: the engine, observations with masks and accounts, the rest."""
    spent = {"_advance": 0.0, "_observe": 0.0}
    fleet = env.unwrapped.fleet

    def timed(name: str) -> Callable[..., Any]:
        inner = getattr(fleet, name)

        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return inner(*arguments, **named)
            finally:
                spent[name] += time.process_time() - begun

        return call

    before = {name: getattr(fleet, name) for name in spent}
    for name in spent:
        setattr(fleet, name, timed(name))
    _, seconds = _advance(env, act, observation, calls)
    for name, function in before.items():
        setattr(fleet, name, function)
    engine, observing = (spent[name] / seconds for name in ("_advance", "_observe"))
    return {"engine": engine, "observing": observing, "rest": 1.0 - engine - observing}


def _advance(env: Any, act: LeastWork, observation: Any, calls: int) -> tuple[Any, float]:
    spent = 0.0
    single = not isinstance(env.unwrapped, gym.vector.VectorEnv)
    for _ in range(calls):
        action = act(observation)
        begun = time.process_time()
        observation, _, _, truncated, _ = env.step(action)
        if single and truncated:
            observation, _ = env.reset()
        spent += time.process_time() - begun
    return observation, spent


def resets(repeats: int) -> Raw:
    """CPU seconds of a reset to a window that is kept, and to one that is not."""
    env = gym.make("pdenv/Routing-v0", scenario="operating-point")
    env.reset(seed=0, options={"window": 0})
    cached, fresh = [], []
    for k in range(4 * repeats):
        fresh.append(_seconds(env, 1 + k))
        cached.append(_seconds(env, 0))
    targets = {"cached": CACHED_TARGET_S, "fresh": FRESH_TARGET_S}
    return {"name": "env-reset", "cached_s": median(cached), "fresh_s": median(fresh), "targets": targets}


def _seconds(env: gym.Env, window: int) -> float:
    begun = time.process_time()
    env.reset(options={"window": window})
    return time.process_time() - begun


def training(steps: int) -> Raw:
    """MaskablePPO of sb3-contrib with its defaults on 64 environments: steps per CPU-second, updates included."""
    import torch
    from sb3_contrib import MaskablePPO

    torch.set_num_threads(1)
    venv = pdenv.make_sb3_vec_env("pdenv/Routing-v0", n_envs=64, scenario="operating-point", seed=0)
    agent = MaskablePPO("MultiInputPolicy", venv, n_steps=64, batch_size=1024, n_epochs=4, seed=0)
    agent.learn(64 * 64)
    begun = time.process_time()
    agent.learn(steps, reset_num_timesteps=False)
    done = agent.num_timesteps - 64 * 64
    return {"name": "env-training", "steps_per_cpu_s": done / (time.process_time() - begun), "steps": done}


def jobs(uniform: Callable[..., Scenario], quick: bool, repeats: int) -> dict[str, tuple[str, Callable[[], Raw]]]:
    """As `bench.jobs`."""
    steps = 6_400 if quick else 64_000
    found: dict[str, tuple[str, Callable[[], Raw]]] = {
        row.name: ("envs", partial(steps_per_cpu_s, row, steps if "+" not in row.name else steps // 4, repeats))
        for row in rows(uniform)
    }
    found["env-reset"] = ("env_resets", partial(resets, repeats))
    found["env-training"] = ("env_training", partial(training, steps))
    return found
