"""Every readable scheduler decides like its compiled rule: records of whole runs are equal, bit for bit."""

from __future__ import annotations

import inspect
import pathlib
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

import baselines
from baselines.composed import Composed
from baselines.greedy import PredictedCost, pairs
from baselines.scaling import FixedScaling, ForecastScaling, QueueScaling, UtilisationScaling
from pdenv import policies
from pdenv.errors import InputError
from pdenv.policies import drive, load_policy, policy_names
from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.records import ARRIVAL, COMPLETED, RECORD, REJECTED
from pdenv.sim.rules import RULES, SCALERS
from pdenv.sim.state import ACTIVE
from pdenv.sim.view import HOLD, WAIT, Route, Scale, see, see_request
from pdenv.topology import (
    N_PRECISIONS,
    Cluster,
    ColocatedInstance,
    DecodeInstance,
    Path,
    Port,
    PrefillInstance,
    Profile,
    StepLaw,
)

N_REQUESTS = 1500
SEED = 2026
TWINS = {twin.name: twin for twin in map(baselines.__dict__.get, baselines.__all__)}
KV_BYTES = (160_000, 80_000, 40_000, 45_000)  # a token
AIM = Objective(
    ttft_limit_s=0.4,
    tpot_limit_s=0.03,
    ttft_step=0.5,
    ttft_slope_per_s=2.0,
    tpot_step=0.25,
    tpot_slope_per_s=30.0,
    w_transfer=1.5,
    w_decode=0.7,
    quality=(0.0, 0.002, 0.004, 0.003),
)

PROFILES = (
    Profile(StepLaw(0.008, 3.1e-5, (9e-10, 0.0, 0.0, 0.0)), StepLaw(0.007, 9e-5, (6e-8, 4e-8, 3e-8, 3.2e-8)), 0.3),
    Profile(
        StepLaw(c_s=(7e-10, 0.0, 0.0, 0.0), table_x=(64.0, 900.0, 5000.0), table_s=(0.011, 0.034, 0.17)),
        StepLaw(c_s=(5e-8, 4e-8, 3e-8, 3e-8), table_x=(1.0, 8.0, 48.0), table_s=(0.0081, 0.0087, 0.0133)),
        0.0,
    ),
)


def prefill(profile: int = 0, **changes: Any) -> PrefillInstance:
    facts = {"staging_bytes": 9_000_000_000, "kv_bytes_per_token": KV_BYTES[0], "startup_s": 1.5}
    return PrefillInstance(profile, 1, max_batch_tokens=8192, max_batch_requests=16, **(facts | changes))


def decode(profile: int = 0, store: int = 0, gigabytes: float = 60.0, **changes: Any) -> DecodeInstance:
    return DecodeInstance(profile, 1, int(gigabytes * 1e9), store, max_batch=64, startup_s=1.0, **changes)


def colocated(profile: int = 0, store: int = 0) -> ColocatedInstance:
    return ColocatedInstance(profile, 1, 40_000_000_000, store, max_batch=32, max_batch_tokens=2048)


def network(n_prefill: int, n_decode: int) -> dict[str, Any]:
    """NICs of unequal rates in two racks joined by thin uplinks; instance 0 of each pool also by NVLink."""
    rates = [(16e9, 25e9, 9e9)[i % 3] for i in range(n_prefill + n_decode)]
    ports = [Port(f"nic {i}", 0, rate, rate) for i, rate in enumerate(rates)]
    first = len(ports)
    ports += [Port(f"from rack {k}", 1, rate, rate) for k, rate in enumerate((4.1e9, 3e9))]
    ports.append(Port("nvlink", 3, 200e9, 200e9))
    cost = (0.0, 2e-12, 5e-12, 4e-12)

    def path(p: int, d: int) -> Path:
        if p == d == 0:
            return Path((first + 2,), 1e-5, cost, 3)
        if p % 2 == d % 2:
            return Path((p, n_prefill + d), 1e-4, cost, 0)
        return Path((p, first + p % 2, n_prefill + d), 3e-4, cost, 1)

    return {
        "ports": tuple(ports),
        "paths": tuple(tuple(path(p, d) for d in range(n_decode)) for p in range(n_prefill)),
    }


