"""Many environments at once equal as many single ones, step for step, in every form."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_policies import FORMS, IDS, assert_equal, make, random_action, short
from gymnasium.vector import AutoresetMode

import pdenv
from pdenv.envs.fleet import IllegalAction
from pdenv.envs.normalize import Normalizer, flatten
from pdenv.envs.sb3 import ClusterVecEnv
from pdenv.envs.single import ClusterEnv
from pdenv.envs.vector import ClusterVectorEnv
from pdenv.errors import InputError
from pdenv.sim.state import TERMS

N = 5
SEED = 20
#: Short episodes of unequal length, so that environments end at different steps.
SETTINGS: dict[str, Any] = {"horizon_requests": 12, "shuffle_instances": True, "reference": "greedy", "windows": 4}


def settings_of(kind: str, mode: str) -> dict[str, Any]:
    return {**SETTINGS, "action_mode": mode, **({} if kind == "routing" else {"interval_s": 0.5})}


def steps_of(kind: str, mode: str) -> int:
    """Steps in which several episodes of each environment end: a sequential dispatch takes four."""
    return 100 if mode == "sequential" and kind != "scaling" else 30


def vector(kind: str = "routing", scenario: Any = "toy", n: int = N, **settings: Any) -> ClusterVectorEnv:
    return ClusterVectorEnv(kind, n, scenario=scenario, **settings)


def batch(actions: list[Any]) -> np.ndarray:
    return np.array(actions, np.int64)


def at(info: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of environment i, in the form of a single environment, from the dict of arrays of a vector one."""
    out: dict[str, Any] = {}
    for name, value in info.items():
        if name.startswith("_"):
            continue
        present = info[f"_{name}"]
        assert present.dtype == np.bool_ and present.shape == (N,), name
        if present[i]:
            out[name] = at(value, i) if isinstance(value, dict) else value[i]
    return out


