"""Pictures of an episode, through the environment and as a video."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest

import pdenv  # noqa: F401  # registers the environments


def run(env: gym.Env, steps: int) -> None:
    _, info = env.reset(seed=0)
    for _ in range(steps):
        _, _, _, _, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))


@pytest.mark.parametrize("mode", ["pair", "sequential"])
@pytest.mark.parametrize("name", ["pdenv/Routing-v0", "pdenv/Scaling-v0", "pdenv/Cluster-v0"])
def test_every_environment_can_be_looked_at(name, mode):
    env = gym.make(name, scenario="toy", render_mode="ansi", action_mode=mode)
    run(env, 6)
    text = env.render()
    assert "toy" in text and "prefill-0" in text and "reward" in text


def test_last_decision_is_the_one_that_was_taken():
    env = gym.make("pdenv/Routing-v0", scenario="toy", render_mode="ansi")
    env.reset(seed=0)
    env.step(env.unwrapped.layout.index("pair", prefill=1, decode=0, precision="fp8"))
    assert "→ prefill-1 → decode-0 as FP8" in env.render()


def test_pictures_of_an_episode_differ_and_human_mode_needs_no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    env = gym.make("pdenv/Routing-v0", scenario="toy", render_mode="rgb_array")
    run(env, 3)
    first = env.render()
    env.step(0)
    assert first.shape == env.render().shape and first.dtype == np.uint8
    assert not np.array_equal(first, env.render())
    human = gym.make("pdenv/Routing-v0", scenario="toy", render_mode="human")
    run(human, 3)
    human.close()


@pytest.mark.slow
def test_record_video_makes_a_video(tmp_path):
    pytest.importorskip("moviepy", reason="videos need the extra 'test'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the video library
        env = gym.make("pdenv/Routing-v0", scenario="toy", render_mode="rgb_array", horizon_requests=20)
        env = gym.wrappers.RecordVideo(env, str(tmp_path), episode_trigger=lambda _: True)
        _, info = env.reset(seed=0)
        over = False
        while not over:
            _, _, _, over, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 10_000
