"""Environments with random scenarios and settings, which together cover what there is."""

from __future__ import annotations

from typing import Any

import numpy as np
from env_policies import FORMS, make

from pdenv.envs.single import ClusterEnv
from pdenv.scenario import Scenario, load_scenario
from pdenv.sim.rules import RULES, rule_names


def pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def draw_scenario(rng: np.random.Generator) -> Scenario:
    """A variation of `toy` in everything that the engine knows: rules, memory, pools, network, workload."""
    binding = pick(rng, "dispatch", "dispatch", "dispatch", "prefill_end")
    reserve = "prefill_end" if binding == "prefill_end" else pick(rng, "dispatch", "prefill_start", "prefill_end")
    scrape_s = pick(rng, 0.0, 0.0, 0.0, 0.3)
    store = pick(rng, "bf16", "bf16", "fp8")
    longest = pick(rng, 150, 400)
    decodes = [
        {"count": int(rng.integers(1, 4)), "store": "bf16", "kv_bytes": int(16_000 * longest * pick(rng, 1.1, 3, 20))}
    ]
    if rng.random() < 0.4:
        decodes.append({**decodes[0], "count": int(rng.integers(1, 3)), "store": store})
    prefills = [
        {
            "count": int(rng.integers(1, 5)),
            "staging_bytes": int(16_000 * longest * pick(rng, 1.0, 2.5, 20)),
            "max_batch_tokens": pick(rng, 64, 300, 1000),
            "max_batch_requests": pick(rng, 1, 4),
            "chunked": bool(rng.random() < 0.6),
            "order": pick(rng, "fcfs", "sjf"),
        }
    ]
    for pool in (prefills, decodes):
        shared = {"gpu": "h100", "tensor_parallel": 1, "profile": "toy", "nic_bytes_per_s": pick(rng, 4e6, 16e6, 1e9)}
        shared["startup_s"] = pick(rng, 0.0, 0.5, 3.0)
        for group in pool:
            group |= shared
    for pool in (prefills, decodes):
        if rng.random() < 0.5:
            pool[0]["active"] = int(rng.integers(1, pool[0]["count"] + 1))
    colocated = []
    if rng.random() < 0.4:
        colocated = [
            {
                "count": int(rng.integers(1, 3)),
                "gpu": "h100",
                "tensor_parallel": 1,
                "profile": "toy",
                "kv_bytes": int(16_000 * longest * pick(rng, 0.8, 1.5, 10)),
                "store": store,
                "max_batch": pick(rng, 4, 64),
                "max_batch_tokens": pick(rng, 80, 500),
            }
        ]
    lengths = {
        "kind": "lognormal",
        "prompt_median_tokens": pick(rng, 30, 100),
        "prompt_sigma": 0.8,
        "prompt_max_tokens": longest,
        "output_median_tokens": pick(rng, 1.5, 10, 40),
        "output_sigma": 0.9,
        "output_max_tokens": 150,
    }
    return load_scenario(
        "toy",
        {
            "prefill": prefills,
            "decode": decodes,
            "colocated": colocated,
            "network.overlap": "blocking" if reserve == "prefill_end" else pick(rng, "layer_wise", "blocking"),
            "network.contention": pick(rng, "max_min", "max_min", "none"),
            "network.latency_s": pick(rng, 0.0, 0.003),
            "kv.reserve": reserve,
            "kv.decode_binding": binding,
            "kv.first_token": pick(rng, "prefill", "prefill", "decode"),
            "kv.preemption": pick(rng, "recompute", "swap"),
            "kv.mixed_store": bool(rng.random() < 0.2),
            "kv.receive_bypass": bool(rng.random() < 0.3),
            "control.scrape_interval_s": scrape_s,
            "control.scrape_delay_s": pick(rng, 0.0, 0.1) if scrape_s else 0.0,
            "control.control_plane_delay_s": pick(rng, 0.0, 0.0, 0.02),
            "control.hold_max_s": pick(rng, 0.05, 1.0),
            "control.allow_reject": bool(rng.random() < 0.4),
            "scaling.interval_s": pick(rng, 0.0, 0.4, 2.0),
            "scaling.flip_delay_s": pick(rng, 0.0, 1.0),
            "scaling.drain_max_s": pick(rng, 0.0, 0.5, 10.0),
            "cost.gpu_hour": pick(rng, 0.0, 30.0),
            "cost.churn": pick(rng, 0.0, 0.5),
            "cost.tpot_slope_per_s": pick(rng, 0.0, 1.0),
            "workload.lengths": lengths,
            "workload.rate_per_s": pick(rng, 3.0, 8.0, 25.0),
            "workload.priority_shares": pick(rng, [1.0], [0.5, 0.3, 0.2]),
            "window.requests": int(rng.integers(3, 60)),
            "window.warmup_s": pick(rng, 0.0, 3.0),
            "window.drain_max_s": pick(rng, 0.0, 20.0),
        },
    )


def draw_environment(seed: int) -> ClusterEnv:
    rng = np.random.default_rng(seed)
    kind, mode = FORMS[seed % len(FORMS)]
    settings: dict[str, Any] = {
        "action_mode": mode,
        "reward": pick(rng, "joint", "standard", "normalised"),
        "evaluation": bool(rng.random() < 0.5),
        "work_conserving": bool(rng.random() < 0.2),
        "shuffle_instances": bool(rng.random() < 0.3),
        "beta_per_s": pick(rng, 0.0, 0.0, 0.2),
        "rule": pick(rng, *(name for name in RULES if name != "colocated"), *rule_names(composed=True)),
        "warm_start": pick(rng, None, "three-part", "random", "greedy+queue"),
        "reference": pick(rng, None, None, "greedy"),
    }
    if kind != "routing":
        settings["interval_s"] = pick(rng, 0.2, 1.0)
    if rng.random() < 0.3:
        settings["pad"] = (7, 8, 3)
    return make(kind, draw_scenario(rng), **settings)
