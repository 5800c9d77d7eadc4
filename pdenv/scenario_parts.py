"""The sections of a scenario: instances, network and rules. Units are in the descriptions."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Precision = Literal["bf16", "fp8", "int4", "nvfp4"]
Weights = Literal["bf16", "fp8"]

#: Bytes of one KV element relative to BF16; NVFP4 holds 4 bits and an 8-bit scale for every 16 elements.
_KV_SIZE = {"bf16": 1.0, "fp8": 0.5, "int4": 0.25, "nvfp4": 0.28125}


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


def _no_slopes() -> dict[Precision, float]:
    return {"bf16": 0.0, "fp8": 0.0, "int4": 0.0, "nvfp4": 0.0}


def _for_each_precision(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return dict.fromkeys(_KV_SIZE, value)
    return value


def _scaled_to_each_precision(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {precision: int(value * size) if math.isfinite(value) else value for precision, size in _KV_SIZE.items()}
    return value


# Everything is bounded so that sums stay exact in int64 and float64.
Number = Annotated[float, BeforeValidator(_not_bool)]
Whole = Annotated[int, BeforeValidator(_not_bool)]
Seconds = Annotated[Number, Field(ge=0, le=1e8)]
Rate = Annotated[Number, Field(ge=1, le=1e15)]
Bytes = Annotated[Whole, Field(ge=1, le=10**15)]
Tokens = Annotated[Whole, Field(ge=1, le=10**9)]
CachedTokens = Annotated[Whole, Field(ge=0, le=10**12)]
Instances = Annotated[Whole, Field(ge=1, le=4096)]
Batch = Annotated[Whole, Field(ge=1, le=10**6)]
Slope = Annotated[Number, Field(ge=0, le=1e3)]


class Config(BaseModel):
    """Frozen and strict about its keys; NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# ---- inline models and profiles ------------------------------------------------------------------


class InlineModel(Config):
    """A model that the catalog does not hold: what its KV cache costs."""

    layers: Annotated[Whole, Field(ge=1, le=10_000)] = Field(description="transformer layers that hold KV, a count")
    kv_bytes_per_token: Annotated[
        dict[Precision, Annotated[Whole, Field(ge=1, le=10**9)]], BeforeValidator(_scaled_to_each_precision)
    ] = Field(
        description="KV of one token over all layers in bytes, for each precision; a single number is BF16, "
        "and FP8, INT4 and NVFP4 follow as 1/2, 1/4 and 9/32 of it"
    )


class PrefillLaw(Config):
    """Duration of a prefill batch: a + b·N (or a table in N) + c·Σ((done + x)² − done²)."""

    a_s: Seconds = Field(0.0, description="constant part of a step, s")
    b_s: Slope = Field(0.0, description="s per new token")
    c_s: Slope = Field(0.0, description="s per squared token of a prompt")
    table_x: tuple[Number, ...] = Field((), description="tokens at which table_s is given, increasing, at least two")
    table_s: tuple[Seconds, ...] = Field((), description="duration at each table_x, s; replaces a_s + b_s·N")


class DecodeLaw(Config):
    """Duration of a decode iteration: a + b·B (or a table in B) + Σ c·L over KV precisions."""

    a_s: Seconds = Field(0.0, description="constant part of an iteration, s")
    b_s: Slope = Field(0.0, description="s per sequence")
    c_s: Annotated[dict[Precision, Slope], BeforeValidator(_for_each_precision)] = Field(
        default_factory=_no_slopes,
        description="s per token of context, for each KV precision; a single number holds for all of them",
    )
    table_x: tuple[Number, ...] = Field((), description="sequences at which table_s is given, increasing, at least two")
    table_s: tuple[Seconds, ...] = Field((), description="duration at each table_x, s; replaces a_s + b_s·B")


