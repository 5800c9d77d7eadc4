"""Metrics on records and totals made by hand, against values worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from pdenv import metrics, topology
from pdenv.definitions import DEFINITIONS
from pdenv.sim.records import (
    ARRIVAL,
    COMPLETED,
    FAILED_OOM,
    GAP_BINS,
    INSTANCE_TOTALS,
    REJECTED,
    TOO_LARGE,
    UNFINISHED,
    Totals,
    empty_records,
    gap_edges,
)

NONE, PAIR, COLOCATED = range(3)


def make_cluster(**changes) -> topology.Cluster:
    """One prefill and one decode instance joined by two ports; KV is 10 bytes a token in BF16, 5 in FP8."""
    cluster = topology.Cluster(
        layers=2,
        kv_bytes_per_token=(10, 5, 2, 3),
        profiles=(topology.Profile(topology.StepLaw(), topology.StepLaw()),),
        prefill=(topology.PrefillInstance(0, 4, 10_000, 10, 100, 8, usd_per_hour=36.0, busy_w=1000.0, idle_w=100.0),),
        decode=(topology.DecodeInstance(0, 2, 1000, 0, 8, usd_per_hour=18.0, busy_w=500.0, idle_w=50.0),),
        colocated=(),
        ports=(topology.Port("egress", 0, 100.0, 200.0), topology.Port("ingress", 0, 300.0, 400.0)),
        paths=((topology.Path((0, 1), 0.0, (0.0,) * 4, 0),),),
    )
    return dataclasses.replace(cluster, **changes)


def cut_cluster(cut: float, line: float) -> topology.Cluster:
    """The same with an egress port of so many bytes/s, achievable and at line rate, the narrowest on the path."""
    ports = (topology.Port("egress", 0, cut, line), topology.Port("ingress", 0, 1e12, 1e12))
    return make_cluster(ports=ports)


def make_scenario(**cost) -> SimpleNamespace:
    weights = {
        "mode": "joint",
        "w_prefill": 1.0,
        "w_transfer": 1.0,
        "w_decode": 1.0,
        "ttft_step": 0.0,
        "ttft_slope_per_s": 0.0,
        "tpot_step": 0.0,
        "tpot_slope_per_s": 0.0,
        "rejection": 0.0,
        "failure": 0.0,
        "prices": lambda: (0.0,) * topology.N_PRECISIONS,
        "gpu_hour": 0.0,
        "churn": 0.0,
    }
    return SimpleNamespace(
        sla=SimpleNamespace(ttft_s=2.0, tpot_s=0.5),
        cost=SimpleNamespace(**{**weights, **cost}),
    )


def instances(*rows: dict[str, float]) -> np.ndarray:
    table = np.zeros(len(rows), INSTANCE_TOTALS)
    for k, row in enumerate(rows):
        for name, value in row.items():
            table[name][k] = value
    return table


def make_totals(time_s: float, cluster: topology.Cluster, **changes) -> Totals:
    values = {
        "time_s": time_s,
        "prefill": instances(*({"active_s": time_s, "billed_s": time_s} for _ in cluster.prefill)),
        "decode": instances(*({"active_s": time_s, "billed_s": time_s} for _ in cluster.decode)),
        "colocated": instances(*({"active_s": time_s, "billed_s": time_s} for _ in cluster.colocated)),
        "port_bytes": np.zeros(len(cluster.ports)),
        "decode_starved_s": 0.0,
        "gap_counts": np.zeros(GAP_BINS, np.int64),
        "gap_sum_s": 0.0,
        "gap_max_s": 0.0,
        "preemptions": 0,
        "scalings": 0,
    }
    return Totals(**{**values, **changes})


def make_requests(*rows: dict) -> tuple[np.ndarray, np.ndarray]:
    """ARRIVAL and RECORD rows; what is not given keeps the value of a request that nobody served."""
    arrivals, records = np.zeros(len(rows), ARRIVAL), empty_records(len(rows))
    arrivals["prompt_tokens"], arrivals["output_tokens"] = 100, 5
    for k, row in enumerate(rows):
        for name, value in row.items():
            (arrivals if name in ARRIVAL.names else records)[name][k] = value
    return arrivals, records


def served(arrival_s: float, *, t_p: float, t_j: float, t_f: float, **more) -> dict:
    """A request that took the pair path: its KV was granted at t_P and arrived 0.25 s before t_J."""
    row = {
        "arrival_s": arrival_s,
        "prefill_end_s": t_p,
        "first_token_s": t_p,
        "flow_start_s": t_p,
        "grant_s": t_p,
        "transfer_end_s": t_j - 0.25,
        "decode_start_s": t_j,
        "second_token_s": t_j + 0.1,
        "finish_s": t_f,
        "mode": PAIR,
        "wire_precision": 0,
        "status": COMPLETED,
    }
    return {**row, **more}


def run(*rows: dict, cluster=None, scenario=None, start=None, end=None, until_s=None, window=(0.0, 10.0)) -> dict:
    cluster = cluster or make_cluster()
    arrivals, records = make_requests(*rows)
    first = int(np.searchsorted(arrivals["arrival_s"], window[0]))
    workload = SimpleNamespace(
        arrivals=arrivals,
        measured_from=first,
        measured_to=int(np.searchsorted(arrivals["arrival_s"], window[1])),
        warmup_s=window[0],
        end_s=window[1],
    )
    start = start or make_totals(window[0], cluster)
    end = end or make_totals(window[1], cluster)
    return metrics.summarise(scenario or make_scenario(), cluster, workload, records, start, end, until_s)


# ---- request times --------------------------------------------------------------------------------------


def test_joint_tpot_is_the_sum_of_its_three_parts():
    summary = run(served(0.0, t_p=1.0, t_j=1.5, t_f=3.5))  # N = 5, so m = 4
    joint = summary["joint_tpot_s"]
    assert (joint["prefill_mean"], joint["transfer_mean"], joint["decode_mean"]) == (1.0, 0.5, 0.5)
    assert joint["mean"] == 2.0
    assert summary["tpot_s"]["mean"] == pytest.approx(2.5 / 4)
    assert summary["ttft_s"]["mean"] == 1.0
    assert summary["e2e_s"]["mean"] == 3.5
    assert summary["second_token_gap_s"]["mean"] == pytest.approx(0.6)


def test_transfer_wire_and_admission_times():
    row = served(0.0, t_p=1.0, t_j=2.0, t_f=3.0, flow_start_s=0.5, grant_s=1.125)
    summary = run(row)
    assert summary["transfer_s"]["mean"] == 0.75
    assert summary["transfer_wire_s"]["mean"] == 1.25  # layer-wise: the flow started during prefill
    assert summary["admission_s"]["mean"] == pytest.approx(0.125 + 0.25)
    early = run({**row, "grant_s": 0.5})  # granted before prefill ended: no wait
    assert early["admission_s"]["mean"] == 0.25


def test_decode_first_spreads_decode_over_all_tokens():
    row = served(0.0, t_p=1.0, t_j=1.5, t_f=4.0, first_token_s=2.0)
    summary = run(row, cluster=make_cluster(decode_first=True))
    assert summary["joint_tpot_s"]["decode_mean"] == 0.5  # 2.5 s over N = 5 tokens
    assert summary["tpot_s"]["mean"] == 0.5
    assert summary["ttft_s"]["mean"] == 2.0
    alone = run({**row, "mode": COLOCATED, "decode_start_s": 1.0}, cluster=make_cluster(decode_first=True))
    assert alone["joint_tpot_s"]["decode_mean"] == 0.75  # co-located: prefill emits the first of 5 tokens


def test_a_single_token_has_no_tpot_and_meets_any_limit():
    one = {
        "arrival_s": 0.0,
        "output_tokens": 1,
        "prefill_end_s": 1.0,
        "first_token_s": 1.0,
        "finish_s": 1.0,
        "mode": PAIR,
        "status": COMPLETED,
    }
    summary = run(one)
    assert summary["tpot_s"]["mean"] is None
    assert summary["slo_attainment"] == 1.0
    joint = summary["joint_tpot_s"]
    assert (joint["mean"], joint["prefill_mean"], joint["transfer_mean"], joint["decode_mean"]) == (
        1,
        1,
        0,
        0,
    )


def test_slo_counts_everyone_in_the_denominator():
    summary = run(
        served(0.0, t_p=1.0, t_j=1.5, t_f=2.0),
        served(0.0, t_p=2.5, t_j=2.6, t_f=3.0),  # TTFT 2.5 s > 2 s
        served(0.0, t_p=1.0, t_j=1.5, t_f=9.0),  # TPOT 2 s > 0.5 s
        {"arrival_s": 1.0, "status": REJECTED, "finish_s": 1.0},
        {"arrival_s": 1.0, "status": TOO_LARGE, "finish_s": 1.0},
        served(1.0, t_p=2.0, t_j=2.5, t_f=2.75, status=FAILED_OOM),
        {"arrival_s": 1.0, "status": UNFINISHED},
        {"arrival_s": 1.0},  # still waiting when the run stopped
    )
    counts = [summary[k] for k in ("requests", "completed", "rejected", "failed", "unfinished")]
    assert counts == [8, 3, 1, 2, 2]
    assert summary["slo_attainment"] == 1 / 8
    assert summary["goodput_rps"] == 0.1
    assert summary["tpot_s"]["max"] == 2.0  # the failed one has no sample


def test_only_measured_requests_count():
    rows = [served(t, t_p=t + 1, t_j=t + 1.5, t_f=t + 2) for t in (0.0, 2.0, 3.0, 11.0)]
    summary = run(*rows, window=(1.0, 10.0))
    assert summary["requests"] == 2
    assert summary["duration_s"] == 9.0


def test_percentiles_interpolate_linearly():
    summary = run(*(served(0.0, t_p=float(k), t_j=20.0, t_f=21.0) for k in range(11)))
    ttft = summary["ttft_s"]
    assert (ttft["p50"], ttft["p90"], ttft["max"]) == (5.0, 9.0, 10.0)
    assert ttft["p99"] == pytest.approx(9.9)


# ---- inter-token gaps -------------------------------------------------------------------------------------


def test_gaps_of_the_warm_up_are_left_out():
    cluster, edges = make_cluster(), gap_edges()
    before, after = np.zeros(GAP_BINS, np.int64), np.zeros(GAP_BINS, np.int64)
    before[500], after[500] = 7, 7
    after[300], after[400] = 99, 1
    start = make_totals(0.0, cluster, gap_counts=before, gap_sum_s=5.0, gap_max_s=0.21)
    end = make_totals(10.0, cluster, gap_counts=after, gap_sum_s=7.0, gap_max_s=0.21)
    itl = run(served(0.0, t_p=1.0, t_j=1.5, t_f=2.0), start=start, end=end)["itl_s"]
    assert itl["mean"] == pytest.approx(2.0 / 100)
    assert edges[300] <= itl["p50"] <= edges[301]
    assert edges[300] <= itl["p99"] <= edges[301]
    assert itl["max"] == pytest.approx(edges[401])  # the longest gap of all lies in the warm-up


def test_gap_percentiles_are_within_two_percent():
    gaps = np.random.default_rng(1).lognormal(-4.0, 0.5, 20_000)
    cluster = make_cluster()
    counts = np.histogram(gaps, gap_edges())[0]
    end = make_totals(10.0, cluster, gap_counts=counts, gap_sum_s=gaps.sum(), gap_max_s=gaps.max())
    itl = run(served(0.0, t_p=1.0, t_j=1.5, t_f=2.0), end=end)["itl_s"]
    assert itl["mean"] == pytest.approx(gaps.mean())
    assert itl["max"] == gaps.max()
    for name, q in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert itl[name] == pytest.approx(np.percentile(gaps, q), rel=0.02)


# ---- pools, network, resources ----------------------------------------------------------------------------


def busy_totals(cluster: topology.Cluster) -> tuple[Totals, Totals]:
    """From 2 s to 10 s: prefill 6 s busy and 1 s stalled, decode at 40 % of its memory, 400 bytes sent."""
    begin = {"active_s": 2.0, "billed_s": 2.0, "busy_s": 2.0, "memory_byte_s": 500.0, "queue_s": 1.0}
    finish = {"active_s": 10.0, "billed_s": 10.0, "busy_s": 8.0, "queue_s": 5.0}
    start = make_totals(2.0, cluster, prefill=instances(begin), decode=instances(begin))
    end = make_totals(
        10.0,
        cluster,
        prefill=instances({**finish, "stalled_s": 1.0}),
        decode=instances({**finish, "memory_byte_s": 3700.0}),
        port_bytes=np.array([400.0, 400.0]),
        decode_starved_s=1.5,
        preemptions=3,
    )
    return start, end


def test_pools_are_measured_after_the_warm_up():
    cluster = make_cluster()
    start, end = busy_totals(cluster)
    summary = run(served(3.0, t_p=4.0, t_j=4.5, t_f=5.0), start=start, end=end, window=(2.0, 10.0))
    assert summary["prefill_utilisation"] == 6 / 8
    assert summary["prefill_demanded_utilisation"] == 7 / 8
    assert summary["decode_memory_utilisation"] == pytest.approx(3200 / 8000)
    assert summary["prefill_queue_depth"] == 0.5
    assert summary["receive_queue_depth"] == 0.5
    assert summary["decode_starved_s"] == 1.5
    assert summary["staging_stall_s"] == 1.0
    assert summary["preemptions"] == 3
    links = summary["link_utilisation"]
    assert set(links) == {"nic", "min_cut"}  # no rack, spine or NVLink here
    assert links["nic"] == pytest.approx(800 / (400 * 8))
    assert links["min_cut"] == pytest.approx(400 / (100 * 8))
    assert (summary["busiest_tier"], summary["network_utilisation"]) == ("min_cut", links["min_cut"])
    assert summary["warmup_s"] == 2.0


def test_rounding_of_the_sums_leaves_no_share_above_one():
    cluster = make_cluster()
    full = instances({"active_s": 10.0, "billed_s": 10.0, "busy_s": 10.0 + 1e-12, "stalled_s": 0.0})
    end = make_totals(10.0, cluster, prefill=full)
    assert run(served(0.0, t_p=1.0, t_j=1.5, t_f=2.0), end=end)["prefill_utilisation"] == 1.0


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0, "0.0 %"), (0.8444, "84.4 %"), (0.99946, "99.9 %"), (0.9998, "99.98 %"), (0.999996, "99.9996 %"),
     (1.0 - 1e-12, "100.0 %"), (1.0, "100.0 %"), (1.234, "123.4 %")],
)  # fmt: skip
def test_a_percentage_is_100_only_where_it_is(share, text):
    assert metrics.percent(share) == text


def test_the_busiest_links_are_those_with_the_largest_share():
    ports = (topology.Port("egress", 0, 100.0, 200.0), topology.Port("uplink", 1, 20.0, 60.0))
    ports += (topology.Port("ingress 0", 0, 300.0, 400.0), topology.Port("ingress 1", 0, 300.0, 400.0))
    across, within = (topology.Path(k, 0.0, (0.0,) * 4, 1) for k in ((0, 1, 2), (0, 3)))
    near = make_cluster().decode[0]
    cluster = make_cluster(ports=ports, paths=((across, within),), decode=(near, near))
    end = make_totals(10.0, cluster, port_bytes=np.array([400.0, 180.0, 180.0, 220.0]))
    summary = run(served(0.0, t_p=1.0, t_j=1.5, t_f=2.0), cluster=cluster, end=end)
    assert summary["link_utilisation"] == pytest.approx({"nic": 800 / 7000, "rack": 180 / 200, "min_cut": 400 / 1000})
    assert (summary["busiest_tier"], summary["network_utilisation"]) == ("rack", pytest.approx(0.9))


def test_wire_precisions_are_shares_of_dispatched_pairs():
    kinds = [{"wire_precision": q} for q in (0, 1, 1, 2)]
    colocated = {"wire_precision": -1, "mode": COLOCATED}
    rows = [served(0.0, t_p=1.0, t_j=1.5, t_f=2.0, **kind) for kind in (*kinds, colocated)]
    summary = run(*rows, {"arrival_s": 0.5, "status": REJECTED, "finish_s": 0.5})
    assert summary["wire_precision_share"] == {"bf16": 0.25, "fp8": 0.5, "int4": 0.25, "nvfp4": 0.0}
    assert summary["compressed_share"] == 0.75
    none = run({"arrival_s": 0.5, "status": REJECTED, "finish_s": 0.5})
    assert (none["wire_precision_share"], none["compressed_share"]) == ({}, None)


def test_gpu_hours_money_and_energy():
    cluster = make_cluster()
    start, end = busy_totals(cluster)
    summary = run(served(3.0, t_p=4.0, t_j=4.5, t_f=5.0), start=start, end=end, window=(2.0, 10.0))
    assert summary["gpu_hours"] == pytest.approx(8 * (4 + 2) / 3600)
    assert summary["cost_usd"] == pytest.approx(8 / 3600 * (36 + 18))
    joules = 1000 * 6 + 100 * 2 + 500 * 6 + 50 * 2
    assert summary["energy_kwh"] == pytest.approx(joules / 3.6e6)


def test_offered_kv_uses_the_chosen_wire_precision():
    rows = [
        served(0.0, t_p=1.0, t_j=1.5, t_f=2.0, wire_precision=1),  # FP8: 100 tokens × 5 bytes
        {"arrival_s": 0.5, "status": REJECTED, "finish_s": 0.5},  # never dispatched: BF16, 100 × 10
    ]
    assert run(*rows)["constraints"]["network"]["offered_bytes_per_s"] == (500 + 1000) / 10


@pytest.mark.parametrize(("stalled", "cut", "conflict"), [(3.0, 90.0, True), (1.0, 90.0, False), (3.0, 200.0, False)])
def test_conflict_needs_demanded_prefill_and_a_full_network(stalled, cut, conflict):
    cluster = cut_cluster(cut, line=200.0)
    totals = instances({"active_s": 10.0, "billed_s": 10.0, "busy_s": 6.0, "stalled_s": stalled})
    end = make_totals(10.0, cluster, prefill=totals)
    row = served(0.0, t_p=1.0, t_j=1.5, t_f=2.0)  # 100 bytes/s offered
    constraints = run(row, cluster=cluster, end=end)["constraints"]
    assert constraints["conflict"] is conflict
    assert constraints["network"]["met"] is (cut > 100)
    assert constraints["prefill_busy"] == {"value": 0.6, "limit": 0.8, "met": False}  # hides the conflict
    assert constraints["decode_memory"]["met"] is True


def test_a_line_rate_above_the_operating_point_is_not_met():
    row = served(0.0, t_p=1.0, t_j=1.5, t_f=2.0)
    assert run(row, cluster=cut_cluster(80e9, line=100e9))["constraints"]["network"]["met"] is True
    assert run(row, cluster=cut_cluster(80e9, line=101e9))["constraints"]["network"]["met"] is False


def test_near_conflict_when_transfer_is_more_than_half():
    near = run(served(0.0, t_p=1.0, t_j=3.0, t_f=3.4))
    far = run(served(0.0, t_p=1.0, t_j=1.5, t_f=1.9))
    assert near["constraints"]["near_conflict"] is True
    assert far["constraints"]["near_conflict"] is False


def test_colocated_cluster_has_no_pool_numbers():
    cluster = make_cluster(
        prefill=(),
        decode=(),
        ports=(),
        paths=(),
        colocated=(topology.ColocatedInstance(0, 8, 1000, 0, 8, 64),),
    )
    totals = instances({"active_s": 10.0, "billed_s": 10.0, "busy_s": 9.0, "memory_byte_s": 2500.0})
    end = make_totals(10.0, cluster, colocated=totals)
    row = served(0.0, t_p=1.0, t_j=1.0, t_f=2.0, mode=COLOCATED, wire_precision=-1, transfer_end_s=np.nan)
    summary = run(row, cluster=cluster, end=end)
    for key in ("prefill_utilisation", "prefill_demanded_utilisation", "decode_memory_utilisation"):
        assert summary[key] is None
    assert summary["link_utilisation"] == {}
    assert (summary["busiest_tier"], summary["network_utilisation"]) == (None, None)
    assert summary["colocated_utilisation"] == 0.9
    assert summary["colocated_memory_utilisation"] == 0.25
    assert summary["joint_tpot_s"]["transfer_mean"] == 0.0
    assert summary["transfer_s"]["mean"] is None
    constraints = summary["constraints"]
    assert [constraints[k]["met"] for k in ("prefill_busy", "decode_memory", "network")] == [None] * 3
    assert constraints["conflict"] is False


# ---- cost -------------------------------------------------------------------------------------------------


def test_cost_is_weighted_joint_tpot():
    scenario = make_scenario(w_prefill=1.0, w_transfer=10.0, w_decode=100.0)
    cost = run(served(0.0, t_p=1.0, t_j=1.5, t_f=3.5), scenario=scenario)["cost"]
    assert cost["mean"] == pytest.approx(1.0 + 10 * 0.5 + 100 * 0.5)
    assert sum(cost["terms"].values()) == pytest.approx(cost["mean"])


def test_penalties_count_from_when_the_limit_passes():
    scenario = make_scenario(ttft_step=3.0, ttft_slope_per_s=2.0, tpot_step=5.0, tpot_slope_per_s=1.0)
    late = served(0.0, t_p=2.5, t_j=2.5, t_f=5.5)  # TTFT 0.5 s over; decodes 3 s where 4 × 0.5 s are allowed
    terms = run(late, scenario=scenario)["cost"]["terms"]
    assert terms["ttft_penalty"] == 3.0 + 2.0 * 0.5
    assert terms["tpot_penalty"] == 5.0 + 1.0
    at_limit = served(0.0, t_p=2.0, t_j=2.0, t_f=4.0)
    terms = run(at_limit, scenario=scenario)["cost"]["terms"]
    assert (terms["ttft_penalty"], terms["tpot_penalty"]) == (0.0, 0.0)


def test_unfinished_and_rejected_requests_keep_what_they_accrued():
    scenario = make_scenario(rejection=7.0, failure=11.0)
    cost = run(
        served(0.0, t_p=1.0, t_j=2.0, t_f=3.0),  # 1 + 1 + 0.25
        {"arrival_s": 1.0, "status": REJECTED, "finish_s": 3.0},  # 2 s at the gateway
        {"arrival_s": 1.0, "status": UNFINISHED},  # 19 s at the gateway
        {
            "arrival_s": 1.0,
            "prefill_end_s": 4.0,
            "first_token_s": 4.0,
            "mode": PAIR,
        },  # 3 s, then 16 s in transfer
        scenario=scenario,
        until_s=20.0,
    )["cost"]
    terms = cost["terms"]
    assert terms["prefill"] == (1 + 2 + 19 + 3) / 4
    assert terms["transfer"] == (1 + 0 + 0 + 16) / 4
    assert terms["decode"] == 0.25 / 4
    assert terms["rejection_penalty"] == 7 / 4
    assert terms["failure_penalty"] == 2 * 11 / 4


def test_finishing_sooner_never_costs_more_than_failing():
    scenario = make_scenario(failure=1.0)
    failed = {"arrival_s": 0.0, "status": FAILED_OOM, "finish_s": 1.0}
    done = served(0.0, t_p=0.5, t_j=0.75, t_f=1.0)
    assert run(done, scenario=scenario)["cost"]["mean"] < run(failed, scenario=scenario)["cost"]["mean"]


def test_modes_of_cost():
    row = served(0.0, t_p=1.0, t_j=1.5, t_f=3.5)
    cost = run(row, scenario=make_scenario(ttft_slope_per_s=0.1))["cost"]
    assert cost["by_mode"]["joint"] == 2.0
    assert cost["by_mode"]["standard"] == pytest.approx(2.5 / 4)
    assert cost["by_mode"]["normalised"] == pytest.approx(1.0 / 2 + 0.5 / 2 + 0.5 / 0.5)
    own = run(row, scenario=make_scenario(mode="normalised"))["cost"]
    assert own["mean"] == own["by_mode"]["normalised"]


def test_standard_mode_without_a_ttft_slope_is_refused():
    cost = run(served(0.0, t_p=1.0, t_j=1.5, t_f=3.5))["cost"]
    assert cost["by_mode"]["standard"] is None
    assert cost["by_mode"]["joint"] is not None


# ---- shape of the summary ---------------------------------------------------------------------------------


def test_summary_is_json_without_nan_and_defines_every_number():
    for rows in ([served(0.0, t_p=1.0, t_j=1.5, t_f=2.0)], [{"arrival_s": 0.0, "status": UNFINISHED}]):
        summary = run(*rows)
        assert json.loads(metrics.to_json(summary)) == summary
        assert set(summary) - {"definitions"} == set(summary["definitions"])
        assert set(summary["definitions"]) <= set(DEFINITIONS)
        for key in ("ttft_s", "tpot_s", "second_token_gap_s", "itl_s", "e2e_s", "transfer_s", "admission_s"):
            assert list(summary[key]) == ["mean", "p50", "p90", "p99", "max"]


def test_json_turns_what_it_cannot_hold_into_null():
    text = metrics.to_json({"a": np.float64("nan"), "b": [float("inf"), np.int64(3)], "c": np.bool_(True)})
    assert json.loads(text) == {"a": None, "b": [None, 3], "c": True}
