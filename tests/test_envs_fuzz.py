"""Random scenarios under random policies: nothing raises, nothing is NaN, and the laws of the engine hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from env_draws import draw_environment
from env_policies import FORMS, make, random_action

from pdenv.envs.fleet import IllegalAction
from pdenv.envs.single import ClusterEnv
from pdenv.sim.audit import audit
from pdenv.sim.records import MODES, REJECTED, TOO_LARGE, UNFINISHED, WAITING

N_SCENARIOS = 200


def check_step(env: ClusterEnv, observation: dict[str, np.ndarray], info: dict[str, Any], reward: float = 0.0) -> None:
    assert env.observation_space.contains(observation)
    assert info["action_mask"].any()
    np.testing.assert_array_equal(info["action_mask"], env.action_masks())
    assert np.isfinite(reward)
    if env.layout.mode == "factored":
        assert all(part.any() for part in np.split(info["action_mask"], np.cumsum(env.layout.widths)[:-1]))


def episode(env: ClusterEnv, seed: int) -> float:
    """One episode under a random policy, checked at every step; the sum of rewards."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    check_step(env, observation, info)
    total, at_s, truncated = 0.0, info["time_s"], bool(env.fleet.over[0])
    while not truncated:
        observation, reward, terminated, truncated, info = env.step(random_action(env, rng))
        check_step(env, observation, info, reward)
        assert not terminated
        assert info["time_s"] >= at_s and info["dt"] >= 0.0
        at_s = info["time_s"]
        total += reward
        if info["decision"] == "none":
            assert truncated
            audit(env.simulation)
    return total


def happened(env: ClusterEnv) -> Counter:
    h, rows = env.simulation.block.header, env.simulation.records
    used = rows["status"] != WAITING
    return Counter(
        preempted=int(h["preemptions"]),
        scaled=int(h["scalings"]),
        rejected=int((rows["status"] == REJECTED).sum()),
        too_large=int((rows["status"] == TOO_LARGE).sum()),
        colocated=int((rows["mode"] == MODES.index("colocated")).sum()),
        pairs=int((rows["mode"] == MODES.index("pair")).sum()),
        unfinished=int((rows["status"] == UNFINISHED).sum() + (~used).sum()),
    )


@pytest.mark.parametrize("first", range(0, N_SCENARIOS, 20))
def test_random_scenarios_under_random_policies(first):
    found: Counter = Counter()
    for seed in range(first, first + 20):
        env = draw_environment(seed)
        episode(env, seed)
        found += happened(env)
    for name in ("preempted", "scaled", "rejected", "colocated", "pairs"):
        assert found[name] > 0, name


WRONG = (None, "left", 1.5, np.array([0.5]), [1, 2, 3], {}, np.nan, True, -1, 10**6, np.int64(-3), 2**70)


@pytest.mark.parametrize("on_illegal", ["error", "replace"])
@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_a_wrong_action_is_refused_and_changes_nothing(kind, mode, on_illegal):
    scenario = "toy"
    env = make(kind, scenario, action_mode=mode, on_illegal=on_illegal, horizon_requests=40)
    twin = make(kind, scenario, action_mode=mode, on_illegal=on_illegal, horizon_requests=40)
    rng = np.random.default_rng(0)
    env.reset(seed=1)
    twin.reset(seed=1)
    truncated, wrong = False, [*WRONG, np.array([-1] * 5), np.array([9] * 5), np.zeros(4, np.int64), np.zeros((1, 5))]
    for _ in range(60):
        if truncated:
            break
        bad = wrong[int(rng.integers(len(wrong)))]
        before = env.simulation.now
        with pytest.raises(IllegalAction, match=r"^action: .*(is not in|give whole numbers? |give a whole number)"):
            env.step(bad)
        assert env.simulation.now == before
        action = random_action(env, rng)
        ours, theirs = env.step(action), twin.step(action)
        np.testing.assert_equal(ours[0], theirs[0])
        assert ours[1:3] == theirs[1:3]
        np.testing.assert_equal(ours[4], theirs[4])
        truncated = ours[3]


@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_an_illegal_action_is_refused_with_what_is_legal(kind, mode):
    env = make(kind, "toy", action_mode=mode)
    env.reset(seed=1)
    mask = env.action_masks()
    illegal = np.array([3, 0, 0, 0, 0]) if mode == "factored" else int(np.flatnonzero(~mask)[0])
    before = env.simulation.block.header.copy()
    with pytest.raises(
        IllegalAction, match=r"^action: .* is not legal now; legal: .*action_masks\(\) allows.*on_illegal='replace'$"
    ):
        env.step(illegal)
    assert env.simulation.block.header.tobytes() == before.tobytes()
    env.step(random_action(env, np.random.default_rng(0)))


@pytest.mark.parametrize(("kind", "mode"), FORMS)
def test_illegal_actions_are_replaced_by_the_first_legal_one_and_counted(kind, mode):
    """An environment that replaces does what another one does under the first legal action."""
    env = make(kind, "toy", action_mode=mode, on_illegal="replace", horizon_requests=40)
    other = make(kind, "toy", action_mode=mode, horizon_requests=40)
    env.action_space.seed(5)
    env.reset(seed=1)
    other.reset(seed=1)
    replaced, truncated = 0, False
    while not truncated:
        action, mask = env.action_space.sample(), other.action_masks()
        if mode == "factored":
            repaired, changed = first_legal_factors(action, mask, other.layout.widths)
        else:
            changed = not mask[action]
            repaired = int(np.flatnonzero(mask)[0]) if changed else action
        replaced += changed
        ours, theirs = env.step(action), other.step(repaired)
        np.testing.assert_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]
        assert ours[4]["replaced_actions"] == replaced
        truncated = ours[3]
    assert replaced > 0


def first_legal_factors(action: np.ndarray, mask: np.ndarray, widths: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Every factor that the kind of action uses, legal; whether one was not."""
    parts = np.split(mask, np.cumsum(widths)[:-1])
    out = action.copy()
    if not parts[0][out[0]]:
        out[0] = np.flatnonzero(parts[0])[0]
    used = {0: (1, 2, 3), 1: (4,)}.get(int(out[0]), ())
    for k in used:
        if not parts[k][out[k]]:
            out[k] = np.flatnonzero(parts[k])[0]
    return out, not np.array_equal(out, action)


@pytest.mark.parametrize("action", [10**6, -5, 2**70])
@pytest.mark.parametrize("mode", ["pair", "sequential"])
def test_the_error_names_the_action_that_was_given(mode, action):
    env = make("routing", "toy", action_mode=mode)
    env.reset(seed=0)
    with pytest.raises(IllegalAction, match=rf"^action: {action} is not in Discrete\({env.layout.n_actions}\)$"):
        env.step(action)


@pytest.mark.parametrize(("action", "named"), [("left", "'left'"), (3, "3"), ([1, 2], r"\[1, 2\]")])
def test_the_error_of_a_factored_action_says_its_shape(action, named):
    env = make("routing", "toy", action_mode="factored")
    env.reset(seed=0)
    with pytest.raises(IllegalAction, match=rf"^action: is {named}; give whole numbers of shape \(5,\) from"):
        env.step(action)


def test_before_reset_and_after_the_end_a_step_is_refused():
    env = make("routing", "toy", horizon_requests=5)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(0)
    assert episode(env, 0) < 0.0
    with pytest.raises(RuntimeError, match=r"the episode is over: call reset\(\)"):
        env.step(0)
    assert episode(env, 0) < 0.0
