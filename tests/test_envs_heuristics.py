"""Schedulers through the environment: in Python like `pdenv.simulate`, and from the observation alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_policies import FORMS, PRESETS, make, of_agent, play, short

import baselines
import pdenv
from baselines import observed
from baselines.common import FixedPools
from baselines.three_part import UtilisationScaling
from pdenv.envs.heuristics import PolicyAgent
from pdenv.errors import InputError
from pdenv.sim.view import Route, Scale

POLICIES = tuple(name for name in baselines.__all__ if name != "Colocated")
MIXED = {"colocated": [{"gpu": "h100", "tensor_parallel": 1, "profile": "toy", "kv_bytes": 16_000_000, "store": "fp8"}]}


def records_in_environment(env: Any, policy: Any, window: int) -> np.ndarray:
    play(env, of_agent(PolicyAgent(env, policy)), options={"window": window})
    return env.simulation.records


def assert_same_records(env: Any, ours: np.ndarray, window: int, policy: Any) -> None:
    theirs = pdenv.simulate(scenario=env.scenario, policy=policy, window=window).records
    for name in theirs.dtype.names:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("mode", ["pair", "factored", "sequential"])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_in_the_routing_environment_equals_simulate(preset, name, mode):
    """Request for request, in every field of the records."""
    env = make("routing", short(preset, 100), action_mode=mode, split="test", evaluation=True)
    ours = records_in_environment(env, getattr(baselines, name)(), 1)
    assert_same_records(env, ours, 1, getattr(baselines, name)())


@pytest.mark.parametrize("mode", ["pair", "sequential"])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_in_the_cluster_environment_equals_simulate(preset, name, mode):
    settings = {"action_mode": mode, "split": "test", "evaluation": True, "interval_s": 4.0}
    env = make("cluster", short(preset, 80), **settings)
    ours = records_in_environment(env, getattr(baselines, name)(), 0)
    assert_same_records(env, ours, 0, getattr(baselines, name)())


@pytest.mark.parametrize("mode", ["pair", "sequential"])
@pytest.mark.parametrize("preset", PRESETS)
def test_scaling_by_utilisation_equals_three_part(preset, mode):
    """The environment's rule routes, the agent scales as the rule would: together they are the rule."""
    group = 2 if preset == "hetero-links" else 0  # one of several instances
    scenario = short(preset, 300, **{f"prefill__{group}__active": 1, f"prefill__{group}__startup_s": 2.0})
    env = make("scaling", scenario, interval_s=1.5, rule="three-part", action_mode=mode, split="test", evaluation=True)
    policy = baselines.ThreePart()
    policy.scaling = UtilisationScaling((0.45, 0.92), (0.25, 0.85), 3.0)
    ours = records_in_environment(env, policy, 2)
    assert env.simulation.totals().scalings > 0
    assert_same_records(env, ours, 2, "three-part")


class Restless(FixedPools):
    """Greedy routing; asks for every delta in turn, possible or not."""

    name = "restless"

    def __init__(self) -> None:
        self.tick = 0
        self.greedy = baselines.Greedy()

    def route(self, view: Any, request: Any) -> Route:
        return self.greedy.route(view, request)

    def pair(self, view: Any, request: Any) -> int:
        return self.greedy.pair(view, request)

    def scale(self, view: Any) -> Scale:
        self.tick += 1
        return Scale(flip=1 + self.tick // 10 % 2) if self.tick % 10 == 9 else Scale(1 - self.tick % 3, self.tick % 2)


@pytest.mark.parametrize("mode", ["pair", "sequential"])
def test_of_impossible_scalings_the_possible_part_is_taken(mode):
    scenario = short("toy", 300, prefill__0__count=3, prefill__0__active=2, decode__0__count=3, decode__0__active=1)
    settings = {"interval_s": 1.5, "action_mode": mode, "split": "test", "evaluation": True}
    env = make("cluster", scenario, **settings)
    ours = records_in_environment(env, Restless(), 0)
    assert_same_records(env, ours, 0, Restless())


@pytest.mark.parametrize(("kind", "mode"), [form for form in FORMS if form[0] != "scaling"])
@pytest.mark.parametrize(
    "changes",
    [
        {"kv__decode_binding": "prefill_end"},
        {"kv__decode_binding": "prefill_end", "scaling__interval_s": 2.0, "decode__0__active": 1},
        {"kv__mixed_store": True, "kv__reserve": "prefill_start", "network__overlap": "layer_wise"},
        {"colocated": MIXED["colocated"], "workload__rate_per_s": 14.0},
        {"control__scrape_interval_s": 0.5, "control__scrape_delay_s": 0.1, "control__control_plane_delay_s": 0.02},
    ],
)
def test_a_policy_equals_simulate_with_other_rules_of_the_cluster(kind, mode, changes):
    for name in ("Greedy", "ThreePart", "Random"):
        rule = getattr(baselines, name).name  # scales where the agent does not
        env = make(kind, short("toy", 100, **changes), action_mode=mode, split="test", evaluation=True, rule=rule)
        ours = records_in_environment(env, getattr(baselines, name)(), 1)
        assert_same_records(env, ours, 1, getattr(baselines, name)())


@pytest.mark.parametrize("mode", ["pair", "factored", "sequential"])
def test_co_located_instances_only(mode):
    scenario = short("hetero-links", 150).colocated_twin()
    env = make("routing", scenario, action_mode=mode, split="test", evaluation=True, warm_start=None, rule="colocated")
    ours = records_in_environment(env, baselines.Colocated(), 0)
    assert_same_records(env, ours, 0, baselines.Colocated())


@pytest.mark.parametrize("mode", ["pair", "factored", "sequential"])
def test_shuffled_rows_change_nothing_for_a_policy(mode):
    scenario = short("hetero-links", 150)
    settings = {"action_mode": mode, "split": "test", "evaluation": True, "shuffle_instances": True, "pad": (6, 5, 2)}
    env = make("routing", scenario, **settings)
    ours = records_in_environment(env, baselines.Greedy(), 0)
    assert not np.array_equal(env.shown["prefill"][:6], np.arange(6))
    assert_same_records(env, ours, 0, baselines.Greedy())


def test_a_policy_agent_works_behind_wrappers_and_with_a_leading_axis():
    env = gym.make("pdenv/Routing-v0", scenario="toy")
    observation, _ = env.reset(seed=0)
    agent = PolicyAgent(env, baselines.Greedy())
    action, state = agent.predict(observation, state="kept")
    assert action.shape == () and state == "kept"
    batched, _ = agent.predict({name: part[None] for name, part in observation.items()})
    assert batched.tolist() == [action]
    env.step(action)


def test_a_policy_agent_says_what_it_cannot_work_with():
    with pytest.raises(InputError, match=r"env: is CartPoleEnv; give an environment of pdenv"):
        PolicyAgent(gym.make("CartPole-v1"), baselines.Greedy())
    with pytest.raises(InputError, match="is a class; give an instance"):
        PolicyAgent(make(), baselines.Greedy)

    class Both(Restless):
        def scale(self, view: Any) -> Scale:
            return Scale(1, 0, 1)

    env = make("scaling", "toy", interval_s=1.0)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"policy 'restless'.*not by both at once"):
        PolicyAgent(env, Both()).predict({"cluster": np.zeros(21)})


