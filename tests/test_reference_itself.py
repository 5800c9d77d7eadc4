"""The reference simulator against values worked out by hand, and against itself on random cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from reference import Reference, simulate
from reference_parts import base_time, fair_rates
from scripted import Route, Script, mix
from strategies import ALL_FEATURES, Case, cases, draw_case, features

from pdenv.sim.records import ARRIVAL, COMPLETED, FAILED_OOM, REJECTED, TOO_LARGE, UNFINISHED
from pdenv.topology import (
    Cluster,
    ColocatedInstance,
    DecodeInstance,
    Path,
    Port,
    PrefillInstance,
    Profile,
    StepLaw,
)

KV = (1000, 500, 250, 250)  # bytes a token; at 1 MB/s a bf16 token takes 1 ms
FLAT = Profile(StepLaw(0.01, 0.001), StepLaw(0.01))  # prefill 10 ms + 1 ms a token; iterations of 10 ms
CONTEXT = Profile(StepLaw(0.01, 0.001), StepLaw(0.005, 0.001, (1e-4,) * 4))


@dataclass(frozen=True)
class Told(Script):
    """Does what it is told: a decision for each request, and scaling decisions by tick."""

    seed: int = 0
    routes: tuple[Route, ...] = ()
    scaling: tuple[tuple[int, tuple[int, int, int]], ...] = ()

    def route(
        self,
        request: int,
        attempt: int,
        pairs: list[tuple[int, int, int]],
        colocated: list[int],
        may_hold: bool,
        may_reject: bool,
    ) -> Route:
        choice = self.routes[request]
        if choice[0] == "hold" and not may_hold:
            return ("pair", *pairs[0])
        return choice

    def pair(self, request: int, attempt: int, decodes: list[int]) -> int:
        return decodes[-1]

    def scale(self, tick: int) -> tuple[int, int, int]:
        return dict(self.scaling).get(tick, (0, 0, 0))


def cluster(prefills: int = 1, decodes: int = 1, rate: float = 1e6, profile: Profile = FLAT, **changes: Any) -> Cluster:
    """Instances with a NIC each of `rate` bytes/s, no latency, and room for everything."""
    ports = [Port(f"egress {p}", 0, rate, rate) for p in range(prefills)]
    ports += [Port(f"ingress {d}", 0, rate, rate) for d in range(decodes)]
    one = PrefillInstance(0, 1, 10**9, KV[0], 10**6, 1)
    plain = Cluster(
        layers=4,
        kv_bytes_per_token=KV,
        profiles=(profile,),
        prefill=(one,) * prefills,
        decode=(DecodeInstance(0, 1, 10**9, 0, 64),) * decodes,
        colocated=(),
        ports=tuple(ports),
        paths=tuple(
            tuple(Path((p, prefills + d), 0.0, (0.0,) * 4, 0) for d in range(decodes)) for p in range(prefills)
        ),
    )
    return replace(plain, **changes)


def with_prefill(c: Cluster, **changes: Any) -> Cluster:
    return replace(c, prefill=tuple(replace(p, **changes) for p in c.prefill))


def with_decode(c: Cluster, **changes: Any) -> Cluster:
    return replace(c, decode=tuple(replace(d, **changes) for d in c.decode))


def requests(*rows: tuple[float, int, int]) -> np.ndarray:
    """(arrival, prompt, output) each."""
    arrivals = np.zeros(len(rows), ARRIVAL)
    for row, (t, prompt, output) in zip(arrivals, rows, strict=True):
        row["arrival_s"], row["prompt_tokens"], row["output_tokens"] = t, prompt, output
    return arrivals


NO_BLOCKS = np.zeros(0, np.int64)
P0: Route = ("pair", 0, 0, 0)
P1: Route = ("pair", 1, 0, 0)


def run(c: Cluster, arrivals: np.ndarray, routes: Sequence[Route] | None = None, **more: Any) -> Any:
    script = Told(routes=tuple(routes or [P0] * len(arrivals)), scaling=more.pop("scaling", ()))
    return simulate(c, arrivals, more.pop("blocks", NO_BLOCKS), script, **more)


def expect(record: np.void, **values: float) -> None:
    for name, value in values.items():
        assert record[name] == pytest.approx(value, rel=1e-12, abs=1e-12), name


def test_one_request_on_one_pair() -> None:
    """Prefill 10 + 10 ms; 10,000 bytes in 10 ms, 1 ms latency, 0.1 ms of posting; iterations of 7.1 and 7.2 ms."""
    c = cluster(profile=CONTEXT)
    c = replace(c, paths=((Path((0, 1), 0.001, (1e-8,) * 4, 0),),))
    result = run(c, requests((0.0, 10, 3)))
    r = result.records[0]
    expect(r, dispatch_s=0.0, prefill_start_s=0.0, prefill_end_s=0.02, first_token_s=0.02, grant_s=0.02)
    expect(r, flow_start_s=0.02, transfer_end_s=0.0311, decode_start_s=0.0311)
    expect(r, second_token_s=0.0382, finish_s=0.0454, wire_bytes=10_000, emitted=3)
    assert (r["status"], r["prefill"], r["decode"], r["colocated"], r["mode"]) == (COMPLETED, 0, 0, -1, 1)
    assert (r["wire_precision"], r["store_precision"], r["preemptions"], r["revocations"]) == (0, 0, 0, 0)
    p, d = result.totals["prefill"][0], result.totals["decode"][0]
    expect(p, busy_s=0.02, stalled_s=0.0, active_s=0.0454, billed_s=0.0454, memory_byte_s=10_000 * 0.0311)
    expect(d, busy_s=0.0143, memory_byte_s=10_000 * 0.0111 + 11_000 * 0.0071 + 12_000 * 0.0072)
    assert result.totals["gaps"] == pytest.approx([0.0182, 0.0072])
    assert result.totals["port_bytes"] == pytest.approx([10_000, 10_000])
    assert result.totals["decode_starved_s"] == pytest.approx(0.0311)  # idle while the prompt is on its way


def test_first_token_by_decode() -> None:
    r = run(cluster(profile=CONTEXT, decode_first=True), requests((0.0, 10, 2))).records[0]
    # iterations with contexts 10 and 11: 7.0 and 7.1 ms after the transfer's end at 30 ms
    expect(r, decode_start_s=0.03, first_token_s=0.037, second_token_s=0.0441, finish_s=0.0441)


def test_layerwise_on_a_fast_link_exposes_the_last_layer() -> None:
    """Production of 500 kB/s from 5 ms on; the last quarter, 2,500 bytes, is left at 20 ms."""
    result = run(cluster(layerwise=True, reserve=0), requests((0.0, 10, 2)))
    expect(result.records[0], grant_s=0.0, flow_start_s=0.0, prefill_end_s=0.02, transfer_end_s=0.0225)


def test_layerwise_pays_cost_only_for_what_prefill_does_not_hide() -> None:
    c = cluster(layerwise=True, reserve=0)
    c = replace(c, paths=((Path((0, 1), 0.001, (1e-6,) * 4, 0),),))
    expect(run(c, requests((0.0, 10, 2))).records[0], transfer_end_s=0.0225 + 0.001 + 0.0025)


def test_layerwise_on_a_slow_link_has_a_backlog() -> None:
    """250 kB/s from 5 ms on: 3,750 bytes by 20 ms, the other 6,250 take 25 ms."""
    result = run(cluster(rate=2.5e5, layerwise=True, reserve=0), requests((0.0, 10, 2)))
    expect(result.records[0], transfer_end_s=0.045)


def test_layerwise_over_two_chunks() -> None:
    """6 tokens in [0, 16] ms, 4 in [16, 30] ms: backlog of 1,500 until 17.5, production again from 19.5 ms."""
    c = with_prefill(cluster(layerwise=True, reserve=1), max_batch_tokens=6)
    result = run(c, requests((0.0, 10, 2)), until_s=0.018)
    assert result.records["wire_bytes"][0] == pytest.approx(6000)
    assert result.records["status"][0] == UNFINISHED
    expect(run(c, requests((0.0, 10, 2))).records[0], prefill_end_s=0.03, transfer_end_s=0.031)


def test_one_layer_has_nothing_to_send_before_the_end() -> None:
    result = run(cluster(layers=1, layerwise=True, reserve=0), requests((0.0, 10, 2)))
    expect(result.records[0], flow_start_s=0.0, transfer_end_s=0.03)


def test_one_token_ends_with_prefill() -> None:
    result = run(cluster(layerwise=True, reserve=0), requests((0.0, 10, 1)))
    r = result.records[0]
    expect(r, first_token_s=0.02, finish_s=0.02, wire_bytes=7500)  # its flow is cancelled, its bytes counted
    assert r["status"] == COMPLETED
    assert isnan(r["transfer_end_s"]) and isnan(r["decode_start_s"]) and isnan(r["second_token_s"])
    assert result.totals["gaps"] == []


def test_lindley() -> None:
    """One prefill instance, one prompt a step: start = max(arrival, end of the one before)."""
    rng = np.random.default_rng(1)
    t = np.cumsum(rng.exponential(0.04, 60))
    prompts = rng.integers(1, 60, 60)
    c = with_prefill(cluster(rate=1e9), chunked=False)
    rows = run(c, requests(*((float(a), int(x), 2) for a, x in zip(t, prompts, strict=True)))).records
    end, waited = 0.0, 0
    for row, arrival, x in zip(rows, t, prompts, strict=True):
        waited += end > arrival
        start = max(arrival, end)
        end = start + 0.01 + 0.001 * x
        expect(row, prefill_start_s=start, prefill_end_s=end)
    assert waited > 10


def test_prefill_batches_and_chunks() -> None:
    """Budget 8: the first step takes 5 + 3 of 6 tokens, the second the other 3 and all 4 of the last prompt."""
    c = with_prefill(cluster(), max_batch_tokens=8, max_batch_requests=4)
    rows = run(c, requests((0.0, 5, 2), (0.0, 6, 2), (0.0, 4, 2))).records
    for row, start, end in zip(rows, (0.0, 0.0, 0.018), (0.018, 0.035, 0.035), strict=True):
        expect(row, prefill_start_s=start, prefill_end_s=end)


def test_shortest_job_first_leaves_a_started_prompt_in_front() -> None:
    c = with_prefill(cluster(), max_batch_tokens=10, sjf=True)
    rows = run(c, requests((0.0, 20, 2), (0.001, 9, 2), (0.002, 3, 2))).records
    # two chunks of 20 ms, then 3 tokens, then 9
    assert rows["prefill_end_s"] == pytest.approx([0.04, 0.072, 0.053])


def test_staging_stalls_prefill() -> None:
    """Room for one prompt: the second starts when the first has been sent, at 30 ms."""
    result = run(with_prefill(cluster(), staging_bytes=15_000), requests((0.0, 10, 2), (0.0, 10, 2)))
    expect(result.records[1], prefill_start_s=0.03)
    expect(result.totals["prefill"][0], stalled_s=0.01 + 0.0, busy_s=0.04, queue_s=0.03)


def test_prefix_cache() -> None:
    """Blocks of 4: the second prompt of 10 finds 2 blocks (8 tokens), an equal one 9 (not all 10)."""
    c = with_prefill(cluster(block_tokens=4), prefix_cache_blocks=4)
    arrivals = requests((0.0, 10, 2), (0.1, 10, 2), (0.2, 10, 2), (0.3, 10, 2))
    arrivals["block_start"], arrivals["block_count"] = [0, 3, 6, 0], 3
    blocks = np.array([1, 2, 3, 1, 2, 4, 1, 2, 4])
    rows = run(c, arrivals, blocks=blocks).records
    # the last looks for block 3, which is still among the four
    assert rows["cached_tokens"].tolist() == [0, 8, 9, 9]
    assert rows["prefill_end_s"] - rows["prefill_start_s"] == pytest.approx([0.02, 0.012, 0.011, 0.011])
    rows = run(with_prefill(c, prefix_cache_blocks=3), arrivals, blocks=blocks).records
    assert rows["cached_tokens"].tolist() == [0, 8, 9, 8]  # block 3 made room for block 4


def test_two_flows_share_a_link() -> None:
    """20,000 bytes from 30 ms and 20,000 from 40 ms over one ingress: done at 60 and 70 ms."""
    arrivals = requests((0.0, 20, 2), (0.01, 20, 2))
    rows = run(cluster(prefills=2), arrivals, [P0, P1]).records
    assert rows["flow_start_s"] == pytest.approx([0.03, 0.04])
    assert rows["transfer_end_s"] == pytest.approx([0.06, 0.07])
    rows = run(cluster(prefills=2, contention=False), arrivals, [P0, P1]).records
    assert rows["transfer_end_s"] == pytest.approx([0.05, 0.06])


def test_fair_rates() -> None:
    """Ports of 10 and 4: flow b is held by the small port, flow c by its cap, flow a takes the rest."""
    assert fair_rates([(0,), (0, 1), (0,)], [np.inf, np.inf, 1.0], [10.0, 4.0]) == pytest.approx([5, 4, 1])
    assert fair_rates([(0,), (0,), (0,)], [np.inf, 0.0, np.inf], [10.0]) == pytest.approx([5, 0, 5])


def test_wire_precision_halves_the_transfer() -> None:
    rows = run(cluster(), requests((0.0, 10, 2)), [("pair", 0, 0, 1)]).records
    expect(rows[0], transfer_end_s=0.025, wire_bytes=5000, wire_precision=1, store_precision=0)


def _full_decode(**changes: Any) -> Any:
    """Two equal prompts meet on a decode instance of 23 tokens, which has room for one iteration of both."""
    c = with_decode(cluster(prefills=2, **changes), kv_bytes=23_000)
    return run(c, requests((0.0, 10, 4), (0.0, 10, 4)), [P0, P1])


def test_preemption_with_recompute() -> None:
    """Both join at 40 ms; at 50 ms the newer leaves with 11 tokens; it is restored in 21 ms from 70 ms on."""
    result = _full_decode()
    assert result.records["decode_start_s"] == pytest.approx([0.04, 0.04])
    assert result.records["finish_s"] == pytest.approx([0.07, 0.111])
    assert result.records["preemptions"].tolist() == [0, 1]
    assert result.totals["preemptions"] == 1
    assert sorted(result.totals["gaps"]) == pytest.approx([0.01, 0.01, 0.01, 0.03, 0.03, 0.051])
    expect(result.totals["decode"][0], busy_s=0.071)


def test_preemption_with_swap() -> None:
    """11,000 bytes at 1 MB/s: 11 ms out before anything else goes on, 11 ms in when there is room."""
    result = _full_decode(swap=True, swap_bytes_per_s=1e6)
    assert result.records["finish_s"] == pytest.approx([0.081, 0.112])


def test_priority_decides_who_is_preempted() -> None:
    c = with_decode(cluster(prefills=2), kv_bytes=23_000)
    arrivals = requests((0.0, 10, 4), (0.0, 10, 4))
    arrivals["priority"] = [0, 1]
    assert run(c, arrivals, [P0, P1]).records["preemptions"].tolist() == [1, 0]


def test_revocation() -> None:
    """At 50 ms the only active sequence needs the memory of a reservation half of whose KV has arrived."""
    c = with_decode(cluster(prefills=2), kv_bytes=22_000)
    result = run(c, requests((0.0, 10, 5), (0.025, 10, 2)), [P0, P1])
    assert result.records["revocations"].tolist() == [0, 1]
    expect(result.records[0], finish_s=0.07)
    # granted at 45 ms, revoked at 50, granted again at 70 and sent from the beginning
    expect(
        result.records[1],
        grant_s=0.07,
        flow_start_s=0.07,
        transfer_end_s=0.08,
        wire_bytes=15_000,
        finish_s=0.09,
    )
    assert result.totals["port_bytes"] == pytest.approx([10_000, 15_000, 25_000])


def test_reservation_waits_in_order_unless_bypass() -> None:
    """15 tokens: the first prompt leaves room for 3 tokens only, which the third could use."""
    arrivals = requests((0.0, 11, 4), (0.0, 8, 2), (0.0, 3, 2))
    routes: list[Route] = [("pair", p, 0, 0) for p in range(3)]
    c = with_decode(cluster(prefills=3, reserve=0), kv_bytes=15_000)
    waits = run(c, arrivals, routes).records["grant_s"]
    assert waits[0] == 0.0 and waits[1] == waits[2] > 0.02
    overtakes = run(replace(c, receive_bypass=True), arrivals, routes).records["grant_s"]
    assert overtakes[2] == 0.0 < overtakes[1]


def test_out_of_memory_and_too_large() -> None:
    """10 tokens of memory: a prompt of 10 fits, its first iteration does not; 11 never fit."""
    c = with_decode(cluster(), kv_bytes=10_000)
    rows = run(c, requests((0.0, 10, 3), (0.5, 11, 3), (0.6, 9, 2))).records
    assert rows["status"].tolist() == [FAILED_OOM, TOO_LARGE, COMPLETED]
    assert rows["finish_s"] == pytest.approx([0.03, 0.5, 0.6 + 0.019 + 0.009 + 0.01])


def _colocated(**changes: Any) -> Cluster:
    h = ColocatedInstance(0, 1, 10**9, 0, 8, 100)
    return replace(cluster(profile=replace(FLAT, piggyback=0.5)), colocated=(replace(h, **changes),))


def test_colocated_mixed_iteration() -> None:
    """Prompt B joins A's last iteration: 10 + 20 − 0.5·10 = 25 ms."""
    result = run(_colocated(), requests((0.0, 10, 3), (0.025, 10, 2)), [("colocated", 0)] * 2)
    a, b = result.records
    expect(a, prefill_end_s=0.02, decode_start_s=0.02, second_token_s=0.03, finish_s=0.055)
    expect(b, prefill_start_s=0.03, prefill_end_s=0.055, first_token_s=0.055, finish_s=0.065)
    assert a["mode"] == 2 and a["colocated"] == 0 and a["prefill"] == a["decode"] == -1
    expect(result.totals["colocated"][0], busy_s=0.065, queue_s=0.005)