class InlineProfile(Config):
    """Step times given in the scenario instead of taken from the catalog."""

    prefill: PrefillLaw = Field(description="prefill step, s")
    decode: DecodeLaw = Field(description="decode iteration, s")
    piggyback: Annotated[Number, Field(ge=0, le=1)] = Field(
        0.0, description="share of the shorter part of a mixed iteration that is hidden, dimensionless"
    )
    source: str = Field("", description="where the numbers come from (text, no unit)")


# ---- instances -----------------------------------------------------------------------------------


class Group(Config):
    """Instances that are alike."""

    count: Instances = Field(1, description="instances in this group, a count")
    gpu: str = Field(description="GPU of the catalog (a name, no unit)")
    tensor_parallel: Whole = Field(8, description="GPUs of an instance: 1, 2, 4 or 8")
    weights: Weights = Field("fp8", description="precision of the model weights (no unit)")
    profile: str | None = Field(None, description="name under `profiles`; default: from the catalog (no unit)")
    rack: str | None = Field(None, description="rack of all instances, a name under `network.racks` (no unit)")
    racks: tuple[str, ...] | None = Field(None, description="rack of each instance in order, instead of `rack` (names)")


class PdGroup(Group):
    """What prefill and decode groups share."""

    active: Annotated[Whole, Field(ge=0, le=4096)] | None = Field(
        None, description="instances that are on at the start, a count; default: all, the others are off"
    )
    nvlink_domain: str | None = Field(
        None,
        description="NVLink domain of all instances; pairs in one domain use NVLink (a name, no unit)",
    )
    nic_bytes_per_s: Rate | None = Field(
        None,
        description="line rate of an instance's NICs one way, bytes/s; default: that of its GPUs together",
    )
    startup_s: Seconds = Field(60.0, description="time to load weights when an instance is switched on, s")


class PrefillGroup(PdGroup):
    """Prefill instances."""

    kv: Precision = Field("bf16", description="precision of the KV that prefill produces (no unit)")
    staging_bytes: Bytes | None = Field(
        None, description="memory for KV that is computed or not yet sent, bytes; default: what HBM leaves"
    )
    max_batch_tokens: Tokens = Field(8192, description="new tokens in one step, tokens")
    max_batch_requests: Batch = Field(64, description="prompts in one step, a count")
    chunked: bool = Field(True, description="whether a long prompt is split over steps (true or false)")
    order: Literal["fcfs", "sjf"] = Field("fcfs", description="queue order: first come or shortest prompt first")
    prefix_cache_tokens: CachedTokens = Field(0, description="prefix cache of an instance, tokens; 0: none")


class DecodeGroup(PdGroup):
    """Decode instances."""

    store: Precision = Field("bf16", description="precision in which KV is stored (no unit)")
    kv_bytes: Bytes | None = Field(None, description="memory for KV, bytes; default: what HBM leaves")
    max_batch: Batch = Field(256, description="sequences in one iteration, a count")


class ColocatedGroup(Group):
    """Instances that prefill and decode in the same iterations (chunked prefill)."""

    store: Precision = Field("bf16", description="precision in which KV is stored (no unit)")
    kv_bytes: Bytes | None = Field(None, description="memory for KV, bytes; default: what HBM leaves")
    max_batch: Batch = Field(256, description="sequences in one iteration, a count")
    max_batch_tokens: Tokens = Field(
        2048, description="decoded and prefilled tokens in one iteration, tokens; above max_batch"
    )
    prefix_cache_tokens: CachedTokens = Field(0, description="prefix cache of an instance, tokens; 0: none")
    piggyback: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        None,
        description="share of the shorter part of a mixed iteration that is hidden; default: the profile's",
    )


AnyGroup = PrefillGroup | DecodeGroup | ColocatedGroup


# ---- network and rules ---------------------------------------------------------------------------


class Rack(Config):
    """The connection of one rack to the others."""

    uplink_bytes_per_s: Rate | None = Field(None, description="line rate out of the rack, bytes/s; default: no limit")
    downlink_bytes_per_s: Rate | None = Field(None, description="line rate into the rack, bytes/s; default: no limit")


