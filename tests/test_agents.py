"""Training: the policy, discounting in event time, reproducibility, resuming, the command line."""

# ruff: noqa: E402  # what follows needs torch

from __future__ import annotations

import dataclasses
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

th = pytest.importorskip("torch", reason="torch is not installed (pip install 'pdenv[train]')")

from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from typer.testing import CliRunner

import pdenv
from agents.config import CONFIGS, Hyperparameters, read_hyperparameters
from agents.evaluate import acting, play, random_acting
from agents.evaluate import app as evaluate_app
from agents.plot import app as plot_app
from agents.policy import PairPolicy
from agents.rollout import EventTimePPO, EventTimeRolloutBuffer
from agents.runs import Run, create_run, load_weights, make_model, make_policy, read_progress, read_run, steps_done
from agents.train import app, train
from pdenv.envs.layout import layout_of
from pdenv.envs.normalize import normalized_space
from pdenv.errors import InputError

ROOT = Path(__file__).resolve().parents[1]

TINY = Hyperparameters(
    n_envs=4,
    n_steps=20,
    batch_size=40,
    n_epochs=2,
    rollouts_per_window=2,
    horizon_requests=30,
    checkpoint_updates=2,
    hidden=8,
)


@pytest.fixture(autouse=True)
def _one_thread():
    th.set_num_threads(1)  # tensors are small; tests run side by side


def make_run(folder: Path, scenario: str = "toy", steps: int = 480, seed: int = 0, **changes) -> Run:
    hyperparameters = Hyperparameters.model_validate({**TINY.model_dump(), **changes})
    run = Run(folder, "maskable-ppo", pdenv.load_scenario(scenario), steps, seed, hyperparameters)
    create_run(run)
    return run


def weights_of(model) -> np.ndarray:
    return th.cat([p.detach().flatten() for p in model.policy.parameters()]).numpy()


# ---- the policy ---------------------------------------------------------------------------------------


def make_policy_for(rows: tuple[int, int, int], scales: bool = False) -> tuple[PairPolicy, dict]:
    """A policy with weights that matter, and 5 random observations."""
    layout = layout_of(pdenv.load_scenario("toy").cluster(), "pair", True, scales, pad=rows)
    th.manual_seed(1)
    space = normalized_space(layout, flat=False)
    policy = PairPolicy(space, layout.action_space(), lambda _: 1e-3, hidden=16)
    with th.no_grad():
        for name, parameter in policy.named_parameters():
            if "score" in name:
                parameter.normal_()
    rng = np.random.default_rng(0)
    seen = {k: th.as_tensor(rng.uniform(0.0, 0.3, (5, *box.shape)), dtype=th.float32) for k, box in space.items()}
    for part in ("prefill", "decode", "colocated"):
        seen[part][..., 0] = 1.0
    return policy, seen


def test_scores_follow_instances_that_are_shown_in_another_order():
    policy, seen = make_policy_for((3, 4, 2))
    rows, columns, beside = [2, 0, 1], [3, 1, 0, 2], [1, 0]
    moved = {
        **seen,
        "prefill": seen["prefill"][:, rows],
        "decode": seen["decode"][:, columns],
        "pair": seen["pair"][:, rows][:, :, columns],
        "colocated": seen["colocated"][:, beside],
    }
    with th.no_grad():
        before, after = policy.scorer(seen), policy.scorer(moved)
        values = policy.predict_values(seen), policy.predict_values(moved)
    pairs = before[:, :48].reshape(5, 3, 4, 4)
    assert pairs.std() > 0.1
    np.testing.assert_allclose(after[:, :48].reshape(5, 3, 4, 4), pairs[:, rows][:, :, columns], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after[:, 48:50], before[:, 48:50][:, beside], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after[:, 50:], before[:, 50:], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-4)


