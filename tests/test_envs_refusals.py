"""Bad input from a person: one clear line, nothing half done, and the environment goes on."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import pdenv
from pdenv.envs.fleet import IllegalAction
from pdenv.envs.single import ClusterEnv
from pdenv.envs.vector import ClusterVectorEnv
from pdenv.errors import InputError

PAIR = np.array([1, 2])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"interval_s": 1e-9}, "interval_s"),
        ({"overrides": True}, "overrides"),
        ({"overrides": PAIR}, "overrides"),
        *(({name: PAIR}, name) for name in ("reward", "split", "rule", "warm_start", "reference", "on_illegal")),
        ({"action_mode": None}, "action mode"),
        ({"action_mode": PAIR}, "action mode"),
        ({"render_mode": PAIR}, "render mode"),
        ({"rate_scale": []}, "rate_scale"),
        ({"rate_scale": True}, "rate_scale"),
        ({"windows": 10**30}, "windows"),
        ({"window": True}, "window"),
        ({"pad": (10**6, 10**6, 1)}, "pad"),
        ({"pad": (2, 2, True)}, "pad"),
        ({"horizon_requests": 10**12}, "horizon_requests"),
        ({"reward": "x" * 5000}, "reward"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_argument_is_named_in_one_line(settings, said):
    with pytest.raises(InputError) as caught:
        ClusterEnv("cluster", **{"scenario": "toy", **settings})
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("interval_s", [np.int64(3), np.float32(3.0), 3])
def test_numbers_of_numpy_are_numbers(interval_s):
    env = ClusterEnv("scaling", scenario="toy", interval_s=interval_s)
    env.reset(seed=0)
    assert env.scenario.scaling.interval_s == 3.0


@pytest.mark.parametrize("mode", ["pair", "sequential", "factored"])
@pytest.mark.parametrize("on_illegal", ["error", "replace"])
def test_a_step_before_reset_is_refused(mode, on_illegal):
    settings = {"scenario": "toy", "action_mode": mode, "on_illegal": on_illegal}
    action = np.zeros((3, 5) if mode == "factored" else 3, np.int64)
    sb3 = pytest.importorskip("pdenv.envs.sb3", reason="needs the extra 'train'")
    for envs in (
        ClusterVectorEnv("routing", num_envs=3, **settings),
        sb3.ClusterVecEnv("pdenv/Routing-v0", n_envs=3, **settings),
    ):
        with pytest.raises(RuntimeError, match="reset"):
            envs.step(action)
    with pytest.raises(RuntimeError, match="reset"):
        ClusterEnv("routing", **settings).step(action[0])
    with pytest.raises(RuntimeError, match="reset"):
        _ = ClusterEnv("routing", **settings).simulation


@pytest.mark.parametrize("mask", [[True] * 4, [0, 1, 2], "abc", np.ones((3, 1), bool), [True]])
def test_a_bad_mask_leaves_the_environments_as_they_were(mask):
    envs = ClusterVectorEnv("routing", num_envs=3, scenario="toy", autoreset_mode="disabled")
    twin = ClusterVectorEnv("routing", num_envs=3, scenario="toy", autoreset_mode="disabled")
    for one in (envs, twin):
        one.reset(seed=0)
    with pytest.raises(InputError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask, "window": 1})
    for _ in range(20):
        action = twin.action_masks().argmax(axis=1)
        for a, b in zip(envs.step(action)[0].values(), twin.step(action)[0].values(), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("options", [3, "window", {"foo": 1}, {"rate_scale": []}, {"split": PAIR}, {"window": -1}])
def test_a_refused_reset_changes_nothing(options):
    env, twin = ClusterEnv("routing", scenario="toy"), ClusterEnv("routing", scenario="toy")
    for one in (env, twin):
        one.reset(seed=1)
    with pytest.raises(InputError):
        env.reset(options=options)
    assert env.step(0)[1] == twin.step(0)[1]


@pytest.mark.parametrize("seed", [2.5, "abc", -1, [1, 2]])
def test_a_bad_seed_is_refused(seed):
    envs = ClusterVectorEnv("routing", num_envs=3, scenario="toy")
    with pytest.raises(InputError, match="seed"):
        envs.reset(seed=seed)
    assert envs.reset(seed=np.array([1, 2, 3]))[0]["cluster"].shape[0] == 3


@pytest.mark.parametrize("action", [np.timedelta64(1, "s"), [[0, 1], [2]], None, "x", 1.0, True, 10**40, -1])
@pytest.mark.parametrize("mode", ["pair", "factored"])
def test_what_is_no_action_is_refused(action, mode):
    env = ClusterEnv("routing", scenario="toy", action_mode=mode)
    env.reset(seed=0)
    with pytest.raises(IllegalAction):
        env.step(action)


def test_an_action_for_an_environment_that_only_resets_is_ignored():
    envs = ClusterVectorEnv("routing", num_envs=2, scenario="toy", horizon_requests=3, on_illegal="replace", window=0)
    envs.reset(seed=0)
    truncated = np.zeros(2, bool)
    while not truncated.all():
        truncated = envs.step(np.zeros(2, np.int64))[3]
    envs.step(np.full(2, -1))


def test_closed_environments_with_threads_can_still_be_used():
    envs = gym.make_vec("pdenv/Routing-v0", num_envs=8, scenario="toy", threads=2)
    envs.reset(seed=0)
    envs.unwrapped.fleet.close()
    envs.step(envs.unwrapped.action_masks().argmax(axis=1))


def test_an_unknown_id_is_named():
    pytest.importorskip("stable_baselines3", reason="needs the extra 'train'")
    for name in (None, [], "pdenv/Routng-v0"):
        with pytest.raises(InputError, match="no environment"):
            pdenv.make_sb3_vec_env(name)
