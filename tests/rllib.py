"""The RLlib example; `make test-ray` runs it, in an environment that has Ray."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from gymnasium.utils.env_checker import check_env
from test_examples import assert_closer, printed_costs

from pdenv.envs.single import ClusterEnv

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "rllib_ppo.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names in the example; Ray's notes go to a folder that is thrown away."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    yield runpy.run_path(str(EXAMPLE))
    ray.shutdown()
    torch.set_num_threads(threads)


def test_the_environment_of_the_example_is_a_good_one(example: dict[str, Any]) -> None:
    env = example["make_env"]({**example["SETTINGS"], "on_illegal": "replace"})
    env.unwrapped.spec = None  # its wrapper is not meant to be made again from a spec
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=0)
    assert set(observation) == {"observations", "action_mask"}
    assert np.array_equal(observation["action_mask"] > 0, info["action_mask"])


def test_rllib_learns_by_legal_actions(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, step = {True: 0, False: 0}, ClusterEnv.step

    def counting_step(env: ClusterEnv, action: Any) -> Any:
        counts[bool(env.action_masks()[action])] += 1
        return step(env, action)

    monkeypatch.setattr(ClusterEnv, "step", counting_step)
    example["main"](32_000)
    assert_closer(*printed_costs(capsys))
    assert counts[True] > 32_000 and counts[False] == 0