def test_padding_changes_no_score():
    small, seen = make_policy_for((2, 3, 1))
    large, padded = make_policy_for((4, 5, 2))
    large.load_state_dict(small.state_dict())
    p, d, h = slice(0, 2), slice(0, 3), slice(0, 1)
    padded |= {"request": seen["request"], "cluster": seen["cluster"]}
    padded["prefill"][:, p], padded["decode"][:, d] = seen["prefill"], seen["decode"]
    padded["colocated"][:, h], padded["pair"][:, p, d] = seen["colocated"], seen["pair"]
    for part, real in (("prefill", 2), ("decode", 3), ("colocated", 1)):
        padded[part][:, real:, 0] = 0.0
    with th.no_grad():
        few, many = small.scorer(seen), large.scorer(padded)
        np.testing.assert_allclose(
            many[:, :80].reshape(5, 4, 5, 4)[:, p, d], few[:, :24].reshape(5, 2, 3, 4), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_allclose(many[:, 82:], few[:, 25:], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(large.predict_values(padded), small.predict_values(seen), rtol=1e-4, atol=1e-4)


def test_every_legal_action_is_drawn_and_no_other():
    policy, seen = make_policy_for((2, 2, 1), scales=True)
    one = {part: value[:1].expand(4000, *value.shape[1:]) for part, value in seen.items()}
    with th.no_grad():
        for parameter in policy.scorer.parameters():
            parameter.mul_(0.1)
    legal = np.zeros(policy.action_space.n, bool)
    legal[[1, 6, 16, 18, policy.action_space.n - 1]] = True
    masks = np.tile(legal, (4000, 1))
    actions, _, log_probs = policy(one, action_masks=masks)
    assert set(actions.tolist()) == set(np.flatnonzero(legal))
    assert policy.get_distribution(one, masks).distribution.probs[0][~th.as_tensor(legal)].sum() == 0.0
    again = policy.evaluate_actions(one, actions, th.as_tensor(masks))[1]
    np.testing.assert_allclose(again.detach(), log_probs.detach(), atol=1e-6)
    greedy = policy.predict({k: v[0].numpy() for k, v in seen.items()}, deterministic=True, action_masks=legal)[0]
    assert legal[greedy]


# ---- event time ---------------------------------------------------------------------------------------


def fill(kind, n_steps: int, n_envs: int, seed: int = 0, dt: np.ndarray | None = None, **kwargs):
    """A buffer with random rewards, values and ends of episodes."""
    layout = layout_of(pdenv.load_scenario("toy").cluster(), "pair", True, False)
    space = normalized_space(layout, flat=False)
    buffer = kind(n_steps, space, layout.action_space(), "cpu", n_envs=n_envs, **kwargs)
    rng = np.random.default_rng(seed)
    for step in range(n_steps):
        seen = {part: np.zeros((n_envs, *box.shape), np.float32) for part, box in space.items()}
        more = {} if dt is None else {"dt": dt[step]}
        reward, start = rng.normal(size=n_envs), rng.random(n_envs) < 0.2
        value = th.as_tensor(rng.normal(size=n_envs), dtype=th.float32)
        buffer.add(seen, np.zeros((n_envs, 1)), reward, start, value, th.zeros(n_envs), **more)
    last = th.as_tensor(rng.normal(size=(n_envs, 1)), dtype=th.float32)
    buffer.compute_returns_and_advantage(last, rng.random(n_envs) < 0.5)
    return buffer, last


def test_advantages_by_hand():
    dt = np.array([[0.5], [2.0]])
    buffer, last = fill(EventTimeRolloutBuffer, 2, 1, dt=dt, beta_per_s=0.1, trace_decay_per_s=0.3)
    buffer.episode_starts[:] = 0.0
    buffer.compute_returns_and_advantage(last, np.array([False]))
    (r0, r1), (v0, v1), v2 = buffer.rewards[:, 0], buffer.values[:, 0], float(last)
    second = r1 + np.exp(-0.2) * v2 - v1
    first = r0 + np.exp(-0.05) * v1 - v0 + np.exp(-0.05 - 0.15) * second
    np.testing.assert_allclose(buffer.advantages[:, 0], [first, second], rtol=1e-6)
    np.testing.assert_allclose(buffer.returns[:, 0], [first + v0, second + v1], rtol=1e-6)


def test_steps_of_equal_length_are_what_stable_baselines_computes():
    dt = np.full((30, 4), 0.25)
    ours, _ = fill(EventTimeRolloutBuffer, 30, 4, dt=dt, beta_per_s=0.2, trace_decay_per_s=0.4)
    theirs, _ = fill(MaskableDictRolloutBuffer, 30, 4, gamma=np.exp(-0.05), gae_lambda=np.exp(-0.1))
    np.testing.assert_allclose(ours.advantages, theirs.advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-5, atol=1e-6)


def test_a_step_without_time_and_reward_changes_no_return():
    dt = np.array([[0.7], [1.1], [0.4]])
    short, last = fill(EventTimeRolloutBuffer, 3, 1, dt=dt, beta_per_s=0.3, trace_decay_per_s=0.2)
    long, _ = fill(
        EventTimeRolloutBuffer, 4, 1, dt=np.insert(dt, 1, 0.0, axis=0), beta_per_s=0.3, trace_decay_per_s=0.2
    )
    for buffer in (short, long):
        buffer.episode_starts[:] = 0.0
    long.rewards[:] = np.insert(short.rewards, 1, 0.0, axis=0)
    long.values[:] = np.insert(short.values, 1, short.values[1], axis=0)
    short.compute_returns_and_advantage(last, np.array([False]))
    long.compute_returns_and_advantage(last, np.array([False]))
    np.testing.assert_allclose(long.returns[[0, 2, 3]], short.returns, rtol=1e-5)
    np.testing.assert_allclose(long.returns[1], long.returns[2], rtol=1e-5)


def test_groups_lose_their_mean_advantage_and_keep_returns():
    dt = np.random.default_rng(1).uniform(0.0, 1.0, (10, 6))
    plain, _ = fill(EventTimeRolloutBuffer, 10, 6, dt=dt, beta_per_s=0.2)
    grouped, _ = fill(EventTimeRolloutBuffer, 10, 6, dt=dt, beta_per_s=0.2, group=3)
    np.testing.assert_allclose(grouped.returns, plain.returns)
    for which in (slice(0, 3), slice(3, 6)):
        expected = plain.advantages[:, which] - plain.advantages[:, which].mean(axis=1, keepdims=True)
        np.testing.assert_allclose(grouped.advantages[:, which], expected, atol=1e-6)


class Listener(BaseCallback):
    """Keeps what the environments said."""

    def _on_training_start(self) -> None:
        self.steps: list[tuple] = []

    def _on_step(self) -> bool:
        self.steps.append(tuple(self.locals[name] for name in ("rewards", "dones", "infos")))
        return True


@pytest.mark.parametrize("reference", [None, "greedy"])
def test_the_end_of_an_episode_is_worth_its_value_discounted_over_the_last_step(tmp_path, reference):
    run = make_run(tmp_path / "run", n_steps=45, beta_per_s=0.5, reward_scale=0.3, reference=reference)
    model, listener = make_model(run), Listener()
    _, callback = model._setup_learn(180, listener, False)
    callback.on_training_start({}, {})
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 45)
    ends = 0
    for step, (rewards, dones, infos) in enumerate(listener.steps):
        for i, info in enumerate(infos):
            expected = 0.3 * (rewards[i] - info.get("reference_reward", 0.0))
            if dones[i]:
                last = {part: th.as_tensor(value[None]) for part, value in info["terminal_observation"].items()}
                expected += np.exp(-0.5 * info["dt"]) * float(model.policy.predict_values(last).detach())
                ends += 1
            assert model.rollout_buffer.rewards[step, i] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert ends >= 4


# ---- training -----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_weights(tmp_path):
    first, second = (weights_of(train(make_run(tmp_path / name))) for name in ("a", "b"))
    other = weights_of(train(make_run(tmp_path / "c", seed=1)))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


class Stopped(Exception):
    pass


def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path):
    whole = train(make_run(tmp_path / "whole"))
    run = make_run(tmp_path / "stopped")

    def stop(steps: int, cost: float | None) -> None:
        if steps == 5 * 80:  # one update after the second checkpoint
            raise Stopped

    with pytest.raises(Stopped):
        train(run, stop)
    began_at = []
    resumed = train(read_run(run.folder), lambda steps, cost: began_at.append(steps))
    assert began_at == [400, 480]
    np.testing.assert_array_equal(weights_of(whole), weights_of(resumed))
    for name in ("progress.csv", "checkpoint.npz"):
        assert (run.folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_killed_run_goes_on(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(TINY.model_dump()))
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "agents.train", "toy", "--steps", "4_000_000"]
    process = subprocess.Popen(
        [*command, "--config", str(config), "--out", str(folder)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 240.0
        while not (folder / "checkpoint.npz").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run = read_run(folder)
    seen = []

    def stop(steps: int, cost: float | None) -> None:
        seen.append(steps)
        raise Stopped

    with pytest.raises(Stopped):
        train(run, stop)
    assert seen[0] >= 3 * 80 and seen[0] % 160 == 80  # the update after a checkpoint


def test_training_teaches(tmp_path):
    """On links that differ, after a few thousand decisions, far better than random actions and than its own start."""
    scenario = pdenv.load_scenario("hetero-links", {"window.requests": 400, "window.warmup_s": 30})
    hyperparameters = read_hyperparameters(
        CONFIGS / "maskable-ppo.yaml",
        n_envs=32,
        n_steps=25,
        batch_size=400,
        horizon_requests=200,
        hidden=32,
        checkpoint_updates=8,
    )
    run = Run(tmp_path / "run", "maskable-ppo", scenario, 24_000, 0, hyperparameters)
    create_run(run)
    train(run)
    policy = make_policy(run)
    start = make_policy(run)
    load_weights(policy, run)
    trained, _ = play(acting(policy, deterministic=False), scenario, 2, "three-part")
    untrained, _ = play(acting(start, deterministic=False), scenario, 2, "three-part")
    random, _ = play(random_acting(0), scenario, 2, "three-part")
    assert trained.mean() < 0.7 * random.mean()
    assert trained.mean() < 0.7 * untrained.mean()


def test_heuristics_cost_what_simulate_says():
    scenario = pdenv.load_scenario("toy")
    _, greedy = play(random_acting(0), scenario, 2, "greedy", split="test")
    expected = [pdenv.simulate(scenario, "greedy", window=k).summary["cost"]["mean"] for k in range(2)]
    np.testing.assert_allclose(greedy, expected, rtol=1e-9)


def test_the_minimal_program_runs(capsys):
    runpy.run_path(str(ROOT / "agents" / "minimal_sb3.py"))["main"](2000)
    cost = capsys.readouterr().out.splitlines()[-1]
    assert cost.startswith("cost a request: ") and "three-part: " in cost


def test_the_file_of_defaults_says_what_the_defaults_are():
    assert read_hyperparameters(CONFIGS / "maskable-ppo.yaml") == Hyperparameters()


# ---- the command line ---------------------------------------------------------------------------------


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_step: 4", "unknown key 'n_step'; did you mean 'n_steps'?"),
        ("n_steps: many", "n_steps is 'many'; input should be a valid integer"),
        ("clip_range: -1", "clip_range is -1; input should be greater than 0"),
        ("n_envs: 12", "n_envs is 12; give a multiple of rollouts_per_window, which is 8"),
        ("batch_size: 6399", "batch_size is 6399; of the 6400 steps of an update that leaves a minibatch of 1"),
        ("- n_envs", "holds no mapping"),
        ("torch_threads: 100000000", "torch_threads is 100000000; input should be less than or equal to 1024"),
        ("n_envs: 100000\nn_steps: 1000000", "n_envs is 100000 and n_steps 1000000; an update has at most"),
        ("horizon_requests: 100000000000", "horizon_requests is 100000000000; input should be less than"),
        ("learning_rate: .inf", "learning_rate is inf; input should be a finite number"),
        ("learning_rate: 1e300", "learning_rate is 1e+300; input should be less than or equal to 1"),
        ("entropy_coefficient: .nan", "entropy_coefficient is nan; input should be a finite number"),
        ("reward_scale: 1.0e+300", "reward_scale is 1e+300; input should be less than"),
        ("hidden: true", "hidden is True; input should be a valid integer"),
        ("learning_rate: true", "learning_rate is True; input should be a valid number"),
    ],
)
def test_a_bad_config_is_one_line(tmp_path, text, message):
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    result = call("toy", "--config", config, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"agents.train: {config}: {message}")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SCENARIO: is missing"),
        (["tyo"], "unknown scenario 'tyo'; did you mean 'toy'?"),
        (["toy", "--algo", "maskable-pop"], "--algo: no algorithm 'maskable-pop'; did you mean 'maskable-ppo'?"),
        (["toy", "--config", "missing.yaml"], "missing.yaml: cannot be read"),
        (["toy", "--envs", 3], "--envs: is 3; give a multiple of rollouts_per_window, which is 8"),
        (["toy", "--out", ""], "--out: is empty"),
        (["toy", "--out", "x" * 300], f"{'x' * 300}: cannot be read: file name too long"),
        (["--resume", "x" * 300], f"{'x' * 300}: cannot be read: file name too long"),
        (["toy", "--out", __file__], f"{__file__}: exists and is not a folder"),
        (["--resume", "nowhere"], "nowhere: holds no run"),
        (["toy", "--resume", "nowhere"], "--resume: SCENARIO cannot change"),
        (["--resume", "nowhere", "--seed", "3"], "--resume: --seed cannot change"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"agents.train: {message}")
    assert result.stderr.count("\n") == 1


