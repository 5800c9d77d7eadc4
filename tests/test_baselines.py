"""What each scheduler and scaler does that the others do not, on clusters small enough to say what is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_twins import AIM, CLUSTERS, arrivals, cluster, colocated, decode, differing_fields, prefill

from pdenv.errors import InputError
from pdenv.policies import check_policy, describe
from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.records import ARRIVAL, COMPLETED, REJECTED
from pdenv.sim.rules import RULES, SCALERS, find_rule, is_rule, rule_names
from pdenv.sim.state import N_PARAMETERS, OFF
from pdenv.topology import Cluster

NEVER_S = 1e9
FOUR = cluster((prefill(),) * 4, (decode(),) * 4)


def requests(times_s: Any, prompt_tokens: Any, output_tokens: int = 20) -> np.ndarray:
    rows = np.zeros(len(times_s), ARRIVAL)
    rows["arrival_s"], rows["prompt_tokens"] = times_s, prompt_tokens
    rows["output_tokens"] = rows["predicted_tokens"] = output_tokens
    return rows


def run(where: Cluster, rows: np.ndarray, rule: str, aim: Objective = AIM, **parameters: float) -> Simulation:
    sim = Simulation(where, rows, rule=rule, parameters=parameters, objective=aim, seed=1)
    sim.run()
    return sim


def mean_ttft_s(sim: Simulation) -> float:
    return float(np.nanmean(sim.records["first_token_s"] - sim.arrivals["arrival_s"]))


# ---- names and parameters ---------------------------------------------------------------------------------


def test_compositions_take_the_routing_of_one_and_the_scaling_of_the_other():
    rule = find_rule("greedy+queue")
    assert (rule.route, rule.scaler) == (RULES["greedy"].route, SCALERS["queue"].number)
    assert set(rule.parameters) == set(RULES["greedy"].parameters) | set(SCALERS["queue"].parameters)
    left = set(find_rule("three-part+fixed").parameters)
    assert left == {"long_tokens", "receive_limit", "compress_above_s"}
    assert find_rule("three-part+utilisation").parameters == RULES["three-part"].parameters
    assert describe("greedy+forecast")[1]["level_weight"] == SCALERS["forecast"].parameters["level_weight"].default


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("greedy+ques", r"did you mean 'greedy\+queue'"),
        ("gredy", "did you mean 'greedy'"),
        ("colocated+queue", "unknown policy"),
        ("greedy+queue+queue", r"did you mean 'greedy\+queue'"),
        ("+queue", "unknown policy"),
        ("queue", "unknown policy"),
    ],
)
def test_names_that_are_no_rule_are_input_errors_with_the_nearest(name: str, message: str):
    assert not is_rule(name)
    for ask in (find_rule, check_policy):
        with pytest.raises(InputError, match=message):
            ask(name)


def test_parameters_of_a_composition_share_no_row():
    for name in (*RULES, *rule_names(composed=True)):
        rows = [parameter.row for parameter in find_rule(name).parameters.values()]
        assert len(set(rows)) == len(rows)
        assert all(0 <= row < N_PARAMETERS for row in rows)


def test_defaults_lie_in_their_search_space():
    for name in (*RULES, *rule_names(composed=True)):
        for key, it in find_rule(name).parameters.items():
            assert it.low <= it.default <= it.high and it.low < it.high, (name, key)
            assert it.low > 0.0 or not it.log, (name, key)
            assert float(it.default).is_integer() or not it.whole, (name, key)


# ---- routing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uneven", "tight", "beside", "bound-late", "stale"])
def test_size_interval_with_a_cut_beyond_every_prompt_is_greedy(name: str):
    ours = run(CLUSTERS[name], arrivals(name), "size-interval", cut_tokens=262144.0)
    assert differing_fields(ours, run(CLUSTERS[name], arrivals(name), "greedy")) == {}


def test_size_interval_keeps_long_prompts_on_the_fastest_instances():
    where = cluster((prefill(1), prefill(0), prefill(0), prefill(1)), (decode(),) * 2)
    rows = requests(np.arange(100) * 0.04, np.where(np.arange(100) % 5 < 2, 6000, 2500))
    sim = run(where, rows, "size-interval", cut_tokens=4000.0, short_share=0.5, spill_s=NEVER_S)
    long = rows["prompt_tokens"] >= 4000
    assert set(sim.records["prefill"][long]) == {1, 2}  # profile 0 adds 142.1 ms for 4096 tokens, profile 1 142.5 ms
    assert set(sim.records["prefill"][~long]) >= {0, 3}


def test_size_interval_spills_over_to_instances_with_much_less_work():
    rows = requests(np.zeros(12), 6000)
    spilt = run(FOUR, rows, "size-interval", cut_tokens=4000.0, short_share=0.5, spill_s=0.3)
    apart = run(FOUR, rows, "size-interval", cut_tokens=4000.0, short_share=0.5, spill_s=NEVER_S)
    assert set(apart.records["prefill"]) == {2, 3}
    assert set(spilt.records["prefill"]) == {0, 1, 2, 3}


def test_size_interval_spares_short_prompts_the_wait_behind_long_ones():
    """Heavy tails at a load of about 0.8: most requests are short and finish sooner than under greedy."""
    rng = np.random.default_rng(5)
    n = 3000
    rows = requests(np.cumsum(rng.exponential(1 / 17.0, n)), np.where(rng.random(n) < 0.06, 28_000, 1500))
    aim = Objective()
    apart = run(FOUR, rows, "size-interval", aim, cut_tokens=8000.0, short_share=0.5, spill_s=2.0)
    assert mean_ttft_s(apart) < 0.95 * mean_ttft_s(run(FOUR, rows, "greedy", aim))


NEAR_AND_FAR = cluster((prefill(), prefill()), (decode(),))  # 0 reaches the decode instance by NVLink, 1 by an uplink


def test_weights_of_greedy_move_its_choice():
    """A transfer that weighs enough keeps everybody on the near instance, whatever its queue."""
    rows = requests(np.zeros(12), 2000)
    assert set(run(NEAR_AND_FAR, rows, "greedy", Objective(), transfer_weight=100.0).records["prefill"]) == {0}
    even = run(NEAR_AND_FAR, rows, "greedy", Objective(), transfer_weight=0.01).records["prefill"]
    assert np.count_nonzero(even == 0) == 6


def test_topology_score_is_soft_about_links():
    """The near instance until its queue costs more than the thin link."""
    rows = requests(np.zeros(12), 2000)
    near = [
        np.count_nonzero(run(NEAR_AND_FAR, rows, "topology-score", link_weight=weight).records["prefill"] == 0)
        for weight in (0.05, 1.0, 5.0, 20.0)
    ]
    assert near == [6, 7, 10, 12]


def test_pull_never_queues_behind_a_busy_instance():
    """Without a limit on holding, a prefill instance gets its next request only when it has done the last."""
    where = replace(FOUR, hold_max_s=NEVER_S)
    rows = arrivals("alike")[:600]
    records = run(where, rows, "pull").records
    for p in range(4):
        here = np.sort(records[records["prefill"] == p], order="dispatch_s")
        assert (here["dispatch_s"][1:] >= here["prefill_end_s"][:-1] - 1e-9).all()
    assert np.count_nonzero(records["dispatch_s"] > rows["arrival_s"] + 1e-6) > 100
    order = np.lexsort((np.arange(len(rows)), records["dispatch_s"]))
    assert (np.diff(order) > 0).all()  # first come, first served


def test_pull_sends_on_what_has_been_held_too_long():
    records = run(replace(FOUR, hold_max_s=0.05), requests(np.zeros(60), 4000), "pull").records
    assert (records["status"] == COMPLETED).all()


def test_admission_rejects_only_what_is_predicted_to_miss():
    limit_s = 0.5
    rows = requests(np.zeros(60), 4000)
    rows["arrival_s"][40:] = 10.0  # when all is idle again
    aim = Objective(ttft_limit_s=limit_s)
    open_ = replace(FOUR, allow_reject=True)
    records = run(open_, rows, "admission", aim).records
    one_s = 0.008 + 4000 * 3.1e-5 + 9e-10 * 4000**2  # a step of one prompt; each ahead adds as much less 8 ms
    in_time = 4 * (1 + int((limit_s - one_s) / (one_s - 0.008)))
    assert np.count_nonzero(records["status"][:40] == COMPLETED) == in_time
    assert np.count_nonzero(records["status"][40:] == COMPLETED) == in_time
    assert set(records["status"]) == {COMPLETED, REJECTED}
    more = run(open_, rows, "admission", aim, admit_factor=2.0).records
    assert np.count_nonzero(more["status"] == COMPLETED) > 2 * in_time


def test_admission_is_greedy_where_nothing_may_be_rejected():
    ours = run(CLUSTERS["uneven"], arrivals("uneven"), "admission", admit_factor=0.5)
    assert differing_fields(ours, run(CLUSTERS["uneven"], arrivals("uneven"), "greedy")) == {}


def test_conditional_keeps_short_prompts_on_one_instance_while_it_has_time():
    where = cluster((prefill(),) * 3, (decode(),) * 3, (colocated(),))
    rows = requests(np.arange(40) * 0.25, np.tile([200, 5000], 20))
    modes = run(where, rows, "conditional", local_tokens=1000.0, queue_s=NEVER_S).records["mode"]
    assert set(modes[::2]) == {2} and set(modes[1::2]) == {1}
    crowd = requests(np.zeros(60), 900)
    modes = run(where, crowd, "conditional", local_tokens=1000.0, local_queue_s=0.2).records["mode"]
    assert 0 < np.count_nonzero(modes == 2) < 20


def test_conditional_relieves_a_busy_prefill_pool():
    where = cluster((prefill(),), (decode(),), (colocated(),))
    rows = requests(np.zeros(30), 5000)
    modes = run(where, rows, "conditional", local_tokens=1.0, queue_s=0.5, local_queue_s=NEVER_S).records["mode"]
    assert modes[0] == 1 and set(modes[5:]) == {2}


def test_conditional_without_colocated_instances_is_greedy():
    ours = run(CLUSTERS["tight"], arrivals("tight"), "conditional")
    assert differing_fields(ours, run(CLUSTERS["tight"], arrivals("tight"), "greedy")) == {}


def test_join_idle_queue_finds_the_idle_instance():
    rows = requests(np.linspace(0.0, 0.03, 4), 4000)
    records = run(FOUR, rows, "join-idle-queue").records
    assert sorted(records["prefill"]) == sorted(records["decode"]) == [0, 1, 2, 3]


def test_power_of_two_is_between_random_and_the_shortest_queue():
    where = cluster((prefill(),) * 8, (decode(),) * 8, contention=False)
    rng = np.random.default_rng(11)
    rows = requests(np.cumsum(rng.exponential(1 / 62.0, 4000)), 3000)  # 0.8 of what prefill can do
    random, two, shortest = (
        mean_ttft_s(run(where, rows, rule)) for rule in ("random", "power-of-two", "least-requests")
    )
    assert shortest < 0.9 * two and two < 0.6 * random


def test_least_tokens_weighs_a_long_prompt():
    records = run(
        cluster((prefill(),) * 2, (decode(),) * 2), requests([0.0] * 4, [8000, 500, 500, 500]), "least-tokens"
    )
    assert list(records.records["prefill"]) == [0, 1, 1, 1]


# ---- scaling ----------------------------------------------------------------------------------------------

TICK_S = 2.0
POOLS = {
    "prefills": tuple(prefill(startup_s=4.0, active=i < 2) for i in range(6)),
    "decodes": tuple(replace(decode(), startup_s=4.0, active=i < 2) for i in range(4)),
}
ELASTIC = cluster(POOLS["prefills"], POOLS["decodes"], scaling_interval_s=TICK_S, drain_max_s=5.0)


def poisson(rate_per_s: float, seconds: float, prompt_tokens: int, seed: int = 2, since_s: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    times = since_s + np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    return requests(times, prompt_tokens, 100)


def sizes(where: Cluster, rows: np.ndarray, rule: str, until_s: float, **parameters: float) -> np.ndarray:
    """`(ticks, 2)` prefill and decode instances that are on after each control tick."""
    sim = Simulation(where, rows, rule=rule, parameters=parameters, objective=AIM)
    seen = []
    for tick in range(1, int(until_s / where.scaling_interval_s)):
        sim.run(tick * where.scaling_interval_s + 0.5)
        on = [np.count_nonzero(sim.block.views[pool]["state"] != OFF) for pool in ("prefill", "batch")]
        seen.append(on)
    return np.array(seen)


@pytest.mark.parametrize("scaling", ["queue", "forecast"])
@pytest.mark.parametrize("rate_per_s", [3.0, 7.0, 11.0, 16.0, 22.0])
@pytest.mark.parametrize("route", ["greedy", "pull"])
def test_constant_load_does_not_make_the_pools_oscillate(route: str, scaling: str, rate_per_s: float):
    """After the first minute: what shrinking leaves carries the load (the fault in ai-dynamo/dynamo pull 9294)."""
    on = sizes(ELASTIC, poisson(rate_per_s, 400.0, 4000), f"{route}+{scaling}", 400.0)[30:]
    moves = np.abs(np.diff(on, axis=0)).sum(axis=0)
    assert (moves <= 6).all(), moves


def test_queue_scaling_answers_a_burst_that_utilisation_is_slow_on():
    calm = poisson(6.0, 60.0, 4000)
    burst = poisson(26.0, 60.0, 4000, seed=3, since_s=60.0)
    rows = np.concatenate((calm, burst))
    rows.sort(order="arrival_s")
    by_queue = sizes(ELASTIC, rows, "greedy+queue", 90.0)[:, 0]
    by_use = sizes(ELASTIC, rows, "greedy+utilisation", 90.0)[:, 0]
    assert by_queue[-1] > by_use[-1]
    waits = [mean_ttft_s(run(ELASTIC, rows, f"greedy+{scaling}")) for scaling in ("queue", "utilisation")]
    assert waits[0] < 0.7 * waits[1]


def test_queue_scaling_counts_what_waits_at_the_gateway():
    """Under `pull` there is no backlog on the instances."""
    rows = requests(np.linspace(0.0, 1.0, 300), 4000)
    on = sizes(replace(ELASTIC, hold_max_s=NEVER_S), rows, "pull+queue", 12.0)[:, 0]
    assert list(on[:4]) == [3, 4, 5, 6]


def test_forecast_scaling_adds_before_a_rising_load_overloads_the_pool():
    """A ramp over 100 s: the instance is asked for while the pool still keeps up."""
    rates = np.linspace(3.0, 20.0, 100)
    rng = np.random.default_rng(4)
    rows = requests(np.sort(np.concatenate([k + rng.random(int(rate)) for k, rate in enumerate(rates)])), 4000)
    ahead, behind = (run(ELASTIC, rows, f"greedy+{scaling}") for scaling in ("forecast", "utilisation"))
    assert mean_ttft_s(ahead) < 0.7 * mean_ttft_s(behind)


@pytest.mark.parametrize("scaling", ["queue", "forecast"])
def test_pools_shrink_when_the_load_is_gone_and_keep_their_last_instance(scaling: str):
    where = replace(
        ELASTIC,
        prefill=tuple(replace(it, active=True) for it in ELASTIC.prefill),
        decode=tuple(replace(it, active=True) for it in ELASTIC.decode),
    )
    on = sizes(where, poisson(1.0, 120.0, 1000), f"greedy+{scaling}", 120.0)
    assert list(on[0]) == [6, 4] and list(on[-1]) == [1, 1]


@pytest.mark.parametrize("scaling", ["queue", "forecast"])
def test_what_warms_up_counts_as_capacity_on_its_way(scaling: str):
    """A start-up of many ticks: the backlog of a burst must not ask for an instance at every one of them."""
    slow = replace(ELASTIC, prefill=tuple(replace(it, startup_s=40.0) for it in ELASTIC.prefill))
    rows = np.concatenate((requests(np.full(20, 0.5), 4000, 100), poisson(4.0, 60.0, 4000, since_s=1.0)))
    assert sizes(slow, rows, f"greedy+{scaling}", 40.0)[:, 0].max() <= 4


@pytest.mark.parametrize("scaling", ["queue", "forecast"])
def test_a_pool_that_the_budget_keeps_small_does_not_stop_the_other_from_shrinking(scaling: str):
    prefills = tuple(replace(it, active=i < 2) for i, it in enumerate(ELASTIC.prefill))
    decodes = tuple(replace(it, active=True) for it in ELASTIC.decode)
    where = replace(ELASTIC, prefill=prefills, decode=decodes, gpu_budget=6)
    on = sizes(where, poisson(16.0, 200.0, 4000), f"greedy+{scaling}", 120.0)
    assert list(on[0]) == [2, 4] and on[-1, 0] >= 3 and on[-1, 1] <= 2


def test_fixed_pools_stay():
    on = sizes(ELASTIC, poisson(20.0, 40.0, 4000), "three-part+fixed", 40.0)
    assert (on == [2, 2]).all()
