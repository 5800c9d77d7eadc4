"""The RLlib example; `make test-ray` runs it, in an environment that has Ray."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from gymnasium.utils.env_checker import check_env
from test_examples import assert_closer, printed_costs

from pdenv.envs.single import ClusterEnv

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "rllib_ppo.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names in the example; Ray's notes go to a folder that is thrown away."""
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    yield runpy.run_path(str(EXAMPLE))
    ray.shutdown()


def test_the_environment_of_the_example_is_a_good_one(
    example: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    env = example["make_env"](example["SETTINGS"])
    check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=0)
    assert set(observation) == {"observations", "action_mask"}
    assert np.array_equal(observation["action_mask"] > 0, info["action_mask"])
    assert not [warning for warning in recwarn if "gymnasium" in warning.filename]


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
