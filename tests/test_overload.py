"""13 GB/s of KV offered to a fabric of 0.05 GB/s: the queue grows without bound, and the summary says why."""

from __future__ import annotations

import numpy as np
import pytest

from pdenv import load_scenario, simulate

RATE = 40.0  # requests/s
PROMPT = 1020  # tokens
KV = 327_680  # bytes a token: Llama-3.1-70B in BF16
FABRIC = 0.05e9  # bytes/s
REQUESTS = 2000


def run(spine_bytes_per_s: float, staging_bytes: int):
    """Five pairs, prefill in one rack and decode in another, with plenty of room for compute: load 0.42."""
    overrides = {
        "models.toy": {"layers": 80, "kv_bytes_per_token": KV},
        "profiles.toy": {
            "prefill": {"a_s": 0.001, "b_s": 5e-5},  # 0.052 s a prompt: 5 instances make 96 a second
            "decode": {"a_s": 0.01, "b_s": 1e-4},
        },
        "prefill.0": {
            "count": 5, "gpu": "h100", "tensor_parallel": 8, "profile": "toy", "rack": "a",
            "nic_bytes_per_s": 400e9, "staging_bytes": staging_bytes, "max_batch_tokens": 1024,
        },
        "decode.0": {
            "count": 5, "gpu": "h100", "tensor_parallel": 8, "profile": "toy", "rack": "b",
            "nic_bytes_per_s": 400e9, "kv_bytes": 500_000_000_000, "max_batch": 512,
        },
        "network.racks": {"a": {}, "b": {}},
        "network.spine_bytes_per_s": spine_bytes_per_s,
        "quality.tiers": {"all": {"share": 1.0, "precisions": ["bf16"]}},
        "workload.rate_per_s": RATE,
        "workload.lengths": {"kind": "fixed", "prompt_tokens": PROMPT, "output_tokens": 20},
        "window": {"requests": REQUESTS, "warmup_s": 0.0, "drain_max_s": 5.0},
    }  # fmt: skip
    return simulate(load_scenario("toy", overrides=overrides), policy="round-robin")


def in_system(result, t: float) -> int:
    rows = result.requests
    finish = np.where(np.isnan(rows["finish_s"]), np.inf, rows["finish_s"])
    return int(np.count_nonzero((rows["arrival_s"] <= t) & (finish > t)))


@pytest.fixture(scope="module")
def starved():
    return run(FABRIC, 6_000_000_000)


def test_the_offered_load_is_what_it_says():
    assert pytest.approx(13.4e9, rel=0.01) == RATE * PROMPT * KV


def test_the_queue_grows_without_bound(starved):
    """Requests in the system grow at arrival rate minus what the fabric can carry: 40 − 0.05/0.334 a second."""
    carried_rps = FABRIC / (PROMPT * KV)
    times = np.array([10.0, 20.0, 30.0, 40.0])
    waiting = np.array([in_system(starved, t) for t in times])
    np.testing.assert_allclose(waiting, (RATE - carried_rps) * times, rtol=0.12)
    done = np.count_nonzero(starved.requests["status"] == "completed")
    assert done <= carried_rps * starved.stopped_s + 1


def test_it_is_reported_as_a_conflict(starved):
    """Prefill stalls for want of staging memory and looks idle; what it is asked for shows the conflict."""
    summary = starved.summary
    assert summary["constraints"]["conflict"] is True
    assert summary["prefill_demanded_utilisation"] > 0.8
    assert summary["prefill_utilisation"] < 0.5
    assert summary["link_utilisation"]["spine"] > 0.95
    assert summary["unfinished"] > 0.9 * REQUESTS


def test_an_ample_fabric_has_neither_queue_nor_conflict():
    result = run(50e9, 6_000_000_000)
    assert result.summary["constraints"]["conflict"] is False
    assert result.summary["completed"] == REQUESTS
    assert result.summary["staging_stall_s"] == 0.0
    assert max(in_system(result, t) for t in (10.0, 20.0, 30.0, 40.0)) < 100


def test_large_staging_only_moves_the_queue_to_the_link():
    """Enough memory for everything: prefill never stalls, and the transfers pile up instead."""
    result = run(FABRIC, 600_000_000_000)
    assert result.summary["staging_stall_s"] == 0.0
    waiting = result.requests["prefill_end_s"] - result.requests["arrival_s"]
    assert np.nanmax(waiting) < 5.0
    assert in_system(result, 40.0) > 1.8 * in_system(result, 20.0)