class Network(Config):
    """Links between instances. Bandwidth is one way; NVLink figures come from the catalog."""

    link: str = Field("infiniband", description="catalog link that gives the defaults of this section (no unit)")
    efficiency: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        None, description="achievable share of a line rate, dimensionless; default: the link's"
    )
    latency_s: Seconds | None = Field(None, description="latency of a transfer, s; default: the link's")
    cross_rack_latency_s: Seconds = Field(5e-6, description="further latency of a transfer between racks, s")
    op_s: Seconds | None = Field(None, description="time to post one operation, s; default: the link's")
    block_bytes: Bytes | None = Field(None, description="bytes that one operation moves, bytes; default: the link's")
    racks: dict[str, Rack] = Field(default_factory=dict, description="racks by name (no unit); default: one rack")
    spine_bytes_per_s: Rate | None = Field(
        None, description="line rate that all transfers between racks share, bytes/s; default: no limit"
    )
    contention: Literal["max_min", "none"] = Field(
        "max_min",
        description="max_min: transfers share links fairly; none: each has its path alone (no unit)",
    )
    overlap: Literal["layer_wise", "blocking"] = Field(
        "layer_wise",
        description="layer_wise: KV is sent while prefill computes; blocking: after it (no unit)",
    )


class Kv(Config):
    """When decode memory is taken, what happens when it is short, and what conversion costs."""

    reserve: Literal["dispatch", "prefill_start", "prefill_end"] = Field(
        "prefill_start", description="when decode memory for the prompt is asked for (no unit)"
    )
    decode_binding: Literal["dispatch", "prefill_end"] = Field(
        "dispatch", description="when the decode instance is chosen (no unit)"
    )
    first_token: Literal["prefill", "decode"] = Field("prefill", description="who emits the first token (no unit)")
    preemption: Literal["recompute", "swap"] = Field(
        "recompute", description="what becomes of the KV of a preempted sequence (no unit)"
    )
    swap_bytes_per_s: Rate = Field(50e9, description="rate between GPU and host memory, bytes/s")
    mixed_store: bool = Field(
        False,
        description="hypothetical: a decode instance stores each request as it was sent (true or false)",
    )
    receive_bypass: bool = Field(
        False,
        description="whether one in the receive queue may overtake one that does not fit (true or false)",
    )
    quantise_bytes_per_s: Rate = Field(
        400e9, description="rate of converting KV before it is sent, bytes/s in the wire precision"
    )
    dequantise_bytes_per_s: Rate = Field(
        400e9, description="rate of converting KV after it is received, bytes/s in the wire precision"
    )
    block_tokens: Tokens = Field(512, description="tokens of one prefix-cache block, tokens")


class Control(Config):
    """What the scheduler knows and may do."""

    control_plane_delay_s: Seconds = Field(0.0, description="from a dispatch decision to its delivery, s")
    scrape_interval_s: Seconds = Field(0.0, description="time between metric updates, s; 0: always fresh")
    scrape_delay_s: Seconds = Field(0.0, description="age of metrics when they arrive, s; below scrape_interval_s")
    hold_max_s: Annotated[Number, Field(gt=0, le=1e6)] = Field(1.0, description="longest hold at the gateway, s")
    allow_reject: bool = Field(False, description="whether a scheduler may reject requests (true or false)")


class Scaling(Config):
    """Elastic pools."""

    interval_s: Seconds = Field(0.0, description="time between scaling decisions, s; 0: no scaling")
    gpu_budget: Annotated[Whole, Field(ge=1, le=10**6)] | None = Field(
        None,
        description="GPUs that may be on at once, co-located ones included, a count; default: all there are",
    )
    flip_delay_s: Seconds = Field(60.0, description="time to change the role of an instance once it is empty, s")
    drain_max_s: Seconds = Field(60.0, description="longest wait for a decode instance to empty, s")