def test_a_run_from_start_to_scores(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(TINY.model_dump()))
    folder = tmp_path / "run"
    made = call("toy", "--steps", 300, "--config", config, "--out", folder, "--eval-windows", 2)
    assert made.exit_code == 0, made.output
    scores = json.loads((folder / "scores.json").read_text())["policies"]
    assert set(scores) == {"trained", "its start", "random", "three-part", "greedy"}
    for row in scores.values():
        assert len(row["windows"]) == 2 and row["interval"][0] <= row["cost"] <= row["interval"][1]
    assert scores["three-part"]["relative_to_three-part"]["ratio"] == 1.0
    assert list((folder / "tensorboard").glob("events*"))

    again = call("toy", "--config", config, "--out", folder)
    assert again.exit_code == 2
    assert "holds a run; continue it with --resume" in again.stderr
    resumed = call("--resume", folder, "--eval-windows", 2)
    assert "finished, 320 steps" in resumed.stdout
    assert json.loads((folder / "scores.json").read_text())["policies"] == scores


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(run: Run, report) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agents.train.train", interrupt)
    result = call("toy", "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert result.stderr == f"agents.train: interrupted; go on with --resume {tmp_path / 'run'}\n"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("n_envs: [", 1, "not valid YAML: "),
        ("!!python/object/apply:os.getcwd []", 1, "not valid YAML: "),
        ("hidden: 8\nhidden: 9", 2, "not valid YAML: key 'hidden' is given twice"),
        ("[" * 20_000, None, "not valid YAML: nested too deeply"),
    ],
)
def test_a_config_that_is_not_yaml_is_one_line(tmp_path, text, line, problem):
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    result = call("toy", "--config", config, "--out", tmp_path / "run")
    place = f"{config}:{line}" if line else str(config)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"agents.train: {place}: {problem}")
    assert result.stderr.count("\n") == 1


