"""A cluster as plain numbers: instances, ports, paths and the rules that the engine follows.

This is the lowest description of a cluster: no names are looked up any more and nothing is optional.
`pdenv.scenario.Scenario.cluster()` produces it, the engine (`pdenv.sim`) and the reference simulator
consume it. The meaning of every number is in `docs/model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: KV precisions, coarsest last. The index is what the engine stores.
PRECISIONS = ("bf16", "fp8", "int4", "nvfp4")
N_PRECISIONS = len(PRECISIONS)

#: Port tiers in the order in which utilisation is reported.
TIERS = ("nic", "rack", "spine", "nvlink")

RESERVE_MODES = ("dispatch", "prefill_start", "prefill_end")
BINDING_MODES = ("dispatch", "prefill_end")


@dataclass(frozen=True)
class StepLaw:
    """Duration of one step: `a + b·x`, or a piecewise-linear table in x, plus quadratic or context terms.

    `x` is new tokens (prefill) or sequences (decode). `c_s` is s/token² for prefill, and one slope in
    s/token for each KV precision for decode.
    """

    a_s: float = 0.0
    b_s: float = 0.0
    c_s: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    table_x: tuple[float, ...] = ()
    table_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Profile:
    """Step times of one (GPU, model, tensor parallelism, precision)."""

    prefill: StepLaw  # only c_s[0] is used, s/token²
    decode: StepLaw
    piggyback: float = 0.0  # κ of a mixed iteration, in [0, 1]
    name: str = ""
    estimate: bool = False  # a roofline estimate, not a measurement


@dataclass(frozen=True)
class PrefillInstance:
    profile: int  # index into Cluster.profiles
    gpus: int
    staging_bytes: int
    kv_bytes_per_token: int  # of the KV in staging
    max_batch_tokens: int
    max_batch_requests: int
    chunked: bool = True
    sjf: bool = False  # shortest prompt first instead of first come, first served
    prefix_cache_blocks: int = 0
    active: bool = True  # at the start; else OFF
    startup_s: float = 0.0
    usd_per_hour: float = 0.0  # whole instance
    busy_w: float = 0.0
    idle_w: float = 0.0
    rack: int = 0
    kv_precision: int = 0  # of the KV in staging, index into PRECISIONS


@dataclass(frozen=True)
class DecodeInstance:
    profile: int
    gpus: int
    kv_bytes: int  # capacity
    store_precision: int  # index into PRECISIONS
    max_batch: int
    active: bool = True
    startup_s: float = 0.0
    usd_per_hour: float = 0.0
    busy_w: float = 0.0
    idle_w: float = 0.0
    rack: int = 0


@dataclass(frozen=True)
class ColocatedInstance:
    profile: int
    gpus: int
    kv_bytes: int
    store_precision: int
    max_batch: int
    max_batch_tokens: int
    prefix_cache_blocks: int = 0
    usd_per_hour: float = 0.0
    busy_w: float = 0.0
    idle_w: float = 0.0
    rack: int = 0


@dataclass(frozen=True)
class Port:
    name: str
    tier: int  # index into TIERS
    bytes_per_s: float  # achievable: line rate × efficiency
    line_bytes_per_s: float


@dataclass(frozen=True)
class Path:
    ports: tuple[int, ...]  # indices into Cluster.ports, at most 5
    latency_s: float
    cost_s_per_byte: tuple[float, ...]  # a wire precision each, length N_PRECISIONS
    tier: int  # index into TIERS: the slowest kind of hop


@dataclass(frozen=True)
class Cluster:
    layers: int
    kv_bytes_per_token: tuple[int, ...]  # a precision each, whole model, length N_PRECISIONS
    profiles: tuple[Profile, ...]
    prefill: tuple[PrefillInstance, ...]
    decode: tuple[DecodeInstance, ...]
    colocated: tuple[ColocatedInstance, ...]
    ports: tuple[Port, ...]
    paths: tuple[tuple[Path, ...], ...]  # [p][d]
    block_tokens: int = 512  # of the prefix-cache hashes
    reserve: int = 2  # index into RESERVE_MODES
    binding: int = 0  # index into BINDING_MODES
    decode_first: bool = False  # first_token: decode
    layerwise: bool = False  # overlap transfer with prefill
    contention: bool = True  # False: every flow has its path alone
    swap: bool = False  # preempted KV goes to host memory instead of being recomputed
    swap_bytes_per_s: float = 50e9
    mixed_store: bool = False  # a decode instance stores each request in its wire precision (hypothetical)
    receive_bypass: bool = False
    control_plane_delay_s: float = 0.0
    scrape_interval_s: float = 0.0  # 0: metrics are always fresh
    scrape_delay_s: float = 0.0  # less than the interval
    hold_max_s: float = 1.0
    allow_reject: bool = False
    scaling_interval_s: float = 0.0  # 0: no scaling
    gpu_budget: int = 1 << 30
    flip_delay_s: float = 0.0
    drain_max_s: float = 60.0
    #: precisions allowed for each quality tier, as a bit mask over PRECISIONS
    tier_precisions: tuple[int, ...] = (0b1111,)
    names: dict[str, list[str]] = field(default_factory=dict)  # "prefill" | "decode" | "colocated" | "racks"