def assert_info(together: dict[str, Any], i: int, alone: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    """The same names and values; numbers that a single environment gives as Python objects compare as numbers."""
    ours = {name: value for name, value in at(together, i).items() if name not in without}
    assert set(ours) == set(alone), (set(ours) ^ set(alone), i)
    for name in alone:
        if name in ("metrics", "score"):
            assert_equal(plain(ours[name]), plain(alone[name]), name)
        else:
            assert_equal({"": ours[name]}, {"": alone[name]}, name)


def plain(value: Any) -> Any:
    """Without the marks of presence that vector environments add to dicts, at any depth, and without None."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in sorted(value.items()) if not k.startswith("_") and v is not None}
    return value


def observation_of(observation: dict[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
    return {name: part[i] for name, part in observation.items()}


def random_actions(envs: list[ClusterEnv], rng: np.random.Generator) -> list[Any]:
    return [random_action(env, rng) for env in envs]


@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_next_step_equals_single_environments(kind, mode):
    """The step after an episode's end resets, pays nothing and ignores the action."""
    settings = settings_of(kind, mode)
    together = vector(kind, **settings)
    alone = [make(kind, "toy", **settings) for _ in range(N)]
    observation, info = together.reset(seed=SEED)
    for i, env in enumerate(alone):
        one, one_info = env.reset(seed=SEED + i)
        assert_equal(observation_of(observation, i), one)
        assert_info(info, i, one_info)
    rng, over, endings = np.random.default_rng(0), [False] * N, 0
    for _ in range(steps_of(kind, mode)):
        actions = random_actions(alone, rng)
        observation, rewards, terminated, truncated, info = together.step(batch(actions))
        assert not terminated.any()
        assert rewards.dtype == np.float64 and rewards.shape == truncated.shape == (N,)
        np.testing.assert_array_equal(together.action_masks(), info["action_mask"])
        for i, env in enumerate(alone):
            if over[i]:
                one, one_info = env.reset()
                reward, over[i] = 0.0, False
            else:
                one, reward, _, over[i], one_info = env.step(actions[i])
            endings += over[i]
            assert_equal(observation_of(observation, i), one)
            assert rewards[i] == pytest.approx(reward, rel=1e-12, abs=1e-15) and truncated[i] == over[i]
            assert_info(info, i, one_info)
    assert endings >= 3


@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_same_step_equals_single_environments(kind, mode):
    """A step that ends an episode shows the next one; the last observation and info are beside it."""
    settings = settings_of(kind, mode)
    together = vector(kind, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
    alone = [make(kind, "toy", **settings) for _ in range(N)]
    together.reset(seed=SEED)
    for i, env in enumerate(alone):
        env.reset(seed=SEED + i)
    rng, endings = np.random.default_rng(0), 0
    for _ in range(steps_of(kind, mode)):
        actions = random_actions(alone, rng)
        observation, rewards, _, truncated, info = together.step(batch(actions))
        for i, env in enumerate(alone):
            one, reward, _, over, one_info = env.step(actions[i])
            assert rewards[i] == pytest.approx(reward, rel=1e-12, abs=1e-15) and truncated[i] == over
            if over:
                endings += 1
                assert info["_final_obs"][i] and info["_final_info"][i]
                assert_equal(info["final_obs"][i], one)
                assert_info(info["final_info"], i, one_info)
                one, one_info = env.reset()
            elif "final_obs" in info:
                assert not info["_final_obs"][i] and info["final_obs"][i] is None
            assert_equal(observation_of(observation, i), one)
            assert_info(info, i, one_info, without=("final_obs", "final_info"))
    assert endings >= 3


@pytest.mark.parametrize(("kind", "mode"), [("routing", "pair"), ("cluster", "sequential")])
def test_disabled_equals_single_environments(kind, mode):
    """Nothing resets by itself: a mask says which ones to reset."""
    settings = settings_of(kind, mode)
    together = vector(kind, autoreset_mode="disabled", **settings)
    alone = [make(kind, "toy", **settings) for _ in range(N)]
    together.reset(seed=SEED)
    for i, env in enumerate(alone):
        env.reset(seed=SEED + i)
    rng = np.random.default_rng(0)
    for _ in range(150):
        actions = random_actions(alone, rng)
        observation, rewards, _, truncated, info = together.step(batch(actions))
        for i, env in enumerate(alone):
            one, reward, _, over, one_info = env.step(actions[i])
            assert_equal(observation_of(observation, i), one)
            assert rewards[i] == pytest.approx(reward, rel=1e-12, abs=1e-15) and truncated[i] == over
            assert_info(info, i, one_info)
        if truncated.any():
            with pytest.raises(RuntimeError, match="call reset"):
                together.step(batch(actions))
            observation, info = together.reset(options={"reset_mask": truncated})
            for i in np.flatnonzero(truncated):
                one, one_info = alone[i].reset()
                assert_equal(observation_of(observation, i), one)
                assert_info(info, i, one_info)
            assert not info["_window"][~truncated].any()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_all_environments_may_end_in_the_same_step(mode, n):
    together = vector(n=n, autoreset_mode=mode, window=0, horizon_requests=10)
    alone = make("routing", "toy", window=0, horizon_requests=10)
    together.reset(seed=0)
    alone.reset(seed=0)
    ended = resets = 0
    for _ in range(60):
        action = int(alone.action_masks().argmax())
        if ended == 1 and mode is AutoresetMode.NEXT_STEP:
            _, rewards, _, truncated, _ = together.step(np.full(n, action))
            assert not rewards.any() and not truncated.any()
        elif ended == 1 and mode is AutoresetMode.DISABLED:
            together.reset(options={"reset_mask": np.ones(n, np.bool_)})
        if ended == 1:
            alone.reset()
            ended, resets = 0, resets + 1
            np.testing.assert_array_equal(together.action_masks(), [alone.action_masks()] * n)
            continue
        _, rewards, _, truncated, _ = together.step(np.full(n, action))
        _, reward, _, over, _ = alone.step(action)
        np.testing.assert_allclose(rewards, reward, rtol=1e-12)
        assert truncated.tolist() == [over] * n
        ended = int(over)
    assert resets > 2


def test_a_list_of_seeds_seeds_each():
    together = vector(**SETTINGS)
    observation, info = together.reset(seed=[5, 5, 8, None, 5])
    assert info["window"][0] == info["window"][1] == info["window"][4]
    one, one_info = (env := make("routing", "toy", **SETTINGS)).reset(seed=8)
    assert_equal(observation_of(observation, 2), one)
    assert one_info["window"] == info["window"][2] and env.np_random_seed == 8
    with pytest.raises(InputError, match=r"^seeds: are 2; give one for each of the 5 environments$"):
        together.reset(seed=[1, 2])


def test_neighbours_serve_the_same_windows_when_asked_to():
    together = vector(n=6, rollouts_per_window=3, horizon_requests=15)
    _, info = together.reset(seed=0)
    windows = [info["window"].tolist()]
    rng = np.random.default_rng(0)
    for _ in range(120):
        legal = [int(rng.choice(np.flatnonzero(mask))) for mask in together.action_masks()]
        _, _, _, _, info = together.step(batch(legal))
        if "window" in info:
            windows.append(info["window"].tolist())
    # Each environment goes through the same list of windows as its neighbours, each at its own pace.
    lists: list[list[int]] = [[row[i] for row in windows] for i in range(6)]
    histories = [[w for k, w in enumerate(row) if k == 0 or w != row[k - 1]] for row in lists]
    for group in (histories[:3], histories[3:]):
        shortest = min(map(len, group))
        assert shortest > 2
        assert group[0][:shortest] == group[1][:shortest] == group[2][:shortest]
    assert histories[0][:2] != histories[3][:2]


@pytest.mark.parametrize(
    ("kind", "mode", "scenario"),
    [*((kind, mode, "toy") for kind, mode in FORMS), ("routing", "pair", "operating-point")],
)
def test_two_threads_equal_one(kind, mode, scenario):
    settings = {**settings_of(kind, mode), "shuffle_instances": False}
    envs = [vector(kind, scenario, n=8, threads=threads, **settings) for threads in (1, 2)]
    for env in envs:
        env.reset(seed=SEED)
    rng = np.random.default_rng(0)
    for _ in range(40):
        masks = envs[0].action_masks()
        if mode == "factored":
            split = [np.split(mask, np.cumsum(envs[0].layout.widths)[:-1]) for mask in masks]
            actions = batch([[rng.choice(np.flatnonzero(part)) for part in parts] for parts in split])
        else:
            actions = batch([rng.choice(np.flatnonzero(mask)) for mask in masks])
        ours, theirs = (env.step(actions) for env in envs)
        assert_equal(theirs, ours)
    for env in envs:
        env.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_a_copy_in_mid_episode_goes_on_identically(kind, mode, copied):
    envs = vector(kind, **settings_of(kind, mode))
    rng = np.random.default_rng(0)
    envs.reset(seed=SEED)

    def actions() -> np.ndarray:
        if mode != "factored":
            return batch([rng.choice(np.flatnonzero(mask)) for mask in envs.action_masks()])
        split = [np.split(mask, np.cumsum(envs.layout.widths)[:-1]) for mask in envs.action_masks()]
        return batch([[rng.choice(np.flatnonzero(part)) for part in parts] for parts in split])

    for _ in range(11):
        envs.step(actions())
    other = copied(envs)
    for _ in range(40):
        chosen = actions()
        assert_equal(other.step(chosen), envs.step(chosen))


def test_an_illegal_action_in_one_environment_changes_none():
    envs = vector(**SETTINGS)
    envs.reset(seed=SEED)
    before = [sim.block.header.tobytes() for sim in envs.fleet.sims]
    legal = [int(np.flatnonzero(mask)[0]) for mask in envs.action_masks()]
    illegal = int(np.flatnonzero(~envs.action_masks()[3])[0])
    with pytest.raises(IllegalAction, match=rf"^action: {illegal} is not legal now in environment 3; legal: "):
        envs.step(batch([*legal[:3], illegal, legal[4]]))
    with pytest.raises(IllegalAction, match=r"^action: 99 is not in Discrete\(19\)"):
        envs.step(batch([*legal[:4], 99]))
    for wrong in (legal[:4], [0.5] * 5, None, [legal], "legal"):
        with pytest.raises(IllegalAction, match=r"^action: is .*; give whole numbers of shape \(5,\)"):
            envs.step(wrong)
    assert [sim.block.header.tobytes() for sim in envs.fleet.sims] == before
    envs.step(batch(legal))


def test_replaced_actions_are_counted_in_each_environment():
    envs = vector(on_illegal="replace", horizon_requests=15)
    alone = [make("routing", "toy", on_illegal="replace", horizon_requests=15) for _ in range(N)]
    envs.reset(seed=SEED)
    for i, env in enumerate(alone):
        env.reset(seed=SEED + i)
    envs.action_space.seed(0)
    for _ in range(10):
        actions = envs.action_space.sample()
        _, rewards, _, truncated, info = envs.step(actions)
        assert not truncated.any()
        for i, env in enumerate(alone):
            _, reward, _, _, one_info = env.step(actions[i])
            assert info["replaced_actions"][i] == one_info["replaced_actions"]
            assert rewards[i] == pytest.approx(reward, rel=1e-12)
    assert info["replaced_actions"].sum() > 0


# ---- through Gymnasium --------------------------------------------------------------------------------------


def test_make_vec_makes_the_native_environment():
    for kind, name in IDS.items():
        envs = gym.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point", scenario="toy")
        assert isinstance(envs.unwrapped, ClusterVectorEnv)
        assert envs.num_envs == 3
        assert envs.spec.id == name
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert envs.single_observation_space == make(kind).observation_space
        assert envs.single_action_space == make(kind).action_space
        observation, info = envs.reset(seed=0)
        assert envs.observation_space.contains(observation)
        envs.step(info["action_mask"].argmax(axis=1))
        envs.close()
    native = {"vectorization_mode": "vector_entry_point", "scenario": "toy"}
    envs = gym.make_vec("pdenv/Routing-v0", num_envs=2, autoreset_mode="SameStep", **native)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, r"^num_envs: is 0; give a whole number from 1$"),
        ({"threads": 0}, r"^threads: is 0; give a whole number from 1$"),
        ({"rollouts_per_window": 1.5}, r"^rollouts_per_window: is 1.5; give a whole number from 1$"),
        ({"autoreset_mode": "later"}, r"^autoreset_mode: no mode 'later'"),
        ({"render_mode": "ansi"}, r"^render_mode: is for single environments"),
        ({"scenario": "toyy"}, r"unknown scenario 'toyy'"),
    ],
)
def test_a_bad_setting_is_one_clear_line(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        ClusterVectorEnv("routing", **{"scenario": "toy", **settings})
    assert "\n" not in str(caught.value)


def _masked_run(envs: Any, steps: int = 25) -> list[Any]:
    """(observation, rewards, truncated, masks) of the first legal action everywhere but each third step: the last."""
    observation, info = envs.reset(seed=SEED)
    rows = [(observation, info["action_mask"])]
    for k in range(steps):
        masks = np.stack(list(rows[-1][1]))
        actions = masks.shape[1] - 1 - masks[:, ::-1].argmax(axis=1) if k % 3 == 2 else masks.argmax(axis=1)
        observation, rewards, _, truncated, info = envs.step(actions)
        rows.append((observation, info["action_mask"], rewards, truncated, info["time_s"]))
    envs.close()
    return rows


def test_sync_and_native_vectors_are_the_same():
    settings = {"scenario": "toy", "horizon_requests": 12}
    modes = ("sync", "vector_entry_point")
    runs = [
        _masked_run(gym.make_vec("pdenv/Routing-v0", num_envs=3, vectorization_mode=mode, **settings)) for mode in modes
    ]
    assert any(row[3].any() for row in runs[0][1:])
    for ours, theirs in zip(*runs, strict=True):
        assert_equal({**ours[0]}, {**theirs[0]})
        np.testing.assert_array_equal(np.stack(list(ours[1])), theirs[1])
        for a, b in zip(ours[2:], theirs[2:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
def test_async_vectors_in_spawned_processes_are_the_same():
    settings = {"scenario": "toy", "horizon_requests": 12}
    in_processes = gym.make_vec(
        "pdenv:pdenv/Routing-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
        **settings,
    )
    native = gym.make_vec("pdenv/Routing-v0", num_envs=2, vectorization_mode="vector_entry_point", **settings)
    for ours, theirs in zip(_masked_run(in_processes), _masked_run(native), strict=True):
        assert_equal({**ours[0]}, {**theirs[0]})
        np.testing.assert_array_equal(np.stack(list(ours[1])), theirs[1])
        for a, b in zip(ours[2:], theirs[2:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


# ---- Stable-Baselines3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mode", "observation", "flat"),
    [
        *((kind, mode, "normalized", True) for kind, mode in FORMS),
        ("routing", "pair", "raw", False),
        ("routing", "pair", "raw", True),
        ("routing", "pair", "normalized", False),
    ],
)
def test_the_sb3_form_equals_single_environments(kind, mode, observation, flat):
    settings = settings_of(kind, mode)
    together = pdenv.make_sb3_vec_env(
        IDS[kind], n_envs=N, scenario="toy", observation=observation, flat=flat, seed=SEED, **settings
    )
    alone = [make(kind, "toy", **settings) for _ in range(N)]
    normalize = Normalizer(together.layout)

    def shown(one: dict[str, np.ndarray]) -> Any:
        row = flatten(together.layout, one)
        row = normalize(row) if observation == "normalized" else row
        return row if flat else together.layout.parts(row)

    def row_of(all_: Any, i: int) -> Any:
        return all_[i] if flat else observation_of(all_, i)

    got = together.reset()
    for i, env in enumerate(alone):
        one, one_info = env.reset(seed=SEED + i)
        assert_equal(row_of(got, i), shown(one))
        assert_equal(together.reset_infos[i], {name: one_info[name] for name in together.reset_infos[i]})
        assert set(together.reset_infos[i]) == set(one_info)
    rng, returns, lengths, endings = np.random.default_rng(0), np.zeros(N), np.zeros(N, int), 0
    for _ in range(steps_of(kind, mode)):
        actions = random_actions(alone, rng)
        got, rewards, dones, infos = together.step(batch(actions))
        assert rewards.dtype == np.float32 and dones.dtype == np.bool_
        masks = together.env_method("action_masks")
        for i, env in enumerate(alone):
            one, reward, _, over, one_info = env.step(actions[i])
            returns[i] += reward
            lengths[i] += 1
            assert rewards[i] == pytest.approx(reward, rel=1e-6, abs=1e-9) and dones[i] == over
            for name in ("dt", "reward_terms", "reference_reward"):
                assert_equal({"": infos[i][name]}, {"": one_info[name]}, name)
            if over:
                endings += 1
                assert infos[i]["TimeLimit.truncated"] is True
                assert_equal(infos[i]["terminal_observation"], shown(one))
                assert_equal(infos[i]["metrics"], one_info["metrics"])
                assert_equal(infos[i]["score"], one_info["score"])
                assert infos[i]["episode"]["r"] == pytest.approx(returns[i], rel=1e-9)
                assert infos[i]["episode"]["l"] == lengths[i]
                returns[i], lengths[i] = 0.0, 0
                one, _ = env.reset()
            else:
                assert "terminal_observation" not in infos[i] and not infos[i].get("TimeLimit.truncated", False)
            assert_equal(row_of(got, i), shown(one))
            np.testing.assert_array_equal(infos[i]["action_mask"], env.action_masks())
            np.testing.assert_array_equal(masks[i], env.action_masks())
    assert endings >= 3


def test_the_sb3_form_answers_what_agents_ask():
    venv = pdenv.make_sb3_vec_env("pdenv/Routing-v0", n_envs=3, scenario="toy")
    assert isinstance(venv, ClusterVecEnv)
    assert venv.has_attr("action_masks") and venv.has_attr("layout") and not venv.has_attr("lay_out")
    venv.seed(5)
    venv.reset()
    assert [scenario.name for scenario in venv.get_attr("scenario")] == ["toy"] * 3
    assert len(venv.get_attr("simulation", indices=[0, 2])) == 2
    assert len(venv.env_method("action_masks", indices=1)) == 1
    assert venv.get_attr("render_mode") == [None] * 3
    assert venv.env_is_wrapped(gym.Wrapper) == [False] * 3
    with pytest.raises(AttributeError, match="no method 'lay_out'"):
        venv.env_method("lay_out")
    with pytest.raises(AttributeError):
        venv.set_attr("scenario", None)


def test_seeds_and_options_of_the_sb3_form():
    venv = pdenv.make_sb3_vec_env("pdenv/Routing-v0", n_envs=3, scenario="toy", seed=SEED)
    venv.reset()
    windows = [info["window"] for info in venv.reset_infos]
    assert windows == [make("routing", "toy").reset(seed=SEED + i)[1]["window"] for i in range(3)]
    venv.seed(SEED)
    venv.reset()
    assert [info["window"] for info in venv.reset_infos] == windows
    venv.set_options({"window": 7})
    venv.reset()
    assert [info["window"] for info in venv.reset_infos] == [7] * 3
    venv.seed(0)
    venv.reset()
    assert len({info["window"] for info in venv.reset_infos}) > 1
    shared = pdenv.make_sb3_vec_env("pdenv/Routing-v0", n_envs=4, scenario="toy", seed=SEED, rollouts_per_window=2)
    shared.reset()
    windows = [info["window"] for info in shared.reset_infos]
    assert windows[0] == windows[1] and windows[2] == windows[3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": "pdenv/Routing-v1"}, r"^env_id: no environment 'pdenv/Routing-v1'.*pdenv/Routing-v0"),
        ({"observation": "normalised"}, r"^observation: is 'normalised'.*normalized"),
        ({"n_envs": 0}, r"^n_envs: is 0; give a whole number from 1$"),
        ({"threads": 0}, r"^threads: is 0; give a whole number from 1$"),
        ({"rollouts_per_window": 0}, r"^rollouts_per_window: is 0; give a whole number from 1$"),
        ({"flat": "yes"}, r"^flat: is 'yes'; give True or False$"),
    ],
)
def test_a_bad_setting_of_the_sb3_form_is_one_clear_line(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        pdenv.make_sb3_vec_env(**{"env_id": "pdenv/Routing-v0", "scenario": "toy", **settings})
    assert "\n" not in str(caught.value)


def test_an_evaluation_in_a_vector_drains_and_scores_each():
    scenario = short("toy", 40)
    envs = vector("routing", scenario, n=N, evaluation=True, split="test")
    alone = [make("routing", scenario, evaluation=True, split="test") for _ in range(N)]
    envs.reset(seed=SEED)
    for i, env in enumerate(alone):
        env.reset(seed=SEED + i)
    rng, scores = np.random.default_rng(0), [None] * N
    over = [False] * N
    while not all(scores):
        actions = random_actions(alone, rng)
        _, _, _, _, info = envs.step(batch(actions))
        for i, env in enumerate(alone):
            if over[i]:
                env.reset()
                over[i] = False
                continue
            _, _, _, over[i], one_info = env.step(actions[i])
            if over[i]:
                scores[i] = at(info, i)["score"]["cost"]
                assert scores[i] == pytest.approx(one_info["score"]["cost"], rel=1e-12)
                assert scores[i] == pytest.approx(one_info["metrics"]["cost"]["mean"], rel=1e-9)


def test_the_terms_of_a_vector_sum_to_its_rewards():
    envs = vector("cluster", interval_s=0.5, horizon_requests=15)
    envs.reset(seed=0)
    for _ in range(30):
        actions = [int(np.flatnonzero(mask)[0]) for mask in envs.action_masks()]
        _, rewards, _, _, info = envs.step(batch(actions))
        present = info.get("_reward_terms", np.zeros(N, np.bool_))
        total = sum(info["reward_terms"][name] for name in TERMS)
        np.testing.assert_allclose(total[present], rewards[present], rtol=1e-12, atol=1e-12)


def test_every_environment_can_be_given_a_window_of_its_own():
    envs = ClusterVectorEnv("routing", num_envs=3, scenario="toy", split="validation")
    _, info = envs.reset(seed=0, options={"window": [5, 0, 2]})
    assert info["window"].tolist() == [5, 0, 2]
    with pytest.raises(InputError, match="are 2; give one, or one for each of the 3"):
        envs.reset(options={"window": [1, 2]})


def test_options_of_the_sb3_form_are_for_all_or_one_each():
    sb3 = pytest.importorskip("pdenv.envs.sb3", reason="needs the extra 'train'")
    venv = sb3.ClusterVecEnv("pdenv/Routing-v0", n_envs=2, scenario="toy")
    for options in ({"window": [3, 1]}, [{"window": 3}, {"window": 1}]):
        venv.set_options(options)
        venv.reset()
        assert [info["window"] for info in venv.reset_infos] == [3, 1]


@pytest.mark.parametrize("normalize", [False, True])
def test_observations_are_not_normalised_twice(normalize):
    from pdenv.envs.normalize import FlatObservation, NormalizeObservation

    env = gym.make("pdenv/Routing-v0", scenario="toy")
    with pytest.raises(InputError, match="already"):
        NormalizeObservation(FlatObservation(env, normalize=normalize))