def cluster(
    prefills: tuple[PrefillInstance, ...],
    decodes: tuple[DecodeInstance, ...],
    colocateds: tuple[ColocatedInstance, ...] = (),
    **rules: Any,
) -> Cluster:
    """Quality tiers: anything, BF16 or FP8, BF16 only."""
    pools = {"prefill": prefills, "decode": decodes, "colocated": colocateds}
    rules = {"tier_precisions": (0b1111, 0b0011, 0b0001)} | network(len(prefills), len(decodes)) | rules
    return Cluster(layers=40, kv_bytes_per_token=KV_BYTES, profiles=PROFILES, **pools, **rules)


ALIKE = (prefill(), prefill(), prefill(), prefill()), (decode(), decode(), decode(), decode())
MIXED = (
    (prefill(), prefill(1), prefill(), prefill(1)),
    (decode(0, 0), decode(1, 1), decode(0, 0), decode(1, 2, 30.0)),
)
TIGHT = (
    (prefill(), prefill(1), prefill()),
    (decode(0, 0, 5.0), decode(1, 1, 2.6), decode(0, 0, 4.9)),
)
TIGHTER = TIGHT[0], (decode(0, 0, 3.6), decode(1, 1, 1.8), decode(0, 0, 3.4))
ELASTIC = (
    (prefill(), prefill(1), prefill(active=False), prefill(1, active=False)),
    (decode(0, 0, 3.6), decode(1, 0, 3.4, active=False), decode(0, 0, 3.4, active=False)),
)

CLUSTERS: dict[str, Cluster] = {
    "alike": cluster(*ALIKE),
    "uneven": cluster(*MIXED, reserve=0, layerwise=True),
    "stale": cluster(*MIXED, scrape_interval_s=0.5, scrape_delay_s=0.2, control_plane_delay_s=0.004),
    "tight": cluster(*TIGHT, hold_max_s=0.7, mixed_store=True),
    "stale-tight": cluster(*TIGHTER, scrape_interval_s=0.11, scrape_delay_s=0.05, reserve=1, layerwise=True),
    "elastic": cluster(*ELASTIC, scaling_interval_s=0.5, drain_max_s=0.4, gpu_budget=6),
    "picky": cluster(*MIXED, allow_reject=True, hold_max_s=3.0),
    "beside": cluster(*(pool[:3] for pool in MIXED), (colocated(), colocated(1, 1)), receive_bypass=True),
    "bound-late": cluster(*TIGHT, (colocated(1),), binding=1),
    "colocated-only": cluster((), (), (colocated(), colocated(), colocated(1, 1))),
}
#: Requests a second, near what each cluster can do.
RATES = {"alike": 26.0, "uneven": 26.0, "stale": 24.0, "tight": 20.0, "stale-tight": 18.0}
RATES |= {"picky": 27.0, "elastic": 10.0, "beside": 26.0, "bound-late": 20.0, "colocated-only": 6.0}


