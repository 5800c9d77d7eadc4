"""Small clusters and arrival lists made by hand, for tests that know what must come out."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdenv.sim import decisions
from pdenv.sim.engine import Simulation
from pdenv.sim.records import ARRIVAL
from pdenv.topology import Cluster, DecodeInstance, Path, Port, PrefillInstance, Profile, StepLaw

PLENTY = 1 << 50  # bytes, or tokens, that never run out


def make_cluster(
    profile: Profile,
    pairs: int = 1,
    nic_bytes_per_s: float = 1e15,
    spine_bytes_per_s: float | None = None,
    kv: tuple[int, int, int, int] = (1000, 500, 250, 300),
    staging_bytes: int = PLENTY,
    decode_bytes: int = PLENTY,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    **rules: Any,
) -> Cluster:
    """`pairs` prefill and as many decode instances, each on a NIC of its own, all through the spine if there is one.

    Transfers have no latency and cost nothing per byte. `kv` is bytes a token in each precision; staging and store
    are BF16.
    """
    ports = [Port(f"egress {i}", 0, nic_bytes_per_s, nic_bytes_per_s) for i in range(pairs)]
    ports += [Port(f"ingress {i}", 0, nic_bytes_per_s, nic_bytes_per_s) for i in range(pairs)]
    middle: tuple[int, ...] = ()
    if spine_bytes_per_s is not None:
        middle = (len(ports),)
        ports.append(Port("spine", 2, spine_bytes_per_s, spine_bytes_per_s))
    one_prefill = {"max_batch_tokens": PLENTY, "max_batch_requests": 64, "chunked": False, **(prefill or {})}
    one_decode = {"max_batch": 10_000, **(decode or {})}
    return Cluster(
        layers=rules.pop("layers", 1),
        kv_bytes_per_token=kv,
        profiles=(profile,),
        prefill=(PrefillInstance(0, 1, staging_bytes, kv[0], **one_prefill),) * pairs,
        decode=(DecodeInstance(0, 1, decode_bytes, 0, **one_decode),) * pairs,
        colocated=(),
        ports=tuple(ports),
        paths=tuple(
            tuple(Path((p, *middle, pairs + d), 0.0, (0.0,) * 4, 2 if middle else 0) for d in range(pairs))
            for p in range(pairs)
        ),
        **rules,
    )


def make_profile(
    prefill_a_s: float = 0.0,
    prefill_b_s: float = 0.0,
    prefill_c_s: float = 0.0,
    decode_a_s: float = 0.0,
    decode_b_s: float = 0.0,
) -> Profile:
    """Affine step times; with all of them 0 every step takes the shortest time there is, 1 µs."""
    return Profile(StepLaw(prefill_a_s, prefill_b_s, (prefill_c_s, 0.0, 0.0, 0.0)), StepLaw(decode_a_s, decode_b_s))


def make_arrivals(times_s: Any, prompts: Any, outputs: Any) -> np.ndarray:
    """`(n,)` ARRIVAL of tier 0 and priority 0; scalars hold for every request."""
    rows = np.zeros(len(times_s), ARRIVAL)
    rows["arrival_s"] = times_s
    rows["prompt_tokens"] = prompts
    rows["output_tokens"] = rows["predicted_tokens"] = outputs
    return rows


def run(cluster: Cluster, arrivals: np.ndarray) -> np.ndarray:
    """`(n,)` RECORD after every request has ended, dispatched to each pair in turn."""
    sim = Simulation(cluster, arrivals, rule="round-robin")
    assert sim.run()
    return sim.records


def run_in_precision(cluster: Cluster, arrivals: np.ndarray, precision: int) -> np.ndarray:
    """The same with every request sent from instance 0 to instance 0 in one wire precision."""
    sim = Simulation(cluster, arrivals, rule=None)
    while sim.step():
        decisions.dispatch(sim, 0, 0, precision)
    assert not np.any(sim.records["status"] == 0)
    return sim.records