def test_colocated_preemption_prefills_again() -> None:
    """A and B take 20 tokens in 30 ms; at 40 ms 24 tokens do not fit into 23: B leaves and comes back at 60 ms."""
    rows = run(_colocated(kv_bytes=23_000), requests((0.0, 10, 4), (0.0, 10, 4)), [("colocated", 0)] * 2).records
    assert rows["prefill_end_s"] == pytest.approx([0.03, 0.03])
    assert rows["preemptions"].tolist() == [0, 1]
    # A's iterations end at 40, 50, 60; B's 11 tokens again in 21 ms, then two iterations
    assert rows["finish_s"] == pytest.approx([0.06, 0.101])


def test_hold_and_delay() -> None:
    c = cluster(hold_max_s=0.1, control_plane_delay_s=0.003)
    expect(run(c, requests((0.0, 10, 2)), [("hold",)]).records[0], dispatch_s=0.1, prefill_start_s=0.103)


def test_reject() -> None:
    rows = run(cluster(allow_reject=True), requests((0.2, 10, 2)), [("reject",)]).records
    assert rows["status"][0] == REJECTED and rows["finish_s"][0] == 0.2


def test_role_flip() -> None:
    """At 50 ms the idle prefill 0 goes, and decode 1 warms for 20 ms. The run is read at 200 ms."""
    c = cluster(prefills=2, decodes=2, scaling_interval_s=0.05, flip_delay_s=0.02)
    c = replace(c, decode=(c.decode[0], replace(c.decode[1], active=False)))
    result = run(c, requests((0.19, 10, 2)), [P1], scaling=((1, (0, 0, 1)),), until_s=0.2)
    assert result.time_s == 0.2
    assert result.totals["prefill"]["billed_s"] == pytest.approx([0.05, 0.2])
    assert result.totals["decode"]["billed_s"] == pytest.approx([0.2, 0.15])
    assert result.totals["decode"]["active_s"] == pytest.approx([0.2, 0.13])
    # the last ACTIVE one of a role stays
    result = run(cluster(scaling_interval_s=0.05), requests((0.19, 10, 2)), scaling=((1, (-1, -1, 0)),), until_s=0.2)
    assert result.totals["prefill"]["billed_s"] == pytest.approx([0.2])