@cache
def arrivals(name: str) -> np.ndarray:
    """Bursty and heavy-tailed, with simultaneous arrivals and equal prompts, so that there are ties."""
    rng = np.random.default_rng(7)
    rows = np.zeros(N_REQUESTS, ARRIVAL)
    busy = np.repeat(rng.choice([0.5, 1.0, 2.0], N_REQUESTS // 50), 50)
    t = np.cumsum(rng.exponential(1.0 / (RATES[name] * busy)))
    together = rng.random(N_REQUESTS) < 0.2
    rows["arrival_s"] = np.where(together, np.floor(t * 4.0) / 4.0, t)
    rows["arrival_s"].sort()
    prompts = np.minimum(rng.lognormal(7.2, 1.1, N_REQUESTS).astype(np.int64) + 1, 30_000)
    rows["prompt_tokens"] = np.where(rng.random(N_REQUESTS) < 0.3, 1024, prompts)
    rows["output_tokens"] = np.minimum(rng.geometric(1 / 90, N_REQUESTS), 600)
    rows["predicted_tokens"] = np.maximum(rows["output_tokens"] + rng.integers(-40, 40, N_REQUESTS), 1)
    rows["tier"] = rng.integers(0, len(CLUSTERS[name].tier_precisions), N_REQUESTS)
    rows["priority"] = rng.integers(0, 2, N_REQUESTS)
    return rows


@cache
def compiled_run(name: str, rule: str) -> Simulation:
    sim = Simulation(CLUSTERS[name], arrivals(name), rule=rule, seed=SEED, objective=AIM)
    sim.run()
    return sim


def twin_run(name: str, policy: policies.Policy) -> Simulation:
    sim = Simulation(CLUSTERS[name], arrivals(name), rule=None, objective=AIM)
    drive(sim, policy)
    return sim


def make_twin(rule: str, **parameters: float) -> policies.Policy:
    seeded = "seed" in inspect.signature(TWINS[rule]).parameters
    return TWINS[rule](SEED) if seeded else TWINS[rule](**parameters)


def differing_fields(a: Simulation, b: Simulation) -> dict[str, int]:
    """Record fields, with in how many requests they differ."""
    different = {}
    for field in RECORD.names:
        same = (a.records[field] == b.records[field]) | (
            (a.records[field] != a.records[field]) & (b.records[field] != b.records[field])
        )
        different[field] = int(np.count_nonzero(~same))
    return {field: n for field, n in different.items() if n}


CASES = [
    (name, rule)
    for name in CLUSTERS
    for rule in RULES
    if (rule == "colocated" or name != "colocated-only") and (rule != "colocated" or CLUSTERS[name].colocated)
    if name != "picky" or rule in ("admission", "pull", "size-interval")
]


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_twin_and_compiled_rule_leave_the_same_records(name: str, rule: str):
    compiled, twin = compiled_run(name, rule), twin_run(name, make_twin(rule))
    assert differing_fields(compiled, twin) == {}
    assert compiled.now == twin.now
    answered = np.isin(twin.records["status"], (COMPLETED, REJECTED) if name == "picky" else (COMPLETED,))
    assert np.count_nonzero(answered) > 0.9 * N_REQUESTS


#: The twins of the scalers, made with their defaults.
SCALINGS = {
    "fixed": FixedScaling,
    "utilisation": lambda: UtilisationScaling((0.45, 0.92), (0.25, 0.85), 3.0),
    "queue": QueueScaling,
    "forecast": ForecastScaling,
}
STALE_ELASTIC = replace(CLUSTERS["elastic"], scrape_interval_s=0.3, scrape_delay_s=0.1)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("scaling", SCALERS)
@pytest.mark.parametrize("route", ["greedy", "pull", "three-part"])
def test_composed_twin_and_compiled_composition_leave_the_same_records(route: str, scaling: str, stale: bool):
    rows, where = arrivals("elastic"), STALE_ELASTIC if stale else CLUSTERS["elastic"]
    compiled = Simulation(where, rows, rule=f"{route}+{scaling}", objective=AIM)
    compiled.run()
    twin = Simulation(where, rows, rule=None, objective=AIM)
    drive(twin, Composed(make_twin(route), SCALINGS[scaling]()))
    assert differing_fields(compiled, twin) == {}
    assert (compiled.totals().scalings > 3) == (scaling != "fixed")


#: Other than the defaults, for rules whose parameters change what they do and not only how much.
TUNED = {
    "greedy": {"prefill_weight": 1.7, "transfer_weight": 0.6, "decode_weight": 5.0},
    "size-interval": {"cut_tokens": 2000.0, "short_share": 0.3, "spill_s": 0.05, "decode_weight": 3.0},
    "topology-score": {"link_weight": 6.0, "room_weight_s": 0.3},
    "conditional": {"local_tokens": 3000.0, "queue_s": 0.3, "local_queue_s": 0.2, "transfer_weight": 2.0},
    "pull": {"pull_below_s": 0.1, "prefill_weight": 0.5},
    "admission": {"admit_factor": 0.8, "prefill_weight": 0.5},
}


@pytest.mark.parametrize("name", ["picky", "beside", "stale-tight"])
@pytest.mark.parametrize("rule", TUNED)
def test_twin_with_other_parameters_follows_the_compiled_rule_with_them(rule: str, name: str):
    compiled = Simulation(CLUSTERS[name], arrivals(name), rule=rule, parameters=TUNED[rule], objective=AIM)
    compiled.run()
    assert differing_fields(compiled, twin_run(name, make_twin(rule, **TUNED[rule]))) == {}
    assert differing_fields(compiled, compiled_run(name, rule))


def test_pool_rules_fall_back_to_colocated_instances_where_there_are_no_pools():
    for rule in set(RULES) - {"colocated"}:
        compiled = compiled_run("colocated-only", rule)
        assert differing_fields(compiled, twin_run("colocated-only", make_twin(rule))) == {}
        assert (compiled.records["colocated"] >= 0).all()


# ---- the runs above exercise what they claim to


class Spy:
    """Passes questions on to a policy and counts the answers."""

    def __init__(self, policy: policies.Policy) -> None:
        self.name, self.policy = policy.name, policy
        self.kinds: Counter[str] = Counter()
        self.scales: Counter[Scale] = Counter()

    def route(self, view, request):
        answer = self.policy.route(view, request)
        self.kinds[answer.kind.value] += 1
        return answer

    def pair(self, view, request):
        self.kinds["paired later"] += 1
        return self.policy.pair(view, request)

    def scale(self, view):
        answer = self.policy.scale(view)
        self.scales[answer] += 1
        return answer


def spied(name: str, rule: str) -> tuple[Spy, np.ndarray]:
    spy = Spy(make_twin(rule))
    return spy, twin_run(name, spy).records


@pytest.mark.parametrize("name", ["tight", "stale-tight"])
def test_full_receive_queues_make_three_part_hold(name: str):
    spy = Spy(TWINS["three-part"](receive_limit=1.0))
    twin = twin_run(name, spy)
    assert spy.kinds["hold"] > 100
    compiled = Simulation(
        CLUSTERS[name], arrivals(name), rule="three-part", parameters={"receive_limit": 1.0}, objective=AIM
    )
    compiled.run()
    assert differing_fields(compiled, twin) == {}


def test_elastic_run_scales_both_pools_up_and_down():
    spy, records = spied("elastic", "three-part")
    assert {1, -1} <= {s.prefill for s in spy.scales} and {1, -1} <= {s.decode for s in spy.scales}
    assert set(records["prefill"]) >= {0, 1, 2} and set(records["decode"]) >= {0, 1}
    assert spy.kinds["paired later"] > 0


def test_late_binding_run_pairs_every_request_later():
    spy, records = spied("bound-late", "three-part")
    in_pools = records["mode"] == 1
    longer = arrivals("bound-late")["output_tokens"] > 1  # one token ends with the prefill
    assert spy.kinds["paired later"] == np.count_nonzero(in_pools & longer) > 1000


def test_runs_use_several_precisions_and_colocated_instances():
    assert set(spied("elastic", "three-part")[1]["wire_precision"]) >= {0, 1, 2}
    assert set(spied("tight", "greedy")[1]["store_precision"]) >= {0, 1, 2}
    assert spied("beside", "greedy")[0].kinds["colocated"] > 20
    assert spied("beside", "conditional")[0].kinds["colocated"] > 100


def test_runs_hold_and_reject():
    assert spied("picky", "pull")[0].kinds["hold"] > 500
    assert 20 < spied("picky", "admission")[0].kinds["reject"] < 1000


# ---- a small change in a twin is noticed


class LastOfEqualQueues(baselines.LeastRequests):
    def route(self, view, request):
        last_first = replace(request, prefills=request.prefills[::-1])
        return super().route(view, last_first)


class StandingRoundRobin(baselines.RoundRobin):
    def pair(self, view, request):
        return request.decodes[request.wire][0]


class FirstOfEqualChoicesReversed(baselines.Greedy):
    def route(self, view, request):
        choices = list(pairs(request, request.prefills))
        costs = [PredictedCost().predict(view, request, c) for c in choices]
        best = min(costs, default=None)
        equals = [c for c, cost in zip(choices, costs, strict=True) if cost == best]
        return equals[-1] if len(equals) > 1 else super().route(view, request)


MUTANTS = [
    ("alike", LastOfEqualQueues()),
    ("bound-late", StandingRoundRobin()),
    ("alike", FirstOfEqualChoicesReversed()),
    ("uneven", baselines.Random(SEED + 1)),
    ("uneven", baselines.KvAware(long_tokens=4300.0)),
    ("tight", baselines.ThreePart(receive_limit=5.0)),
    ("uneven", baselines.ThreePart(compress_above_s=0.19)),
    ("elastic", baselines.ThreePart(quiet_ticks=2.0)),
    ("elastic", baselines.ThreePart(decode_low=0.2)),
    ("alike", baselines.SizeInterval(cut_tokens=6000.0)),
    ("uneven", baselines.SizeInterval(short_share=0.7)),
    ("uneven", baselines.SizeInterval(cut_tokens=3000.0)),
    ("picky", baselines.Pull(pull_below_s=0.03)),
    ("picky", baselines.Admission(admit_factor=1.2)),
    ("beside", baselines.Conditional(local_tokens=1100.0)),
    ("beside", baselines.Conditional(queue_s=0.1)),
    ("uneven", baselines.PowerOfTwo(SEED + 1)),
    ("uneven", baselines.JoinIdleQueue(SEED + 1)),
    ("uneven", baselines.TopologyScore(room_weight_s=0.9)),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_changed_twin_is_found_out(name: str, mutant: policies.Policy):
    assert differing_fields(compiled_run(name, mutant.name), twin_run(name, mutant))


# ---- parameters, names, loading


def defaults_of(twin: Any) -> dict[str, float]:
    return {k: v.default for k, v in inspect.signature(twin).parameters.items() if k != "seed"}


def test_every_rule_has_a_twin_with_the_same_parameters_and_defaults():
    assert list(TWINS.keys()) and set(TWINS) == set(RULES)
    for name, twin in TWINS.items():
        assert defaults_of(twin) == {key: it.default for key, it in RULES[name].parameters.items()}
    assert set(SCALINGS) == set(SCALERS)
    for name in ("fixed", "queue", "forecast"):
        assert defaults_of(SCALINGS[name]) == {key: it.default for key, it in SCALERS[name].parameters.items()}


def offer(monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    found = [EntryPoint(name.replace("_", "-"), value, policies.GROUP) for name, value in entries.items()]
    monkeypatch.setattr(policies, "entry_points", lambda group: found)


def test_outside_policies_are_listed_after_compiled_ones_and_loaded(monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, mine="baselines.kv_aware:KvAware", random="baselines.oblivious:Random")
    assert policy_names() == (*RULES, "mine")
    mine = load_policy("mine", {"long_tokens": 9.0}, seed=3)
    assert isinstance(mine, baselines.KvAware) and mine.pairing.long_tokens == 9.0
    assert load_policy("random", seed=5).stream.state == 5


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("mime", {}, "did you mean 'mine'"),
        ("mine", {"long_token": 1.0}, "did you mean 'long_tokens'"),
        ("gone", {}, "cannot load baselines.nothing:X"),
    ],
)
def test_policies_that_cannot_be_loaded_are_input_errors(monkeypatch, name, parameters, message):
    offer(monkeypatch, mine="baselines.kv_aware:KvAware", gone="baselines.nothing:X")
    with pytest.raises(InputError, match=message):
        load_policy(name, parameters)


# ---- what policies see and may do


class Fixed(baselines.LeastRequests):
    """Gives the same answer always."""

    name = "fixed"

    def __init__(self, route: Route, prefill_delta: int = 0) -> None:
        self._route, self._scale = route, Scale(prefill_delta)

    def route(self, view, request):
        return self._route

    def pair(self, view, request):
        return 99

    def scale(self, view):
        return self._scale


@pytest.mark.parametrize(
    ("name", "policy", "message"),
    [
        ("alike", Fixed(Route.pair(0, 7, 0)), "prefill 0 with decode 7 in precision 0 is not legal"),
        ("alike", Fixed(Route.colocated(0)), "co-located instance 0 is not legal"),
        ("alike", Fixed(HOLD), "'hold' is not legal"),
        ("bound-late", Fixed(Route.pair(0, 0, 0)), "is not legal"),
        ("bound-late", Fixed(Route.pair(0, -1, 0)), "decode instance 99 for request"),
        ("elastic", Fixed(Route.pair(0, 0, 0), prefill_delta=2), "deltas are"),
    ],
)
def test_illegal_answers_are_input_errors_that_name_the_policy(name, policy, message):
    rows = arrivals(name)[:40].copy()
    rows["tier"], rows["prompt_tokens"] = 0, 1000
    with pytest.raises(InputError, match="policy 'fixed'.*" + message):
        drive(Simulation(CLUSTERS[name], rows, rule=None), policy)


def test_drive_stops_at_a_time_and_goes_on():
    rows = arrivals("alike")[:100]
    sim = Simulation(CLUSTERS["alike"], rows, rule=None)
    policy = baselines.LeastWork()
    assert not drive(sim, policy, until_s=1.0)
    assert sim.now == 1.0 and np.isnan(sim.records["dispatch_s"][rows["arrival_s"] > 1.0]).all()
    assert drive(sim, policy) and (sim.records["status"] == COMPLETED).all()


def test_the_example_in_the_docs_runs():
    page = (pathlib.Path(__file__).parents[1] / "docs" / "schedulers.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python")[1].split("```")[0], names)
    sim = Simulation(CLUSTERS["bound-late"], arrivals("bound-late")[:50], rule=None)
    with pytest.raises(InputError, match="policy 'best-of-few'"):  # it chooses decode instances at once
        drive(sim, names["BestOfFew"]())
    sim = Simulation(CLUSTERS["elastic"], arrivals("elastic")[:300], rule=None)
    assert drive(sim, names["BestOfFew"]())


def test_waiting_for_ever_ends_nothing_and_raises_nothing():
    sim = Simulation(CLUSTERS["alike"], arrivals("alike")[:3], rule=None)
    assert not drive(sim, Fixed(WAIT), until_s=20.0)
    assert np.isnan(sim.records["dispatch_s"]).all()


def seen_with_outputs(output_tokens: int) -> list[tuple]:
    """Views of the first 60 decisions, in which nobody can have finished yet."""
    rows = arrivals("uneven").copy()
    rows["output_tokens"], rows["predicted_tokens"] = output_tokens, 50
    sim = Simulation(CLUSTERS["uneven"], rows, rule=None)
    policy, views = baselines.LeastWork(), []
    while len(views) < 60 and sim.step():
        view, request = see(sim), see_request(sim)
        views.append((view, str(request)))
        route = policy.route(view, request)
        policies.decisions.dispatch(sim, route.prefill, route.decode, route.precision)
    return views


def test_true_output_lengths_cannot_be_seen():
    assert seen_with_outputs(5000) == seen_with_outputs(9000)


def test_view_shows_hand_computed_loads():
    rows = arrivals("alike")[:3].copy()
    rows["arrival_s"], rows["prompt_tokens"] = 0.0, (100, 200, 300)
    rows["predicted_tokens"], rows["tier"] = 10, 2
    sim = Simulation(CLUSTERS["alike"], rows, rule=None)
    for number in range(3):
        assert sim.step()
        view, request = see(sim), see_request(sim)
        assert (request.number, request.prompt_tokens) == (number, 100 * (number + 1))
        assert request.precisions == (0,)
        assert request.prefills == (0, 1, 2, 3) and request.decodes == {0: (0, 1, 2, 3)}
        policies.decisions.dispatch(sim, 1, 2, 0)
    assert view.prefill[1].requests == 2 and view.prefill[1].tokens == 300
    assert view.prefill[1].work_s == pytest.approx(3.1e-5 * 300 + 9e-10 * (100**2 + 200**2), rel=1e-12)
    assert view.decode[2][:4] == (2, 300 + 2 * 10, 300 * KV_BYTES[0], 0)
    assert view.decode_state == (ACTIVE,) * 4 and view.port_flows == (0,) * 11
    assert len(KV_BYTES) == N_PRECISIONS and view.prefill[0] == (0, 0, 0, 0, 0.0)