def test_numbers_may_have_exponents_without_a_point(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("learning_rate: 1e-4")
    assert read_hyperparameters(config).learning_rate == 1e-4


@pytest.mark.parametrize("reference", ["nope", "colocated"])
def test_settings_that_do_not_fit_leave_no_folder(tmp_path, reference):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**TINY.model_dump(), "reference": reference}))
    result = call("toy", "--config", config, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("agents.train: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["steps", "seed"])
@pytest.mark.parametrize("value", ["true", "-1", "1.5"])
def test_a_run_file_with_odd_numbers_is_damaged(tmp_path, key, value):
    run = make_run(tmp_path / "run")
    path = run.folder / "run.yaml"
    path.write_text(path.read_text().replace(f"\n{key}: {getattr(run, key)}\n", f"\n{key}: {value}\n"))
    with pytest.raises(InputError, match=f"is damaged; {key} should be a whole number"):
        read_run(run.folder)


def test_training_that_diverges_keeps_its_checkpoint(tmp_path, monkeypatch):
    shaped = EventTimePPO._shaped

    def explode(self, rewards, infos):
        return shaped(self, rewards, infos) * (np.inf if self.num_timesteps > 2 * 80 else 1.0)

    monkeypatch.setattr(EventTimePPO, "_shaped", explode)
    run = make_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"training diverged by step 240.* the checkpoint at 160 is kept"):
        train(run)
    assert steps_done(run) == 160


# ---- files that were damaged --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    run = make_run(tmp_path_factory.mktemp("finished") / "run", steps=160)
    train(run)
    return run


@pytest.fixture
def copied(finished, tmp_path) -> Run:
    shutil.copytree(finished.folder, tmp_path / "run")
    return read_run(tmp_path / "run")


WEIGHT = "policy/critic.value.weight"
MOMENT = "optimizer/critic.value.weight/exp_avg_sq"


def npz(arrays: dict) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(_: dict) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def members_of_text(arrays: dict) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in arrays:
            archive.writestr(f"{name}.npy", "text")
    return file.getvalue()


def without(name: str):
    return lambda arrays: npz({key: value for key, value in arrays.items() if key != name})


def having(name: str, value):
    return lambda arrays: npz({**arrays, name: value(arrays[name]) if callable(value) else np.array(value)})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda arrays: npz(arrays)[:2000], id="half"),
        npy,
        members_of_text,
        without("steps"),
        *(having("steps", value) for value in (80.0, [80], -80, 0, 81, 240, True, "80")),
        without(WEIGHT),
        having(WEIGHT, lambda w: w.astype(np.float64)),
        having(WEIGHT, lambda w: w.T),
        having(WEIGHT, lambda w: w * np.nan),
        without(MOMENT),
        having(MOMENT, lambda w: w[:, :3]),
        having(MOMENT, lambda w: w.astype(np.int64)),
        having(MOMENT, lambda w: w - 1),
    ],
)
def test_a_damaged_checkpoint_is_one_line_everywhere(copied, damage):
    with np.load(copied.checkpoint) as file:
        arrays = dict(file)
    copied.checkpoint.write_bytes(damage(arrays))
    for name, result in {
        "train": call("--resume", copied.folder),
        "evaluate": CliRunner().invoke(evaluate_app, [str(copied.folder)]),
    }.items():
        assert result.exit_code == 2
        assert result.stderr.startswith(f"agents.{name}: {copied.checkpoint}: is ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"\xff\xfe" + data,
        lambda data: data.replace(b"\n160,", b"\nmany,"),
        lambda data: data.replace(b"\n160,", b"\n80,"),
        lambda data: data.replace(b"\n160,", b"\n160,x"),
        lambda data: data.replace(b"\n160,", b"\n160,1,"),
        lambda data: data.replace(b"cost", b"costs"),
        lambda data: b"",
    ],
)
def test_a_damaged_progress_file_is_one_line(copied, tmp_path, damage):
    copied.progress.write_bytes(damage(copied.progress.read_bytes()))
    path = copied.folder / "run.yaml"
    path.write_text(path.read_text().replace("steps: 160", "steps: 320", 1))
    for name, result in {
        "train": call("--resume", copied.folder),
        "plot": CliRunner().invoke(plot_app, [str(copied.folder), "--out", str(tmp_path / "curve.png")]),
    }.items():
        assert result.exit_code == 2
        assert result.stderr == f"agents.{name}: {result.stderr.split(': ', 1)[1]}"
        assert f"{copied.progress}: is damaged: " in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "curve.png").exists()


def test_missing_rows_of_progress_are_told(copied, capsys):
    copied.progress.write_text("\n".join(copied.progress.read_text().splitlines()[:2]) + "\n")
    train(dataclasses.replace(copied, steps=320))
    assert capsys.readouterr().err == f"note: {copied.progress}: lacks 1 of 2 updates; going on without them\n"
    assert [row["steps"] for row in read_progress(copied, 320)] == ["80", "240", "320"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    train(run)
    whole = run.checkpoint.read_bytes()
    run.checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is damaged"):
        load_weights(make_policy(run), run)
    run.checkpoint.write_bytes(whole)
    wider = dataclasses.replace(run, hyperparameters=run.hyperparameters.model_copy(update={"hidden": 16}))
    with pytest.raises(InputError, match="is of another network"):
        load_weights(make_policy(wider), wider)