def test_draining_returns_and_pairs_again() -> None:
    """At 50 ms decode 0 drains at once (`drain_max_s` 0): its running sequence is recomputed on decode 1."""
    c = cluster(prefills=2, decodes=2, scaling_interval_s=0.0501, drain_max_s=0.0)
    arrivals = requests((0.0, 10, 6), (0.0, 10, 6), (0.01, 10, 6))
    routes: list[Route] = [("pair", 0, 0, 0), ("pair", 1, 1, 0), ("pair", 1, 1, 0)]
    result = run(c, arrivals, routes, scaling=((1, (0, -1, 0)),))
    a = result.records[0]
    # tokens at 20, 40, 50 ms; 12 tokens restored; decode 1 is at a boundary at 60 ms (its own joined at 30 ms)
    assert a["decode"] == 1 and a["emitted"] == 6 and a["preemptions"] == 1
    tokens = 0.06 + 0.022 + np.array([0.01, 0.02, 0.03])
    expect(a, finish_s=tokens[-1])
    assert result.records["status"].tolist() == [COMPLETED] * 3


def test_table_is_extended_at_both_ends() -> None:
    law = StepLaw(table_x=(2.0, 4.0, 10.0), table_s=(1.0, 2.0, 8.0))
    assert [base_time(law, x) for x in (1, 2, 3, 5, 12)] == pytest.approx([0.5, 1.0, 1.5, 3.0, 10.0])