class Tier(Config):
    """A class of requests by the KV quality that it needs."""

    share: Annotated[Number, Field(ge=0, le=1)] = Field(description="share of all requests, dimensionless")
    precisions: tuple[Precision, ...] = Field(
        min_length=1, description="KV precisions that its requests may be sent and stored in (no unit)"
    )


def _default_tiers() -> dict[str, Tier]:
    return {
        "internal": Tier(share=0.3, precisions=("bf16", "fp8", "int4", "nvfp4")),
        "user-facing": Tier(share=0.6, precisions=("bf16", "fp8")),
        "high-value": Tier(share=0.1, precisions=("bf16",)),
    }


class Quality(Config):
    """Quality tiers. The index of a tier follows the order given here."""

    tiers: dict[str, Tier] = Field(
        default_factory=_default_tiers, min_length=1, description="tiers by name (no unit); shares sum to 1"
    )


class Sla(Config):
    """Limits of a good request."""

    ttft_s: Annotated[Number, Field(gt=0, le=1e6)] = Field(5.0, description="time to first token, s")
    tpot_s: Annotated[Number, Field(gt=0, le=1e6)] = Field(0.1, description="standard time per output token, s")


Weight = Annotated[Number, Field(ge=0, le=1e6)]


#: 0.1 cost units a point (or per cent) of loss, from pdenv/catalog/kv_quality.yaml: FP8 0.7 points, the lower of its
#: published bounds; 4-bit 2.5, the middle of 1 to 4; NVFP4 1. Losses depend on model and task, so these are defaults.
_QUALITY_PRICE: dict[Precision, float] = {"bf16": 0.0, "fp8": 0.07, "int4": 0.25, "nvfp4": 0.1}


def _complete_prices(value: Any) -> Any:
    return {**_QUALITY_PRICE, **value} if isinstance(value, dict) else value


class Cost(Config):
    """Cost of a request: weighted joint TPOT and penalties. A cost unit is one second of joint TPOT.

    With `mode: normalised` parts 1 and 2 are in TTFT limits and part 3 in TPOT limits.
    """

    mode: Literal["joint", "standard", "normalised"] = Field("joint", description="which latency is charged (no unit)")
    w_prefill: Weight = Field(1.0, description="weight of part 1 (arrival to prefill end), cost units per s")
    w_transfer: Weight = Field(1.0, description="weight of part 2 (prefill end to decode start), cost units per s")
    w_decode: Weight = Field(1.0, description="weight of part 3 (mean decode time per token), cost units per s")
    ttft_step: Weight = Field(1.0, description="charged once when the TTFT limit passes, cost units per request")
    ttft_slope_per_s: Weight = Field(0.1, description="charged for each second past the TTFT limit, cost units per s")
    tpot_step: Weight = Field(1.0, description="charged once when the TPOT limit passes, cost units per request")
    tpot_slope_per_s: Weight = Field(
        0.0, description="charged for each second of decoding past the TPOT limit, cost units per s"
    )
    rejection: Weight = Field(60.0, description="charged for a rejected request, cost units per request")
    failure: Weight = Field(60.0, description="charged for a failed or unfinished request, cost units per request")
    quality: Annotated[dict[Precision, Weight], BeforeValidator(_complete_prices)] = Field(
        default_factory=lambda: dict(_QUALITY_PRICE),
        description="charged for the coarser of the precisions in which a request's KV is sent and stored, cost units "
        "per request; precisions not given keep their default",
    )
    gpu_hour: Weight = Field(0.0, description="charged for each GPU-hour billed in the window, cost units per GPU-hour")
    churn: Weight = Field(
        0.0, description="charged for each instance switched on or drained in the window, cost units per instance"
    )

    def prices(self) -> tuple[float, ...]:
        """Price of each precision, in their order, cost units per request."""
        return tuple(self.quality[name] for name in _QUALITY_PRICE)
