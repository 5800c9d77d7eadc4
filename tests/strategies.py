"""Random small cases that together cover every feature, from a seed or from Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from reference import ReferenceResult
from scripted import Script

from pdenv.sim.records import ARRIVAL
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

MAX_REQUESTS = 60


class Case(NamedTuple):
    cluster: Cluster
    arrivals: np.ndarray  # (n,) ARRIVAL
    blocks: np.ndarray  # int64
    script: Script


class Draw(Protocol):
    def integer(self, low: int, high: int) -> int: ...  # both included
    def uniform(self, low: float, high: float) -> float: ...


class NumpyDraw:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))


class HypothesisDraw:
    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.draw(st.integers(0, 1 << 20)) / (1 << 20)


def pick(draw: Draw, values: Sequence[Any]) -> Any:
    return values[draw.integer(0, len(values) - 1)]


def chance(draw: Draw, share: float) -> bool:
    """True with a probability of `share`; shrinks to False."""
    return draw.integer(1, 100) > 100 - round(100 * share)


# ---- workload


def _tokens(draw: Draw, low: int, high: int, heavy: float) -> int:
    return draw.integer(low, high * 4) if chance(draw, heavy) else draw.integer(low, high)


def _arrivals(draw: Draw, tiers: int, block_tokens: int, scale_s: float) -> tuple[np.ndarray, np.ndarray]:
    n = draw.integer(1, MAX_REQUESTS)
    rhythm = pick(draw, ("spread", "grid", "burst"))
    equal = chance(draw, 0.35)  # structured ties: all alike
    with_blocks = chance(draw, 0.4)
    priorities = pick(draw, (1, 3))
    prompt, output = draw.integer(4, 60), draw.integer(1, 30)
    rows, t = np.zeros(n, ARRIVAL), 0.0
    blocks: list[int] = []
    for row in rows:
        x, out = (prompt, output) if equal else (_tokens(draw, 1, 60, 0.15), _tokens(draw, 1, 20, 0.1))
        out = 1 if chance(draw, 0.06) else out
        if rhythm == "spread":
            t += draw.uniform(0.0, 2.0 * scale_s)
        elif rhythm == "grid":
            t += scale_s * draw.integer(0, 2)
        elif chance(draw, 0.1):
            t += 10.0 * scale_s
        row["arrival_s"], row["prompt_tokens"], row["output_tokens"] = t, x, out
        row["predicted_tokens"] = max(1, out + draw.integer(-3, 3))
        row["tier"], row["priority"] = draw.integer(0, tiers - 1), draw.integer(0, priorities - 1)
        if with_blocks:
            row["block_start"], row["block_count"] = len(blocks), -(-x // block_tokens)
            family = draw.integer(0, 3)  # prompts of a family share their leading blocks
            shared = draw.integer(0, int(row["block_count"]))
            for k in range(int(row["block_count"])):
                blocks.append(1000 * family + k if k < shared else 10**6 + len(blocks))
    return rows, np.array(blocks, np.int64)


# ---- hardware


def _law(draw: Draw, a: float, b: float, c: float) -> StepLaw:
    c_s = tuple(c * share for share in (1.0, 0.6, 0.4, 0.45))
    if chance(draw, 0.3):
        xs = sorted({draw.integer(1, 8), draw.integer(9, 40), draw.integer(41, 200)})
        ys = tuple(a + b * x * draw.uniform(0.7, 1.3) for x in xs)
        return StepLaw(c_s=c_s, table_x=tuple(float(x) for x in xs), table_s=ys)
    return StepLaw(a, b, c_s)


def _profile(draw: Draw) -> Profile:
    if chance(draw, 0.06):  # steps as short as they can be
        return Profile(StepLaw(), StepLaw(0.001), 0.0)
    prefill = _law(draw, draw.uniform(0.001, 0.01), draw.uniform(2e-5, 2e-4), pick(draw, (0.0, 1e-7, 1e-6)))
    decode = _law(draw, draw.uniform(0.001, 0.008), pick(draw, (0.0, 1e-4)), pick(draw, (0.0, 1e-6, 2e-5)))
    return Profile(prefill, decode, pick(draw, (0.0, 0.3, 1.0)))


def _network(draw: Draw, n_prefill: int, n_decode: int) -> tuple[tuple[Port, ...], tuple[tuple[Path, ...], ...]]:
    """Every instance on a NIC of its own, in one or two racks, with or without spine and NVLink pairs."""
    ports: list[Port] = []

    def port(name: str, tier: int, rate: float) -> int:
        ports.append(Port(name, tier, rate, rate * 1.25))
        return len(ports) - 1

    speed = pick(draw, (2e6, 1e7, 5e7, 1e9))  # bytes/s of a NIC; one token is some kB
    same = chance(draw, 0.5)

    def rate() -> float:
        return speed if same else speed * draw.uniform(0.5, 2.0)

    racks = pick(draw, (1, 2))
    spine = port("spine", 2, rate() * draw.uniform(0.5, 3.0)) if racks == 2 and chance(draw, 0.6) else None
    up = [port(f"uplink {r}", 1, rate() * 1.5) for r in range(racks)]
    down = [port(f"downlink {r}", 1, rate() * 1.5) for r in range(racks)]
    egress = [port(f"egress {p}", 0, rate()) for p in range(n_prefill)]
    ingress = [port(f"ingress {d}", 0, rate()) for d in range(n_decode)]
    nvlink = {
        i: (port(f"nv out {i}", 3, 20 * rate()), port(f"nv in {i}", 3, 20 * rate()))
        for i in range(min(n_prefill, n_decode))
    }
    with_nvlink = chance(draw, 0.4)
    latency = pick(draw, (0.0, 1e-5, 2e-3))
    cost = pick(draw, (0.0, 1e-9, 2e-8))
    rows = []
    for p in range(n_prefill):
        row = []
        for d in range(n_decode):
            costs = tuple(cost * (1 + q) for q in range(N_PRECISIONS))
            if with_nvlink and p == d:
                row.append(Path(nvlink[p], latency / 10, costs, 3))
            elif p % racks == d % racks:
                row.append(Path((egress[p], ingress[d]), latency, costs, 0))
            else:
                middle = (up[p % racks], *(() if spine is None else (spine,)), down[d % racks])
                row.append(Path((egress[p], *middle, ingress[d]), 2 * latency, costs, 1 if spine is None else 2))
        rows.append(tuple(row))
    return tuple(ports), tuple(rows)


def _prefill(draw: Draw, i: int, profiles: int, kv: Sequence[int], longest: int, first: bool) -> PrefillInstance:
    precision = pick(draw, (0, 0, 1))
    tight = pick(draw, (0.7, 1.0, 1.3, 2.5, 20.0)) if not first else pick(draw, (1.0, 1.5, 3.0, 20.0))
    return PrefillInstance(
        profile=draw.integer(0, profiles - 1),
        gpus=draw.integer(1, 2),
        staging_bytes=int(longest * kv[precision] * tight),
        kv_bytes_per_token=kv[precision],
        max_batch_tokens=pick(draw, (8, 32, 100, 1000)),
        max_batch_requests=pick(draw, (1, 2, 16)),
        chunked=chance(draw, 0.6),
        sjf=chance(draw, 0.3),
        prefix_cache_blocks=pick(draw, (0, 3, 10, 100)),
        active=first or chance(draw, 0.7),
        startup_s=pick(draw, (0.0, 0.01, 0.1)),
        rack=i % 2,
        kv_precision=precision,
    )


def _decode(draw: Draw, i: int, profiles: int, kv: Sequence[int], longest: int, first: bool) -> DecodeInstance:
    precision = pick(draw, (0, 0, 1, 2))
    return DecodeInstance(
        profile=draw.integer(0, profiles - 1),
        gpus=draw.integer(1, 2),
        kv_bytes=int(longest * kv[precision] * pick(draw, (0.8, 1.0, 1.1, 1.5, 2.5, 20.0))) + draw.integer(0, 3000),
        store_precision=precision,
        max_batch=pick(draw, (1, 2, 5, 64)),
        active=first or chance(draw, 0.7),
        startup_s=pick(draw, (0.0, 0.01, 0.1)),
        rack=i % 2,
    )


def _colocated(draw: Draw, profiles: int, kv: Sequence[int], longest: int) -> ColocatedInstance:
    precision = pick(draw, (0, 1))
    return ColocatedInstance(
        profile=draw.integer(0, profiles - 1),
        gpus=draw.integer(1, 2),
        kv_bytes=int(longest * kv[precision] * pick(draw, (0.4, 0.7, 1.0, 1.1, 1.6, 20.0))),
        store_precision=precision,
        max_batch=pick(draw, (1, 3, 16)),
        max_batch_tokens=pick(draw, (3, 6, 24, 200)),
        prefix_cache_blocks=pick(draw, (0, 4, 50)),
    )


def _rules(draw: Draw) -> dict[str, Any]:
    """Flags and control settings, without the combinations that exclude each other."""
    binding = pick(draw, (0, 0, 0, 1))
    scaling = chance(draw, 0.35)
    stale = chance(draw, 0.2)
    interval = pick(draw, (0.013, 0.05))
    return {
        "reserve": 2 if binding else draw.integer(0, 2),
        "binding": binding,
        "decode_first": chance(draw, 0.2),
        "layerwise": not binding and chance(draw, 0.55),
        "contention": chance(draw, 0.85),
        "swap": chance(draw, 0.35),
        "swap_bytes_per_s": pick(draw, (1e7, 1e9)),
        "mixed_store": chance(draw, 0.2),
        "receive_bypass": chance(draw, 0.3),
        "control_plane_delay_s": pick(draw, (0.0, 0.0, 1e-3, 0.02)),
        "scrape_interval_s": interval if stale else 0.0,
        "scrape_delay_s": pick(draw, (0.0, 0.007)) if stale else 0.0,
        "hold_max_s": pick(draw, (0.02, 0.3)),
        "allow_reject": chance(draw, 0.3),
        "scaling_interval_s": pick(draw, (0.01, 0.04)) if scaling else 0.0,
        "gpu_budget": pick(draw, (6, 9, 100)) if scaling else 1 << 30,
        "flip_delay_s": pick(draw, (0.0, 0.02)),
        "drain_max_s": pick(draw, (0.0, 0.01, 0.05, 60.0)),
    }


def build(draw: Draw) -> Case:
    kv = pick(draw, ((4096, 2048, 1024, 1152), (1000, 500, 250, 300)))
    tiers = pick(draw, ((0b1111,), (0b1111, 0b0001), (0b0011, 0b1111, 0b0100)))
    block_tokens = pick(draw, (4, 16))
    scale_s = pick(draw, (0.001, 0.004, 0.02))
    arrivals, blocks = _arrivals(draw, len(tiers), block_tokens, scale_s)
    longest = max(8, int(arrivals["prompt_tokens"].max()))
    n_profiles = draw.integer(1, 3)
    n_prefill, n_decode = draw.integer(1, 4), draw.integer(1, 4)
    n_colocated = pick(draw, (0, 0, 1, 1, 2))
    ports, paths = _network(draw, n_prefill, n_decode)
    cluster = Cluster(
        layers=pick(draw, (1, 2, 4, 32)),
        kv_bytes_per_token=kv,
        profiles=tuple(_profile(draw) for _ in range(n_profiles)),
        prefill=tuple(_prefill(draw, i, n_profiles, kv, longest, i == 0) for i in range(n_prefill)),
        decode=tuple(_decode(draw, i, n_profiles, kv, longest, i == 0) for i in range(n_decode)),
        colocated=tuple(_colocated(draw, n_profiles, kv, longest) for _ in range(n_colocated)),
        ports=ports,
        paths=paths,
        block_tokens=block_tokens,
        tier_precisions=tiers,
        **_rules(draw),
    )
    if chance(draw, 0.3):  # equal instances: ties between instances too
        cluster = replace(
            cluster,
            prefill=tuple(replace(cluster.prefill[0], active=p.active) for p in cluster.prefill),
            decode=tuple(replace(cluster.decode[0], active=d.active) for d in cluster.decode),
        )
    script = Script(
        seed=draw.integer(0, 1 << 30),
        hold_share=pick(draw, (0.0, 0.0, 0.3)),
        reject_share=pick(draw, (0.0, 0.1)),
        colocated_share=pick(draw, (0.2, 0.5, 0.9)),
        scale_share=pick(draw, (0.3, 0.9)),
        flip_share=pick(draw, (0.0, 0.5)),
    )
    return Case(cluster, arrivals, blocks, script)


def draw_case(seed: int) -> Case:
    """One case, the same for the same seed."""
    return build(NumpyDraw(seed))


@st.composite
def cases(draw: DrawFn) -> Case:
    """The same distribution for Hypothesis, which shrinks towards few and plain requests."""
    return build(HypothesisDraw(draw))


#: What a batch of some hundred cases must have seen.
ALL_FEATURES = frozenset(
    [
        "blocking",
        "layerwise",
        "reserve_dispatch",
        "reserve_prefill_start",
        "reserve_prefill_end",
        "binding_prefill_end",
        "decode_first",
        "no_contention",
        "mixed_store",
        "receive_bypass",
        "scrape",
        "scrape_delay",
        "control_plane_delay",
        "sjf",
        "chunked",
        "unchunked",
        "table",
        "one_layer",
        "many_layers",
        "nvlink",
        "spine",
        "zero_latency",
        "colocated_mode",
        "pair_mode",
        "tiers",
        "priorities",
        "blocks",
        "completed",
        "rejected",
        "too_large",
        "failed_oom",
        "unfinished",
        "preemption",
        "swap",
        "recompute",
        "restored",
        "revocation",
        "revoked_ready",
        "flow_aborted",
        "flow_cancelled",
        "flow_before_prefill_end",
        "tight",
        "shared_port",
        "bypass",
        "stall",
        "chunk",
        "prefill_batch",
        "prefix_hit",
        "one_token",
        "mixed",
        "colocated_preemption",
        "colocated_revocation",
        "hold",
        "hold_expired",
        "tie",
        "to_warming",
        "to_active",
        "to_draining",
        "to_off",
        "over_budget",
        "flip",
        "taken_back",
        "paired_again",
        "drain_deadline",
        "moved",
    ]
)


def features(case: Case, result: ReferenceResult) -> set[str]:
    """Names of what was configured in a case and of what occurred in its run."""
    c, rows = case.cluster, result.records
    used = {int(i) for i in rows["prefill"] if i >= 0}
    flows = rows[~np.isnan(rows["flow_start_s"])]
    tiers_used = {c.paths[r["prefill"]][r["decode"]].tier for r in flows if r["prefill"] >= 0 and r["decode"] >= 0}
    found = {name for name, count in result.happened.items() if count}
    yes = {
        "blocking": not c.layerwise and len(flows) > 0,
        "layerwise": c.layerwise and len(flows) > 0,
        "reserve_" + ("dispatch", "prefill_start", "prefill_end")[c.reserve]: len(flows) > 0,
        "binding_prefill_end": c.binding == 1 and len(flows) > 0,
        "decode_first": c.decode_first and len(flows) > 0,
        "no_contention": not c.contention and len(flows) > 0,
        "mixed_store": c.mixed_store and len(flows) > 0,
        "receive_bypass": c.receive_bypass and len(flows) > 0,
        "scrape": c.scrape_interval_s > 0 and "hold" in found,
        "scrape_delay": c.scrape_delay_s > 0 and "hold" in found,
        "control_plane_delay": c.control_plane_delay_s > 0 and len(used) > 0,
        "sjf": any(c.prefill[p].sjf for p in used),
        "chunked": any(c.prefill[p].chunked for p in used),
        "unchunked": any(not c.prefill[p].chunked for p in used),
        "table": any(p.prefill.table_x or p.decode.table_x for p in c.profiles),
        "one_layer": c.layers == 1 and c.layerwise,
        "many_layers": c.layers > 1 and c.layerwise,
        "nvlink": 3 in tiers_used,
        "spine": 2 in tiers_used,
        "zero_latency": len(flows) > 0 and all(path.latency_s == 0 for row in c.paths for path in row),
        "colocated_mode": bool((rows["mode"] == 2).any()),
        "pair_mode": bool((rows["mode"] == 1).any()),
        "tiers": len(c.tier_precisions) > 1,
        "priorities": bool(case.arrivals["priority"].max() > 0) and "preemption" in found,
        "blocks": len(case.blocks) > 0,
        "stall": any(row["stalled_s"] > 0 for row in result.totals["prefill"]),
        "recompute": "restored" in found and not c.swap,
    }
    found |= {name for name, is_there in yes.items() if is_there}
    statuses = ("waiting", "completed", "rejected", "too_large", "failed_oom", "unfinished")
    return found | {statuses[s] for s in rows["status"]}