def test_script_depends_only_on_its_question() -> None:
    script = Script(3, hold_share=0.3, reject_share=0.2)
    pairs = [(0, 0, 0), (0, 1, 0), (1, 0, 2)]
    asked = [(r, a) for r in range(20) for a in range(3)]
    forward = [script.route(r, a, pairs, [0, 1], True, True) for r, a in asked]
    assert [script.route(r, a, pairs, [0, 1], True, True) for r, a in reversed(asked)] == forward[::-1]
    assert {choice[0] for choice in forward} == {"pair", "colocated", "hold", "reject"}
    assert all(script.route(r, a, pairs, [], False, False)[0] == "pair" for r, a in asked)
    assert len({mix(1, k) for k in range(1000)}) == 1000


def test_random_cases_cover_every_feature_without_a_broken_invariant() -> None:
    seen: set[str] = set()
    for seed in range(300):
        case = draw_case(seed)
        result = simulate(*case)
        seen |= features(case, result)
        _check_records(case.cluster, case.arrivals, result)
    assert seen >= ALL_FEATURES, sorted(ALL_FEATURES - seen)


class _Watched(Reference):
    """A run with instants in which nothing happens, at random times."""

    def __init__(self, case: Case, end_s: float, seed: int) -> None:
        super().__init__(*case)
        for t in np.random.default_rng(seed).uniform(0.0, end_s, 100):
            self.push(float(t), "timer", (3, 0), "nothing")

    def is_stale(self, event: tuple) -> bool:
        return event[4][:1] != ("nothing",) and super().is_stale(event)

    def timer(self, payload: tuple, t: float) -> None:
        if payload[0] != "nothing":
            super().timer(payload, t)


