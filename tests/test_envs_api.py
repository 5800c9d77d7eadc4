"""The environments keep the contracts of Gymnasium and Stable-Baselines3."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_draws import draw_environment
from env_policies import (
    FORMS,
    IDS,
    PRESETS,
    assert_equal,
    eager_random_policy,
    make,
    play,
    random_action,
    random_policy,
    short,
    trajectory,
)
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv

import pdenv
from pdenv.envs.fleet import IllegalAction
from pdenv.envs.layout import Choice
from pdenv.envs.normalize import FlatObservation, NormalizeObservation
from pdenv.errors import InputError
from pdenv.scenario import load_scenario

# ---- checkers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_check_env_of_gymnasium_has_nothing_to_say(kind, mode, preset):
    """With illegal actions replaced, since it samples from the whole action space."""
    settings = {"scenario": preset, "action_mode": mode, "on_illegal": "replace", "horizon_requests": 60}
    env = gym.make(IDS[kind], **settings, **({} if kind == "routing" else {"interval_s": 1.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


#: What SB3's checker notes on a Dict of boxes that are no images.
SB3_NOTES = (
    r"Your observation \w+ has an unconventional shape \(neither an image, nor a 1D vector\)\. We recommend you to "
    r"flatten the observation to have only a 1D vector or use a custom policy to properly process the data\.",
    r"It seems that your observation pair is an image but its `dtype` is \(float32\) whereas it has to be "
    r"`np\.uint8`\. If your observation is not an image, we recommend you to flatten the observation to have only a "
    r"1D vector",
    r"It seems that your observation space pair is an image but the upper and lower bounds are not in \[0, 255\]\. .*",
    r"Treating image space as channels-last, while second dimension was smallest of the three\.",
    r"The minimal resolution for an image is 36x36 for the default `CnnPolicy`\. .*",
)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_check_env_of_sb3_has_nothing_to_say_on_the_flat_form(kind, mode, preset):
    settings = {"scenario": preset, "action_mode": mode, "on_illegal": "replace", "horizon_requests": 60}
    env = make(kind, **settings, **({} if kind == "routing" else {"interval_s": 1.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for normalize in (False, True):
            sb3_check_env(FlatObservation(env, normalize=normalize))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("preset", ["toy", "operating-point"])
@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_check_env_of_sb3_only_notes_box_shapes_on_the_dict_form(kind, mode, preset, normalize):
    interval = {} if kind == "routing" else {"interval_s": 1.0}
    env: Any = make(kind, preset, action_mode=mode, on_illegal="replace", horizon_requests=60, **interval)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        sb3_check_env(NormalizeObservation(env) if normalize else env)
    unexpected = [str(w.message) for w in noted if not any(re.fullmatch(note, str(w.message)) for note in SB3_NOTES)]
    assert not unexpected


def test_the_ids_are_registered_with_both_entry_points():
    for kind, name in IDS.items():
        spec = gym.spec(name)
        assert spec.entry_point == f"pdenv.envs.single:{kind}"
        assert spec.vector_entry_point == f"pdenv.envs.vector:{kind}"
        env = gym.make(name, scenario="toy")
        assert env.spec.id == name
        assert gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json())).unwrapped.scenario.name == "toy"


# ---- seeds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_the_same_seed_gives_the_same_episodes(kind, mode):
    """Of two environments, and of one that is seeded again; without a seed the stream goes on."""
    settings = {"action_mode": mode, "shuffle_instances": True, "horizon_requests": 40}
    settings |= {} if kind == "routing" else {"interval_s": 1.0}
    runs = []
    env = make(kind, "hetero-links", **settings)
    for each in (env, make(kind, "hetero-links", **settings), env):
        policy = random_policy(3)
        rows = [trajectory(each, policy, seed=11), trajectory(each, policy), trajectory(each, policy)]
        runs.append(rows)
    assert_equal(runs[1], runs[0])
    assert_equal(runs[2], runs[0])
    assert {rows[0][3]["window"] for rows in runs[0]} != {runs[0][0][0][3]["window"]}


def test_different_seeds_give_different_windows():
    env = make("routing", "toy")
    assert len({env.reset(seed=seed)[1]["window"] for seed in range(30)}) > 15
    env.reset(seed=3)
    assert env.np_random_seed == 3


def test_windows_are_drawn_from_the_first_of_the_split():
    env = make("routing", "toy", windows=3)
    env.reset(seed=0)
    assert {env.reset()[1]["window"] for _ in range(40)} == {0, 1, 2}
    fixed = make("routing", "toy", window=5)
    assert {fixed.reset()[1]["window"] for _ in range(3)} == {5}
    endless = make("routing", "toy", windows=None)
    endless.reset(seed=0)
    assert max(endless.reset()[1]["window"] for _ in range(5)) > 64


def test_the_action_space_is_seeded_apart_from_the_environment():
    for kind, mode in FORMS:
        one, two = make(kind, action_mode=mode), make(kind, action_mode=mode)
        one.action_space.seed(8)
        two.action_space.seed(8)
        one.reset(seed=1)
        two.reset(seed=2)
        assert_equal([one.action_space.sample() for _ in range(9)], [two.action_space.sample() for _ in range(9)])


def test_masks_fit_the_sampling_of_the_action_space():
    env = make("routing", "toy")
    env.reset(seed=0)
    for _ in range(30):
        action = env.action_space.sample(mask=env.action_masks().astype(np.int8))
        _, _, _, truncated, _ = env.step(action)
        if truncated:
            env.reset()


# ---- copies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("seed", range(10))
def test_a_copy_in_mid_episode_goes_on_identically(seed, copied):
    env = draw_environment(seed)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    truncated = bool(env.fleet.over[0])
    for _ in range(25):
        if truncated:
            env.reset()
        _, _, _, truncated, _ = env.step(random_action(env, rng))
    other = copied(env)
    np.testing.assert_array_equal(other.action_masks(), env.action_masks())
    for _ in range(60):
        if truncated:
            assert_equal(other.reset(), env.reset())
        action = random_action(env, rng)
        ours, theirs = env.step(action), other.step(action)
        assert_equal(theirs, ours)
        truncated = ours[3]


def test_a_copy_is_independent():
    env = make("routing", "toy")
    env.reset(seed=0)
    expected = env.simulation.block.header.copy()
    other = copy.deepcopy(env)
    play(other, eager_random_policy(0))
    assert env.simulation.block.header.tobytes() == expected.tobytes()


def test_a_wrapped_environment_can_be_pickled():
    env = gym.make("pdenv/Cluster-v0", scenario="toy", interval_s=1.0)
    env.reset(seed=0)
    other = pickle.loads(pickle.dumps(env))
    action = int(np.flatnonzero(env.unwrapped.action_masks())[0])
    assert_equal(other.step(action), env.step(action))


def _first_steps(name: str) -> list[float]:
    env = gym.make(name, scenario="toy", interval_s=1.0)
    _, info = env.reset(seed=4)
    rewards = []
    for _ in range(10):
        _, reward, _, _, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        rewards.append(reward)
    return rewards


def test_the_spec_with_a_module_works_in_a_spawned_process():
    """`pdenv:` makes Gymnasium import the package, in a process where nobody has."""
    name = "pdenv:pdenv/Cluster-v0"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_first_steps, (name,)) == _first_steps(name)


# ---- spaces and infos -------------------------------------------------------------------------------------


def test_the_observation_has_the_documented_shapes():
    env = make("routing", "operating-point")
    observation, info = env.reset(seed=0)
    assert {name: box.shape[:-1] for name, box in env.observation_space.items()} == {
        "cluster": (),
        "colocated": (1,),
        "decode": (2,),
        "pair": (5, 2),
        "prefill": (5,),
        "request": (),
    }
    assert all(part.dtype == np.float32 for part in observation.values())
    assert all(np.isfinite(box.low).all() and np.isfinite(box.high).all() for box in env.observation_space.values())
    assert env.action_space == gym.spaces.Discrete(5 * 2 * 4 + 1 + 2)
    assert info["action_mask"].shape == (43,) and info["action_mask"].dtype == np.bool_
    assert make("routing", "operating-point", action_mode="factored").action_space == gym.spaces.MultiDiscrete(
        [4, 5, 2, 4, 1]
    )
    assert make("routing", "operating-point", action_mode="sequential").action_space == gym.spaces.Discrete(5)
    assert make("cluster", "operating-point").action_space == gym.spaces.Discrete(43 + 11)
    assert make("scaling", "operating-point").action_space == gym.spaces.Discrete(11)


def test_every_observation_is_an_array_of_its_own():
    env = make("routing", "toy")
    first, info = env.reset(seed=0)
    kept, mask = copy.deepcopy(first), info["action_mask"].copy()
    for _ in range(5):
        env.step(random_action(env, np.random.default_rng(0)))
    assert_equal(first, kept)
    np.testing.assert_array_equal(info["action_mask"], mask)
    env.action_masks()[:] = False
    assert env.action_masks().any()


def test_an_episode_is_truncated_and_has_its_metrics_at_the_end():
    env = make("routing", short("toy", 50), reference="greedy")
    rows = trajectory(env, eager_random_policy(0), seed=0)
    *before, last = rows
    assert last[2] and not any(row[2] for row in before)
    assert not any("metrics" in row[3] or "score" in row[3] for row in before)
    assert last[3]["metrics"]["cost"]["mode"] == "joint"
    assert set(last[3]["score"]) == {"cost", "reference_cost", "better"}
    times = [row[3]["time_s"] for row in rows]
    assert times == sorted(times)
    assert sum(row[3]["dt"] for row in rows[1:]) == pytest.approx(times[-1] - 2.0, abs=1e-6)  # from the warm-up's end


@pytest.mark.parametrize(("kind", "mode"), [form for form in FORMS if form[1] != "sequential"])
def test_actions_to_choices_and_back(kind, mode):
    layout = make(kind, "operating-point", action_mode=mode).layout
    space = layout.action_space(seed=0)
    actions = range(space.n) if mode == "pair" else [space.sample() for _ in range(50)]
    for action in actions:
        choice = layout.choice(action)
        parts = {
            "pair": {"prefill": choice.prefill, "decode": choice.decode, "precision": choice.precision},
            "colocated": {"colocated": choice.colocated},
            "scale": {"scaling": choice.scaling},
        }.get(choice.kind, {})
        back = layout.index(choice.kind, **parts)
        assert layout.choice(back) == choice
        assert mode == "factored" or back == action


def test_an_action_does_what_its_choice_says():
    env = make("routing", "operating-point", shuffle_instances=True)
    rng = np.random.default_rng(0)
    env.reset(seed=5)
    for _ in range(100):
        number = int(env.simulation.block.views["request"][env.simulation.block.header["pending_request"]]["id"])
        action = env.layout.index("pair", prefill=int(rng.integers(5)), decode=int(rng.integers(2)), precision="bf16")
        choice = env.choice(action)
        assert choice == Choice("pair", choice.prefill, choice.decode, "bf16")
        env.step(action)
        row = env.simulation.records[number]
        assert row["prefill"] == env.shown["prefill"][choice.prefill]
        assert row["decode"] == env.shown["decode"][choice.decode]
        assert row["wire_precision"] == 0


# ---- options and settings ---------------------------------------------------------------------------------


def test_options_of_reset_hold_for_one_episode():
    env = make("routing", "toy")
    _, info = env.reset(seed=0, options={"window": 9})
    assert info["window"] == 9
    env.reset(options={"split": "test", "window": 9})
    test_arrivals = env.simulation.arrivals["arrival_s"].copy()
    env.reset(options={"split": "validation", "window": 9})
    assert not np.array_equal(env.simulation.arrivals["arrival_s"], test_arrivals)
    env.reset(options={"window": 9, "rate_scale": 2.0})
    fast = env.simulation.arrivals["arrival_s"]
    env.reset(options={"window": 9})
    slow = env.simulation.arrivals["arrival_s"]
    assert np.median(np.diff(slow)) == pytest.approx(2 * np.median(np.diff(fast)), rel=0.2)
    env.reset(options={"scenario": load_scenario("toy", {"decode.0.count": 1, "prefill.0.count": 1})})
    assert env.shown["decode"].tolist() == [0, -1]
    env.reset()
    assert env.shown["decode"].tolist() == [0, 1]
    assert env.reset(options=None)[1]["window"] >= 0
    assert env.reset(options={})[1]["window"] >= 0


def test_the_test_split_is_what_simulate_runs_on():
    env = make("routing", "toy", evaluation=True, split="test", window=3)
    env.reset()
    theirs = pdenv.simulate("toy", "least-work", window=3).workload.arrivals
    assert env.simulation.arrivals.tobytes() == theirs.tobytes()
    seeded = make("routing", "toy", evaluation=True, split="test", window=3, workload_seed=5)
    seeded.reset()
    assert seeded.simulation.arrivals.tobytes() == pdenv.simulate("toy", seed=5, window=3).workload.arrivals.tobytes()


def test_horizons():
    requests = make("routing", "toy", horizon_requests=17)
    _, info = play(requests, eager_random_policy(0), seed=0)
    load = requests.fleet.episodes[0].load
    assert load.measured_to - load.measured_from == 17
    assert info["time_s"] == load.end_s
    seconds = make("routing", "toy", horizon_s=6.0)
    _, info = play(seconds, eager_random_policy(0), seed=0)
    assert info["time_s"] == pytest.approx(2.0 + 6.0)  # after the warm-up
    whole = make("routing", "toy")
    play(whole, eager_random_policy(0), seed=0)
    load = whole.fleet.episodes[0].load
    assert load.measured_to - load.measured_from == 200


def test_an_evaluation_measures_what_arrives_in_the_window_and_drains_it():
    env = make("routing", short("toy", 80, warmup_s=5.0), evaluation=True, split="test")
    _, info = env.reset(options={"window": 0})
    assert info["time_s"] < 5.0
    _, info = play(env, eager_random_policy(0), options={"window": 0})
    load = env.fleet.episodes[0].load
    measured = slice(load.measured_from, load.measured_to)
    assert np.all(env.simulation.arrivals["arrival_s"][measured] >= 5.0)
    assert not np.isnan(env.simulation.records["finish_s"][measured]).any()
    assert info["metrics"]["requests"] == 80


def test_a_warm_start_has_work_in_flight_and_a_cold_one_has_none():
    settings = {"horizon_requests": 20}
    warm = make("routing", short("hetero-links", warmup_s=60.0), **settings)
    cold = make("routing", short("hetero-links", warmup_s=60.0), warm_start=None, **settings)
    for env, busy in ((warm, True), (cold, False)):
        observation, _ = env.reset(seed=0)
        assert (observation["prefill"][:, 6:9].sum() > 0) == busy
    assert warm.reset(seed=0)[1]["time_s"] >= 60.0 - 1e-6


def test_resets_are_independent_of_what_was_played_before():
    env = make("routing", "toy", horizon_requests=30)
    fresh = trajectory(env, eager_random_policy(1), options={"window": 2})
    play(env, eager_random_policy(9), options={"window": 2})
    env.reset(options={"window": 2})
    env.step(random_action(env, np.random.default_rng(0)))
    assert_equal(trajectory(env, eager_random_policy(1), options={"window": 2}), fresh)


def test_work_conserving_environments_hold_only_where_there_is_nowhere_to_go():
    env = make("routing", "toy", work_conserving=True, horizon_requests=60)
    free = make("routing", "toy", horizon_requests=60)
    policy = eager_random_policy(0, idle=0.0)
    held = 0
    _, info = env.reset(seed=0)
    _, other = free.reset(seed=0)
    hold, truncated = env.layout.index("hold"), False
    while not truncated:
        mask, wide = info["action_mask"], other["action_mask"]
        somewhere = np.delete(mask, hold).any()
        assert mask[hold] == (not somewhere) or info["decision"] == "none"
        np.testing.assert_array_equal(np.delete(mask, hold), np.delete(wide, hold))
        held += bool(wide[hold])
        action = policy(env)
        _, _, _, truncated, info = env.step(action)
        _, _, _, _, other = free.step(action)
    assert held > 10


def test_hold_is_masked_once_its_time_is_over():
    env = make("routing", short("toy", 50, control__hold_max_s=0.4), evaluation=True)
    _, info = env.reset(options={"window": 0})
    hold, start_s, times = env.layout.index("hold"), info["time_s"], []
    while info["action_mask"][hold]:
        times.append(info["time_s"])
        _, _, _, _, info = env.step(hold)
    assert times[-1] < start_s + 0.4 <= info["time_s"]
    assert np.all(np.diff([*times, info["time_s"]]) > 0)
    _, _, _, _, info = env.step(env.layout.index("pair"))
    assert info["action_mask"][hold]  # the next request may be held


SHUFFLED = {"shuffle_instances": True, "evaluation": True, "split": "test", "window": 0}


@pytest.mark.parametrize("preset", PRESETS)
def test_shuffling_only_permutes_the_rows(preset):
    """Under the same decisions about instances an environment that shuffles shows the same numbers in other rows."""
    plain = make("routing", short(preset, 60), evaluation=True, split="test", window=0)
    mixed = make("routing", short(preset, 60), **SHUFFLED)
    rng = np.random.default_rng(0)
    a, _ = plain.reset(seed=4)
    b, _ = mixed.reset(seed=4)
    while mixed.shown["prefill"].tolist() == plain.shown["prefill"].tolist():
        b, _ = mixed.reset()
    p, d, truncated = mixed.shown["prefill"], mixed.shown["decode"], False
    assert sorted(p) == list(range(len(p))) and sorted(d) == list(range(len(d)))
    while not truncated:
        for name in ("cluster", "request", "colocated"):
            np.testing.assert_array_equal(b[name], a[name])
        np.testing.assert_array_equal(b["prefill"], a["prefill"][p])
        np.testing.assert_array_equal(b["decode"], a["decode"][d])
        np.testing.assert_array_equal(b["pair"], a["pair"][p][:, d])
        n_pairs = plain.layout.n_pairs
        shape = (*b["pair"].shape[:2], 4)
        pairs = plain.action_masks()[:n_pairs].reshape(shape)[p][:, d]
        np.testing.assert_array_equal(mixed.action_masks()[:n_pairs].reshape(shape), pairs)
        legal = np.argwhere(mixed.action_masks()[:n_pairs].reshape(shape))
        i, j, q = legal[rng.integers(len(legal))].tolist()
        a, reward, _, _, _ = plain.step(plain.layout.index("pair", int(p[i]), int(d[j]), q))
        b, shuffled_reward, _, truncated, _ = mixed.step(mixed.layout.index("pair", i, j, q))
        assert shuffled_reward == reward


@pytest.mark.parametrize("preset", PRESETS)
def test_padding_changes_nothing_but_the_shape(preset):
    settings = {"evaluation": True, "split": "test", "window": 0}
    plain = make("routing", short(preset, 60), **settings)
    padded = make("routing", short(preset, 60), pad=(7, 6, 2), **settings)
    a, _ = plain.reset()
    b, _ = padded.reset()
    rng, truncated = np.random.default_rng(0), False
    n_prefill, n_decode = plain.layout.prefill, plain.layout.decode
    while not truncated:
        assert_equal(
            {
                "cluster": b["cluster"],
                "decode": b["decode"][:n_decode],
                "pair": b["pair"][:n_prefill, :n_decode],
                "prefill": b["prefill"][:n_prefill],
                "request": b["request"],
            },
            {name: a[name] for name in ("cluster", "decode", "pair", "prefill", "request")},
        )
        assert not b["prefill"][n_prefill:].any() and not b["decode"][n_decode:].any()
        assert not b["pair"][n_prefill:].any() and not b["pair"][:, n_decode:].any() and not b["colocated"].any()
        ours = [plain.choice(int(k)) for k in np.flatnonzero(plain.action_masks())]
        theirs = [padded.choice(int(k)) for k in np.flatnonzero(padded.action_masks())]
        assert ours == theirs
        choice = ours[rng.integers(len(ours))]
        parts = {"prefill": choice.prefill, "decode": choice.decode, "precision": choice.precision}
        parts = parts if choice.kind == "pair" else {}
        a, reward, _, _, info = plain.step(plain.layout.index(choice.kind, **parts))
        b, padded_reward, _, truncated, padded_info = padded.step(padded.layout.index(choice.kind, **parts))
        assert padded_reward == reward and padded_info["time_s"] == info["time_s"]


def test_one_padded_environment_serves_clusters_of_other_sizes():
    env = make("routing", "toy", pad=(6, 4, 2), horizon_requests=20)
    for preset in PRESETS:
        play(env, eager_random_policy(0), options={"scenario": preset, "window": 0})
        assert (env.shown["prefill"] >= 0).sum() == len(env.scenario.cluster().prefill)
    with pytest.raises(InputError, match=r"pad: \(6, 4, 2\) is too small for a cluster of \(7, 2, 1\) instances"):
        env.reset(options={"scenario": load_scenario("toy", {"prefill.0.count": 7})})


# ---- traces -----------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path):
    """1,000 requests, one every 0.2 s."""
    rng = np.random.default_rng(0)
    rows = [f"{0.2 * k:.1f},{rng.integers(20, 150)},{rng.integers(1, 20)}" for k in range(1000)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return path


def test_a_trace_is_cut_into_windows_of_each_split(trace):
    env = make("routing", short("toy", 50), trace=trace)
    seen = set()
    env.reset(seed=0)
    for _ in range(60):
        seen.add(env.reset()[1]["window"])
    assert seen == set(range(len(seen)))  # 600 requests are for training; each window of 50 has a warm-up of 2 s
    assert 9 <= len(seen) <= 12
    starts = []
    for split in ("train", "validation", "test"):
        env.reset(options={"split": split, "window": 0})
        starts.append(env.simulation.arrivals["prompt_tokens"][:20].tolist())
        play(env, eager_random_policy(0), options={"split": split, "window": 0})
    assert starts[0] != starts[1] != starts[2]
    with pytest.raises(InputError, match=r"the test part \(200 requests\) holds .* window 40 \(from 0\) was asked for"):
        env.reset(options={"split": "test", "window": 40})


def test_a_trace_without_a_window_of_that_length_is_refused(trace):
    env = make("routing", "toy", trace=trace, horizon_requests=900)
    with pytest.raises(InputError, match=r"no window of this length in split 'train'; shorten the horizon"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenario": "toyy"}, "unknown scenario 'toyy'; did you mean 'toy'"),
        ({"scenario": 3}, r"^scenario: is of type int; give a Scenario, or the name or path of one$"),
        ({"overrides": {"decode.0.cuont": 1}}, "cuont"),
        ({"reward": "jiont"}, r"^reward: is 'jiont'.*joint"),
        ({"action_mode": "pairs"}, r"^action_mode: no action mode 'pairs'.*pair"),
        ({"split": "tset"}, r"^split: is 'tset'.*test"),
        ({"window": -1}, r"^window: is -1; give a whole number from 0$"),
        ({"windows": 0}, r"^windows: is 0; give a whole number from 1$"),
        ({"workload_seed": 1.5}, r"^workload_seed: is 1.5; give a whole number from 0$"),
        ({"evaluation": "yes"}, r"^evaluation: is 'yes'; give True or False$"),
        ({"horizon_requests": 0}, r"^horizon_requests: is 0; give a whole number from 1$"),
        ({"horizon_s": -2.0}, r"^horizon_s: is -2.0; give a finite number above 0$"),
        ({"horizon_requests": 5, "horizon_s": 1.0}, r"^horizon_s: give horizon_requests or horizon_s, not both$"),
        ({"warm_start": "gredy"}, r"^warm_start: is 'gredy'.*greedy"),
        ({"rule": "gredy"}, r"^rule: is 'gredy'.*greedy"),
        ({"reference": "colocated"}, r"^reference: 'colocated' needs co-located instances; 'toy' has none$"),
        ({"interval_s": 2.0}, r"^interval_s: is for environments that scale; set scaling.interval_s instead$"),
        ({"on_illegal": "ignore"}, r"^on_illegal: is 'ignore'.*error"),
        ({"work_conserving": 1}, r"^work_conserving: is 1; give True or False$"),
        ({"shuffle_instances": None}, r"^shuffle_instances: is None; give True or False$"),
        ({"pad": (1, 1, 1)}, r"^pad: \(1, 1, 1\) is too small for a cluster of \(2, 2, 1\) instances$"),
        ({"pad": 5}, r"^pad: is 5; give three whole numbers"),
        ({"beta_per_s": -0.1}, r"^beta_per_s: is -0.1; give a finite number from 0$"),
        ({"rate_scale": -1.0}, r"^rate.scale: .*-1.0"),
        ({"rate_scale": "fast"}, r"^rate.scale: .*'fast'"),
        ({"trace": 3}, r"^trace: is of type int; give the path of a file$"),
        ({"trace": "no/such.csv"}, r"no/such.csv: no such file"),
        ({"render_mode": "video"}, r"^render_mode: no render mode 'video'"),
        ({"reward": "standard", "overrides": {"cost.ttft_slope_per_s": 0}}, r"^cost\.[a-z_]+: "),
    ],
)
def test_a_bad_setting_is_one_clear_line(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        gym.make("pdenv/Routing-v0", **{"scenario": "toy", **settings}).reset()
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_names_the_nearest_one():
    with pytest.raises(InputError, match=r"no setting 'rewrad'.*reward"):
        make("routing", "toy", rewrad="joint")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windw": 1}, r"^options: no option 'windw'.*window"),
        ({"split": "tset"}, r"^options: no split 'tset'.*test"),
        ({"window": -1}, r"window.*-1"),
        ({"window": "first"}, r"window.*'first'"),
        ({"scenario": "toyy"}, "unknown scenario 'toyy'; did you mean 'toy'"),
        ({"rate_scale": 0.0}, r"rate.scale: .*0.0"),
        ({"scenario": "hetero-links"}, r"is too small for a cluster of \(6, 3, 1\) instances"),
    ],
)
def test_a_bad_option_is_one_clear_line_and_leaves_the_environment_usable(options, message):
    env = make("routing", "toy", horizon_requests=10)
    env.reset(seed=0)
    with pytest.raises(InputError, match=message) as caught:
        env.reset(options=options)
    assert "\n" not in str(caught.value)
    play(env, eager_random_policy(0), seed=0)


def test_scaling_needs_pools_and_knows_no_factors():
    with pytest.raises(InputError, match=r"^scenario: scenario '.*' has no pools to scale$"):
        make("scaling", load_scenario("toy").colocated_twin())
    with pytest.raises(InputError, match=r"^action_mode: 'factored' is for pdenv/Routing-v0"):
        make("cluster", "toy", action_mode="factored")


def test_the_interval_of_scaling_has_a_default():
    assert make("scaling", "toy").scenario.scaling.interval_s == 2.0  # a twentieth of 200 requests at 5/s
    assert make("scaling", short("toy", 5000)).scenario.scaling.interval_s == 30.0  # at most
    own = load_scenario("toy", {"scaling.interval_s": 7.0})
    assert make("cluster", own).scenario.scaling.interval_s == 7.0
    assert make("cluster", own, interval_s=3.0).scenario.scaling.interval_s == 3.0
    assert make("routing", own).scenario.scaling.interval_s == 7.0


def test_wrappers_of_gymnasium_find_the_masks():
    env = gym.make("pdenv/Routing-v0", scenario="toy")
    for wrapped in (env, NormalizeObservation(env), FlatObservation(env)):
        wrapped.reset(seed=0)
        np.testing.assert_array_equal(wrapped.get_wrapper_attr("action_masks")(), env.unwrapped.action_masks())
    venv = DummyVecEnv([lambda: FlatObservation(gym.make("pdenv/Routing-v0", scenario="toy"))])
    venv.reset()
    assert venv.env_method("action_masks")[0].any()


def test_rewards_depend_on_the_reward_mode_only():
    """The same decisions: each mode weighs the same run."""
    runs = [
        trajectory(make("routing", "toy", reward=mode), eager_random_policy(0), seed=1, steps=60)
        for mode in ("joint", "standard", "normalised")
    ]
    for run in runs[1:]:
        assert [row[3]["time_s"] for row in run] == [row[3]["time_s"] for row in runs[0]]
        assert [row[1] for row in run] != [row[1] for row in runs[0]]


def test_the_error_is_an_input_error():
    assert issubclass(IllegalAction, InputError)
