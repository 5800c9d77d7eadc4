"""The scripts in examples/ run, learn, and take only legal actions where they know masks."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from pdenv.envs.fleet import Fleet

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

#: Printed by every example.
REPORT = re.compile(r"before: (\S+) per request \(three-part: (\S+)\)\nafter:  (\S+) per request\n$")


def printed_costs(capsys: pytest.CaptureFixture[str]) -> tuple[float, float, float]:
    """Cost per request before training, of three-part, and after training."""
    printed = REPORT.search(capsys.readouterr().out)
    assert printed is not None
    before, reference, after = map(float, printed.groups())
    return before, reference, after


def run(name: str, steps: int, capsys: pytest.CaptureFixture[str]) -> tuple[float, float, float]:
    """What the example prints after so many steps on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](steps)
    finally:
        torch.set_num_threads(threads)
    return printed_costs(capsys)


def assert_closer(before: float, reference: float, after: float) -> None:
    """Training closes at least a quarter of the distance to three-part, which leads at the start."""
    assert 0.0 < reference < before
    assert before - after > 0.25 * (before - reference)


@pytest.fixture
def illegal_actions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many actions of the `pair` form have been illegal so far, and how many there were."""
    counts, step = [0, 0], Fleet.step

    def counting_step(fleet: Fleet, which: np.ndarray, actions: np.ndarray) -> Any:
        legal = fleet.masks[which, actions[which, 0]]
        counts[0] += int((~legal).sum())
        counts[1] += len(which)
        return step(fleet, which, actions)

    monkeypatch.setattr(Fleet, "step", counting_step)
    return counts


@pytest.mark.parametrize("name", ["sb3_maskable_ppo", "cleanrl_ppo"])
def test_agents_with_masks_learn_by_legal_actions(
    name: str, capsys: pytest.CaptureFixture[str], illegal_actions: list[int]
) -> None:
    before, reference, after = run(name, 32_000, capsys)
    assert_closer(before, reference, after)
    assert illegal_actions[0] == 0 and illegal_actions[1] > 32_000


def test_ppo_without_masks_learns_though_illegal_actions_are_replaced(
    capsys: pytest.CaptureFixture[str], illegal_actions: list[int]
) -> None:
    assert_closer(*run("sb3_ppo", 16_000, capsys))
    assert 0 < illegal_actions[0] < illegal_actions[1]


def test_dqn_changes_its_mind(
    capsys: pytest.CaptureFixture[str], illegal_actions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, learn = [], DQN.learn

    def watched_learn(model: DQN, steps: int) -> DQN:
        seen.append([parameter.detach().clone() for parameter in model.q_net.parameters()])
        learn(model, steps)
        seen.append(list(model.q_net.parameters()))
        return model

    monkeypatch.setattr(DQN, "learn", watched_learn)
    costs = run("sb3_dqn", 3_000, capsys)
    assert np.isfinite(costs).all() and min(costs) > 0.0
    assert not any(torch.equal(old, new) for old, new in zip(*seen, strict=True))
    assert 0 < illegal_actions[0] < illegal_actions[1]
