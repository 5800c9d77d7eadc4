"""Warnings of a run: what is saturated, which queue grew, what ran instead of what was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pdenv
from pdenv.advice import _grown_queues, _saturated
from pdenv.sim.records import ARRIVAL, empty_records

SMALL = {"window.requests": 100}


def warnings(policy: str = "round-robin", **overrides: Any) -> list[str]:
    changed = {key.replace("__", "."): value for key, value in overrides.items()}
    return pdenv.simulate(pdenv.load_scenario("toy", overrides={**SMALL, **changed}), policy).summary["warnings"]


def saturated(memory: float | None = 0.5, demanded: float | None = 0.8, **links: float) -> list[str]:
    return list(
        _saturated(
            {
                "decode_memory_utilisation": memory,
                "prefill_demanded_utilisation": demanded,
                "link_utilisation": {"nic": 0.5, "min_cut": 0.9, **links},
            }
        )
    )


def test_a_run_with_room_warns_of_nothing():
    assert warnings(workload__rate_per_s=8) == []
    assert saturated() == []
    assert saturated(memory=None, demanded=None) == []


@pytest.mark.parametrize(
    ("numbers", "start"),
    [
        ({"memory": 0.9994}, "decode memory is saturated (99.9 %): the ratio of prefill to decode"),
        ({"memory": 0.9999}, "decode memory is saturated (99.99 %)"),
        ({"demanded": 1.0}, "prefill is saturated (100.0 % demanded)"),
        ({"rack": 0.97}, "rack links are saturated (97.0 %)"),
        ({"spine": 0.97}, "the spine is saturated (97.0 %)"),
    ],
)
def test_what_is_saturated_is_named_with_its_share(numbers, start):
    (line,) = saturated(**numbers)
    assert line.startswith(start)


def test_a_slow_network_and_a_full_decode_pool_are_told_apart():
    network = warnings(workload__rate_per_s=12, prefill__0__nic_bytes_per_s=2e6)
    assert any(line.startswith("the narrowest cut between the pools is saturated") for line in network)
    lengths = {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 4}  # 3.2 MB of KV, one request at a time
    decode = warnings(workload__rate_per_s=12, workload__lengths=lengths, decode__0__kv_bytes=3_300_000)
    assert any(line.startswith("decode memory is saturated") for line in decode)
    for line in ("decode memory is", "NICs are"):  # the NICs of decode are mostly idle in both
        assert not any(warning.startswith(line) for warning in network)
    assert not any("between the pools" in warning for warning in decode)


def test_overload_shows_in_the_queue_and_in_what_is_unfinished():
    lines = warnings(workload__rate_per_s=30, window__drain_max_s=1)
    assert any(line.startswith("prefill is saturated") for line in lines)
    assert any(line.startswith("the queue before prefill grew by") for line in lines)
    assert any("unfinished at the drain deadline" in line for line in lines)


def queues(prefill_start_s: np.ndarray, decode_start_s: np.ndarray) -> list[str]:
    """Warnings of 200 requests, one a second, all of them measured; prefill takes no time."""
    arrivals, records = np.zeros(200, ARRIVAL), empty_records(200)
    arrivals["arrival_s"] = np.arange(200.0)
    records["prefill_start_s"] = records["prefill_end_s"] = prefill_start_s
    records["decode_start_s"] = decode_start_s
    load = SimpleNamespace(arrivals=arrivals, measured_from=0, measured_to=200, warmup_s=0.0, end_s=199.0)
    return list(_grown_queues(load, records))


def test_a_queue_grows_when_service_is_slower_than_arrivals():
    t = np.arange(200.0)
    (line,) = queues(1.5 * t, 1.5 * t)  # at 199 s request 132 has been served and 67 wait, of which one is new
    assert line.startswith("the queue before prefill grew by 67 requests in a window of 200")
    (line,) = queues(t, np.where(t < 150, t, np.nan))
    assert line.startswith("the queue before decode grew by 50 requests")
    assert queues(t, t + 30.0) == []  # fewer than 3 √200 at the end
    assert queues(1.15 * t, 1.15 * t) == []


def test_a_co_located_twin_is_announced():
    (line,) = (line for line in warnings("colocated") if "twin" in line)
    assert line == "policy colocated ran on the scenario's co-located twin: all 4 GPUs as 4 co-located instances"
    assert not any("twin" in line for line in warnings("greedy"))
