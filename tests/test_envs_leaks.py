"""An agent sees neither true output lengths before they show, nor the future."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from env_draws import draw_environment
from env_policies import assert_equal, make, random_action, short

from pdenv.envs.single import ClusterEnv
from pdenv.sim.records import WAITING

#: What an agent is trained on, and what tells how an episode went; both depend on true lengths.
TRAINING_SIGNALS = ("reward_terms", "reference_reward", "metrics", "score")


def visible(observation: dict[str, np.ndarray], truncated: bool, info: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in info.items() if name not in TRAINING_SIGNALS}
    return {"observation": observation, "truncated": truncated, "info": shown}


def record_run(env: ClusterEnv, seed: int, steps: int) -> tuple[list[dict[str, Any]], list[Any]]:
    """What was visible at each of the first decisions, and the actions in between."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    seen, actions, truncated = [visible(observation, False, info)], [], False
    while len(actions) < steps and not truncated:
        actions.append(random_action(env, rng))
        observation, _, _, truncated, info = env.step(actions[-1])
        seen.append(visible(observation, truncated, info))
    return seen, actions


def replay(env: ClusterEnv, seed: int, actions: list[Any], change: Any) -> list[dict[str, Any]]:
    """The same actions after `change(arrivals, slice of those that are still to come)`."""
    observation, info = env.reset(seed=seed)
    arrivals = env.simulation.arrivals
    change(arrivals, int(env.simulation.block.header["next_arrival"]))
    seen = [visible(observation, False, info)]
    for action in actions:
        observation, _, _, truncated, info = env.step(action)
        seen.append(visible(observation, truncated, info))
    return seen


def other_lengths(env: ClusterEnv, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(requests that have not ended, lengths of theirs that agree with the tokens that they have emitted)."""
    sim = env.simulation.copy()
    open_ = np.flatnonzero(env.simulation.records["status"] == WAITING)
    sim.close()
    emitted = sim.records["emitted"][open_]
    return open_, emitted + rng.integers(1, 200, len(open_))


@pytest.mark.parametrize("seed", range(80))
def test_true_lengths_beyond_the_tokens_emitted_are_not_visible(seed):
    rng = np.random.default_rng(seed)
    env, twin = draw_environment(seed), draw_environment(seed)
    seen, actions = record_run(env, seed, int(rng.integers(20, 120)))
    if seen[-1]["truncated"]:  # stop before the end, which may be due to lengths in an evaluation
        seen, actions = record_run(env, seed, max(len(actions) - 10, 0))
    requests, lengths = other_lengths(env, rng)

    def change(arrivals: np.ndarray, first: int) -> None:
        later = requests >= first
        arrivals["output_tokens"][requests[later]] = lengths[later]

    assert_equal(replay(twin, seed, actions, change), seen)


@pytest.mark.parametrize("seed", range(80))
def test_the_future_is_not_visible(seed):
    rng = np.random.default_rng(seed)
    env, twin = draw_environment(seed), draw_environment(seed)
    seen, actions = record_run(env, seed, int(rng.integers(5, 80)))
    if seen[-1]["truncated"]:
        seen, actions = record_run(env, seed, max(len(actions) - 10, 0))
    next_arrival = int(env.simulation.block.header["next_arrival"])

    def change(arrivals: np.ndarray, first: int) -> None:
        later = arrivals[max(first, next_arrival) :]
        n = len(later)
        later["prompt_tokens"] = rng.integers(1, 100, n)
        later["output_tokens"] = rng.integers(1, 100, n)
        later["predicted_tokens"] = rng.integers(1, 100, n)
        later["tier"] = rng.permutation(later["tier"])
        later["priority"] = rng.permutation(later["priority"])
        if n:
            now = max(env.simulation.now, float(later["arrival_s"][0]))
            later["arrival_s"] = np.sort(rng.uniform(now, now + 50.0, n))

    assert_equal(replay(twin, seed, actions, change), seen)


def test_what_these_tests_compare_does_react_to_what_is_visible():
    """Other lengths show as soon as requests end by them; other prompts as soon as they arrive."""
    for name in ("output_tokens", "prompt_tokens", "predicted_tokens"):
        env, twin = make("routing", short("toy", 60)), make("routing", short("toy", 60))
        seen, actions = record_run(env, 0, 50)

        def change(arrivals: np.ndarray, first: int, name: str = name) -> None:
            arrivals[name][first:] += 7

        with pytest.raises(AssertionError):
            assert_equal(replay(twin, 0, actions, change), seen)