def test_instants_in_which_nothing_happens_change_nothing() -> None:
    """What an engine that leaps over iterations relies on."""
    for seed in range(80):
        case = draw_case(seed)
        plain = simulate(*case)
        if plain.happened["stuck"]:
            continue
        watched = _Watched(case, plain.time_s, seed)
        watched.run(np.inf)
        for name in (
            "dispatch_s",
            "prefill_start_s",
            "grant_s",
            "transfer_end_s",
            "decode_start_s",
            "finish_s",
        ):
            np.testing.assert_allclose(watched.records[name], plain.records[name], rtol=1e-9, atol=3e-9)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cases())
def test_cases_from_hypothesis(case: Case) -> None:
    _check_records(case.cluster, case.arrivals, simulate(*case))


def test_reading_a_run_early_is_a_prefix_of_it() -> None:
    for seed in range(40):
        case = draw_case(seed)
        full = simulate(*case)
        until = full.time_s / 2
        half = simulate(*case, until_s=until)
        for name in ("prefill_end_s", "transfer_end_s", "decode_start_s", "finish_s"):
            x, y = half.records[name], full.records[name]
            seen = ~np.isnan(x)
            assert (x[seen] <= until).all() and half.time_s == until
            assert (x[seen] == y[seen]).all()
            assert not (y[~seen] < until).any()


