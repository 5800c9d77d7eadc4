"""Rewards add up to the cost of the records, however an episode is cut into steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from env_policies import PRESETS, REWARDS, eager_random_policy, make, play, random_policy, short

import baselines
import pdenv
from pdenv.envs.heuristics import PolicyAgent
from pdenv.envs.single import ClusterEnv
from pdenv.sim.records import COMPLETED, MODES, REJECTED, WAITING
from pdenv.sim.state import TERMS
from pdenv.topology import PRECISIONS

LONG_TAIL = {
    "kind": "lognormal",
    "prompt_median_tokens": 90,
    "prompt_sigma": 0.5,
    "prompt_max_tokens": 230,
    "output_median_tokens": 12,
    "output_sigma": 1.0,
    "output_max_tokens": 90,
}
STEEP = {
    "cost__ttft_step": 0.7,
    "cost__ttft_slope_per_s": 0.4,
    "cost__tpot_step": 0.3,
    "cost__tpot_slope_per_s": 0.9,
    "cost__w_transfer": 1.5,
    "cost__w_decode": 2.5,
    "cost__gpu_hour": 40.0,
    "cost__churn": 0.6,
}
TIGHT = {"workload__lengths": LONG_TAIL, "decode__0__kv_bytes": 8_000_000, "workload__rate_per_s": 7.0, **STEEP}
TOY_COLOCATED = [{"gpu": "h100", "tensor_parallel": 1, "profile": "toy", "kv_bytes": 8_000_000}]

#: Overrides of the preset `toy`, and what must have happened in the run.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "one token": ({"workload__lengths": {**LONG_TAIL, "output_median_tokens": 1.3}, **STEEP}, "one_token"),
    "preempted": (TIGHT, "preempted"),
    "swapped": ({**TIGHT, "kv__preemption": "swap"}, "preempted"),
    "rejected": ({"control__allow_reject": True, "cost__rejection": 11.0, **TIGHT}, "rejected"),
    "mixed": ({"colocated": TOY_COLOCATED, **TIGHT}, "colocated"),
    "decode first": ({"kv__first_token": "decode", **TIGHT}, "completed"),
    "decode first, one token": (
        {"kv__first_token": "decode", "workload__lengths": {**LONG_TAIL, "output_median_tokens": 1.3}, **STEEP},
        "one_token",
    ),
    "bound late": ({"kv__decode_binding": "prefill_end", **TIGHT}, "completed"),
    "layer-wise": ({"kv__reserve": "prefill_start", "network__overlap": "layer_wise", **TIGHT}, "completed"),
    "unfinished": ({**TIGHT, "workload__rate_per_s": 30.0, "window__drain_max_s": 3.0, "cost__failure": 7.0}, "left"),
    "too large": ({**TIGHT, "decode__0__kv_bytes": 2_400_000, "cost__failure": 7.0}, "failed"),
    "mixed store": ({**TIGHT, "kv__mixed_store": True, "cost__quality": {"fp8": 0.3, "int4": 0.9}}, "completed"),
}


def closed(env: ClusterEnv) -> Any:
    """A copy of the run in which the records of what has not ended are up to date."""
    sim = env.simulation.copy()
    sim.close()
    return sim


def terms_of_records(env: ClusterEnv) -> dict[str, float]:
    """Every term of the cost of the measured requests of an evaluation, from the records alone."""
    sim, load, weights, sla = closed(env), env.fleet.episodes[0].load, env.scenario.cost, env.scenario.sla
    measured = slice(load.measured_from, load.measured_to)
    rows, n, t_a = sim.records[measured], sim.arrivals["output_tokens"][measured], sim.arrivals["arrival_s"][measured]
    left = env.simulation.records["status"][measured] == WAITING
    end = np.where(left, sim.now, rows["finish_s"])
    t_p = np.where(np.isnan(rows["prefill_end_s"]), end, rows["prefill_end_s"])
    t_j = np.where(np.isnan(rows["decode_start_s"]), end, rows["decode_start_s"])
    first = rows["first_token_s"]
    m = n - 1 + (sim.cluster.decode_first & (rows["mode"] == MODES.index("pair")))
    emitting = np.where(np.isnan(first), 0.0, end - first)
    parts = [(t_p - t_a).sum(), (t_j - t_p)[m > 0].sum(), ((end - t_j)[m > 0] / m[m > 0]).sum()]
    if weights.mode == "standard":
        parts = [0.0, 0.0, (emitting[n > 1] / (n[n > 1] - 1)).sum()]
    if weights.mode == "normalised":
        parts = [parts[0] / sla.ttft_s, parts[1] / sla.ttft_s, parts[2] / sla.tpot_s]
    late = np.maximum(np.where(np.isnan(first), end, first) - t_a - sla.ttft_s, 0.0)
    over = np.where(n > 1, np.maximum(emitting - sla.tpot_s * (n - 1), 0.0), 0.0)
    price = np.array([*(weights.quality[name] for name in PRECISIONS), 0.0])
    begun, ended = env.fleet.begun[0], env.fleet.ended[0]
    gpu_s = sum(
        instance.gpus * (after["billed_s"] - before["billed_s"])
        for pool in ("prefill", "decode", "colocated")
        for instance, before, after in zip(
            getattr(sim.cluster, pool), getattr(begun, pool), getattr(ended, pool), strict=True
        )
    )
    rejected = rows["status"] == REJECTED
    return {
        "prefill": weights.w_prefill * parts[0],
        "transfer": weights.w_transfer * parts[1],
        "decode": weights.w_decode * parts[2],
        "ttft_penalty": weights.ttft_step * (late > 0).sum() + weights.ttft_slope_per_s * late.sum(),
        "tpot_penalty": weights.tpot_step * (over > 0).sum() + weights.tpot_slope_per_s * over.sum(),
        "rejection_penalty": weights.rejection * rejected.sum(),
        "failure_penalty": weights.failure * (~rejected & (rows["status"] != COMPLETED)).sum(),
        "quality": np.maximum(price[rows["wire_precision"]], price[rows["store_precision"]]).sum(),
        "gpu": weights.gpu_hour / 3600 * gpu_s,
        "churn": weights.churn * (ended.scalings - begun.scalings),
    }


def assert_adds_up(env: ClusterEnv, policy: Any, **reset: Any) -> None:
    """Play an evaluation; every term of the reward and their sum are those of the records."""
    got = dict.fromkeys(TERMS, 0.0)
    total = 0.0
    env.reset(**reset)
    truncated = False
    while not truncated:
        _, reward, _, truncated, info = env.step(policy(env))
        assert sum(info["reward_terms"].values()) == pytest.approx(reward, rel=1e-12, abs=1e-12)
        total += reward
        for name, value in info["reward_terms"].items():
            got[name] -= value
    expected = terms_of_records(env)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert -total == pytest.approx(sum(expected.values()), rel=1e-9)
    load = env.fleet.episodes[0].load
    requests = load.measured_to - load.measured_from
    assert info["metrics"]["cost"]["mean"] * requests == pytest.approx(-total, rel=1e-9)
    assert info["score"]["cost"] * requests == pytest.approx(-total, rel=1e-9)


@pytest.mark.parametrize("kind", ["routing", "cluster"])
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_rewards_add_up_to_the_cost_of_the_records(preset, reward, kind):
    settings = {} if kind == "routing" else {"interval_s": 3.0}
    env = make(kind, short(preset, 100, **STEEP), reward=reward, evaluation=True, split="validation", **settings)
    for seed in range(2):
        assert_adds_up(env, eager_random_policy(seed), seed=seed)


@pytest.mark.parametrize("preset", PRESETS)
def test_rewards_add_up_on_co_located_twins(preset):
    env = make("routing", short(preset, 100, **STEEP).colocated_twin(), evaluation=True, rule="colocated")
    assert_adds_up(env, random_policy(0), seed=0)
    assert env.simulation.records["mode"].max() == MODES.index("colocated")


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("name", CASES)
def test_rewards_add_up_whatever_happens(name, reward):
    changes, event = CASES[name]
    env = make("routing", short("toy", 150, **changes), reward=reward, evaluation=True)
    happened = 0
    for seed in range(3):
        assert_adds_up(env, eager_random_policy(seed), seed=seed)
        happened += count(env, event)
    assert happened > 0, event


def count(env: ClusterEnv, event: str) -> int:
    load, rows = env.fleet.episodes[0].load, env.simulation.records
    measured = slice(load.measured_from, load.measured_to)
    return {
        "one_token": int((env.simulation.arrivals["output_tokens"][measured] == 1).sum()),
        "preempted": int(env.simulation.block.header["preemptions"]),
        "rejected": int((rows["status"][measured] == REJECTED).sum()),
        "colocated": int((rows["mode"][measured] == MODES.index("colocated")).sum()),
        "completed": int((rows["status"][measured] == COMPLETED).sum()),
        "left": int((rows["status"][measured] == WAITING).sum()),
        "failed": int((~np.isin(rows["status"][measured], (WAITING, COMPLETED, REJECTED))).sum()),
    }[event]


@pytest.mark.parametrize("reward", REWARDS)
def test_rewards_of_scaling_add_up(reward):
    """With pools that warm, drain and flip in the measured time and outside it."""
    pools = {"prefill__0__count": 4, "prefill__0__active": 2, "decode__0__count": 4, "decode__0__active": 2}
    env = make("scaling", short("toy", 200, **TIGHT, **pools), reward=reward, interval_s=1.0, evaluation=True)
    for seed in range(3):
        assert_adds_up(env, random_policy(seed), seed=seed)
        assert env.fleet.ended[0].scalings > env.fleet.begun[0].scalings


def test_a_training_episode_charges_what_happens_until_its_end():
    """Only requests that arrive after the warm-up count, and of them what has accrued when the window ends."""
    env = make("routing", short("toy", 150, warmup_s=5.0, **TIGHT))
    play(env, eager_random_policy(0), seed=3)
    load, sim = env.fleet.episodes[0].load, closed(env)
    rows, arrived = sim.records, sim.arrivals["arrival_s"]
    assert sim.now == pytest.approx(load.end_s)
    here = (arrived >= load.warmup_s) & (arrived <= load.end_s)
    end = np.where(env.simulation.records["status"] == WAITING, sim.now, rows["finish_s"])
    t_p = np.where(np.isnan(rows["prefill_end_s"]), end, rows["prefill_end_s"])
    waited = (t_p - arrived)[here].sum()
    env.reset(seed=3)
    policy, prefill, truncated = eager_random_policy(0), 0.0, False
    while not truncated:
        _, _, _, truncated, info = env.step(policy(env))
        prefill -= info["reward_terms"]["prefill"]
    assert prefill == pytest.approx(waited, rel=1e-9)
    assert info["reward_terms"]["failure_penalty"] == 0.0


# ---- splitting intervals ----------------------------------------------------------------------------------


def discounted_return(env: ClusterEnv, actions: Any, beta_per_s: float, **reset: Any) -> tuple[float, float]:
    """(sum of rewards, sum of rewards discounted to the start) under a policy or a list of actions."""
    env.reset(**reset)
    start_s = at_s = env.simulation.now
    plain = discounted = 0.0
    truncated = False
    while not truncated:
        _, reward, _, truncated, info = env.step(actions(env))
        plain += reward
        discounted += np.exp(-beta_per_s * (at_s - start_s)) * reward
        at_s += info["dt"]
    return plain, discounted


def by_number(seed: int) -> Any:
    """The same decision for the same request in every form of actions: (prefill, decode, precision) by its number."""

    def choose(env: ClusterEnv) -> list[int]:
        sim = env.simulation
        number = int(sim.block.views["request"][int(sim.block.header["pending_request"])]["id"])
        rng = np.random.default_rng((seed, number))
        return [int(rng.integers(2)), int(rng.integers(2)), 0]

    return choose


@pytest.mark.parametrize("beta_per_s", [0.0, 0.3])
@pytest.mark.parametrize("evaluation", [False, True])
def test_stages_that_take_no_time_change_no_return(beta_per_s, evaluation):
    """The same decisions in the pair, the factored and the sequential form have the same (discounted) return."""
    choose = by_number(7)
    got = {}
    for mode in ("pair", "factored", "sequential"):
        settings = {"action_mode": mode, "beta_per_s": beta_per_s, "evaluation": evaluation}
        env = make("routing", short("toy", 150, **STEEP), **settings)
        open_stages: list[int] = []

        def act(env: ClusterEnv, mode: str = mode, left: list[int] = open_stages) -> Any:
            if mode != "sequential":
                return env.layout.index("pair", *choose(env))
            if not left:
                left.extend(env.layout.stages("pair", *choose(env)))
            return left.pop(0)

        got[mode] = discounted_return(env, act, beta_per_s, options={"window": 0})
    assert got["factored"] == got["pair"]
    assert got["sequential"][1] == pytest.approx(got["pair"][1], rel=1e-9)
    if beta_per_s == 0.0:  # else the parts of an interval are discounted to times of their own
        assert got["sequential"][0] == pytest.approx(got["pair"][0], rel=1e-9)


@pytest.mark.parametrize("beta_per_s", [0.0, 0.2])
def test_more_control_ticks_without_scaling_change_no_return(beta_per_s):
    returns = []
    for interval_s in (0.5, 1.0, 7.0, 20.0):
        settings = {"interval_s": interval_s, "beta_per_s": beta_per_s, "evaluation": True, "rule": "least-work"}
        env = make("scaling", short("toy", 150, **STEEP), **settings)
        nothing = env.layout.index("scale")
        returns.append(discounted_return(env, lambda env, k=nothing: k, beta_per_s, options={"window": 0}))
    for plain, discounted in returns[1:]:
        assert discounted == pytest.approx(returns[0][1], rel=1e-9)
        assert beta_per_s > 0.0 or plain == pytest.approx(returns[0][0], rel=1e-9)


@pytest.mark.parametrize("evaluation", [False, True])
def test_an_episode_without_a_decision_ends_with_its_first_step(evaluation):
    """It still has its cost: the one legal action does nothing."""
    env = make("scaling", short("toy", 150, **STEEP), interval_s=1000.0, evaluation=evaluation, rule="least-work")
    _, info = env.reset(options={"window": 0})
    assert np.flatnonzero(info["action_mask"]).tolist() == [env.layout.index("scale")]
    assert not env.fleet.over[0]
    _, reward, _, truncated, info = env.step(env.layout.index("scale"))
    assert truncated and np.isfinite(reward)
    if evaluation:
        assert -reward == pytest.approx(sum(terms_of_records(env).values()), rel=1e-9)
    other = make("scaling", short("toy", 150, **STEEP), interval_s=20.0, evaluation=evaluation, rule="least-work")
    assert reward == pytest.approx(play(other, lambda env: env.layout.index("scale"), options={"window": 0})[0])


def test_the_discounted_reward_is_the_integral_over_the_step():
    """With β the reward of a step of many short intervals is Σ e^(−βt)·cost, here from a run read every 2 ms."""
    beta = 0.5
    scenario = short("toy", 60)
    env = make("routing", scenario, beta_per_s=beta, evaluation=True)
    fine = make("cluster", scenario, beta_per_s=beta, evaluation=True, interval_s=0.002)
    choose = by_number(1)

    def act(env: ClusterEnv) -> Any:
        scales = env.layout.scales and env.action_masks()[env.layout.n_routes :].any()
        return env.layout.index("scale") if scales else env.layout.index("pair", *choose(env))

    coarse = discounted_return(env, act, beta, options={"window": 0})[1]
    assert discounted_return(fine, act, beta, options={"window": 0})[1] == pytest.approx(coarse, rel=1e-9)
    undiscounted = make("cluster", scenario, evaluation=True, interval_s=0.002)
    integral = discounted_return(undiscounted, act, beta, options={"window": 0})[1]
    assert integral == pytest.approx(coarse, rel=2e-3)
    assert coarse > discounted_return(undiscounted, act, 0.0, options={"window": 0})[0]


# ---- the reference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["routing", "cluster"])
@pytest.mark.parametrize("reward", REWARDS)
def test_reference_rewards_add_up_to_the_cost_of_the_reference(reward, kind):
    settings = {"reward": reward, "evaluation": True, "split": "test", "reference": "greedy"}
    env = make(kind, short("hetero-links", 150, **STEEP), **settings)
    env.reset(options={"window": 1})
    total, policy, truncated = 0.0, eager_random_policy(0), False
    while not truncated:
        _, _, _, truncated, info = env.step(policy(env))
        total -= info["reference_reward"]
    expected = pdenv.simulate(env.scenario, "greedy", window=1).summary["cost"]["mean"]
    assert info["score"]["reference_cost"] == pytest.approx(expected, rel=1e-9)
    assert total == pytest.approx(expected * 150, rel=1e-9)
    cost = info["metrics"]["cost"]["mean"]
    assert info["score"]["better"] == pytest.approx(1 - cost / expected, rel=1e-9)


@pytest.mark.parametrize("evaluation", [False, True])
def test_an_agent_that_does_as_the_reference_does_earns_the_same(evaluation):
    env = make("routing", short("hetero-links", 150, **STEEP), evaluation=evaluation, reference="greedy")
    agent = PolicyAgent(env, baselines.Greedy())
    observation, _ = env.reset(seed=0)
    truncated, ahead = False, 0.0  # by how much the reference is ahead: it pays for a precision in the step before
    while not truncated:
        observation, reward, _, truncated, info = env.step(agent.predict(observation)[0])
        ahead += info["reference_reward"] - reward
        assert abs(ahead) <= max(short("hetero-links", 150).cost.prices()) + 1e-9
    assert ahead == pytest.approx(0.0, abs=1e-9)
    assert info["score"]["better"] == pytest.approx(0.0, abs=1e-12)