# ---- from the observation alone ---------------------------------------------------------------------------

OBSERVED = {cls.name: cls for cls in (observed.LeastWork, observed.KvAware, observed.Greedy, observed.ThreePart)}
TWINS = {cls.name: cls for cls in (baselines.LeastWork, baselines.KvAware, baselines.Greedy, baselines.ThreePart)}


@pytest.mark.parametrize(
    ("preset", "reward", "masked"),
    [*((preset, "joint", True) for preset in PRESETS), ("hetero-links", "normalised", False)],
)
@pytest.mark.parametrize("name", OBSERVED)
def test_a_scheduler_needs_only_the_observation(preset, name, reward, masked):
    """Nearly every decision is that of the readable rule that sees the engine, and the cost is the same."""
    settings = {"reward": reward, "split": "test", "evaluation": True, "reference": name}
    env = make("routing", short(preset, 300, warmup_s=10.0), **settings)
    agent, twin = OBSERVED[name](), PolicyAgent(env, TWINS[name]())
    observation, info = env.reset(options={"window": 0})
    same, truncated = [], False
    while not truncated:
        action, _ = agent.predict(observation, action_masks=info["action_mask"] if masked else None)
        same.append(int(action) == int(twin.predict(observation)[0]))
        observation, _, _, truncated, info = env.step(action)
    assert np.mean(same) > 0.93  # greedy counts the fixed part of a prefill step as hiding transfer
    assert abs(info["score"]["better"]) < 0.02


@pytest.mark.parametrize("name", OBSERVED)
@pytest.mark.parametrize(
    "changes",
    [
        {"kv__decode_binding": "prefill_end", "kv__reserve": "prefill_end", "network__overlap": "blocking"},
        {"colocated": [{"gpu": "h100", "tensor_parallel": 4, "rack": "far"}], "workload__rate_per_s": 5.0},
        {"decode__0__store": "fp8", "cost__quality": {"fp8": 0.3}},
        {"control__scrape_interval_s": 0.5},
    ],
)
def test_a_scheduler_needs_only_the_observation_with_other_rules_of_the_cluster(name, changes):
    settings = {"split": "test", "evaluation": True, "reference": name}
    env = make("routing", short("hetero-links", 1000, 10.0, **changes), **settings)
    _, info = play(env, of_agent(OBSERVED[name]()), options={"window": 0})
    assert abs(info["score"]["better"]) < 0.03


def test_schedulers_on_observations_take_many_at_once():
    envs = gym.make_vec(
        "pdenv/Routing-v0", num_envs=5, vectorization_mode="vector_entry_point", scenario="hetero-links"
    )
    observation, info = envs.reset(seed=0)
    for _ in range(40):
        for cls in OBSERVED.values():
            together, _ = cls().predict(observation, action_masks=info["action_mask"])
            for i in range(5):
                one = {name: part[i] for name, part in observation.items()}
                assert cls().predict(one, action_masks=info["action_mask"][i])[0] == together[i]
        observation, _, _, _, info = envs.step(together)