def _check_records(c: Cluster, arrivals: np.ndarray, result: Any) -> None:
    rows = result.records
    done = rows[rows["status"] == COMPLETED]
    assert (done["emitted"] == arrivals["output_tokens"][rows["status"] == COMPLETED]).all()
    clocks = ("dispatch_s", "prefill_start_s", "prefill_end_s", "decode_start_s", "finish_s")
    for row, arrival in zip(rows, arrivals["arrival_s"], strict=True):
        times = [arrival, *(row[name] for name in clocks if not isnan(row[name]))]
        assert times == sorted(times)
    sent = rows[(rows["mode"] == 1) & ~np.isnan(rows["transfer_end_s"])]
    prompts = arrivals["prompt_tokens"][(rows["mode"] == 1) & ~np.isnan(rows["transfer_end_s"])]
    need = prompts * np.array(c.kv_bytes_per_token)[sent["wire_precision"]]
    assert (sent["wire_bytes"] >= need * (1 - 1e-9)).all()
    egress = [k for k, port in enumerate(c.ports) if port.name.startswith(("egress", "nv out"))]
    assert result.totals["port_bytes"][egress].sum() == pytest.approx(rows["wire_bytes"].sum())
    for gap in result.totals["gaps"]:
        assert gap > 0
    assert len(result.totals["gaps"]) == rows["emitted"].sum() - (rows["emitted"] > 0).sum()
