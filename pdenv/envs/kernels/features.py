"""The observation: every feature with its meaning, unit and range. `FEATURES` is the one table of them.

The compiled code in `pdenv.envs.kernels.observe` fills them in this order; `docs/environments.md` is written from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from pdenv.topology import PRECISIONS


class Scale(Enum):
    """How `NormalizeObservation` maps a feature into [−1, 1]."""

    FLAG = "as it is"
    SHARE = "divided by its largest value"
    LOG = "sign(x)·log(1 + |x|/unit) / log(1 + most/unit)"


@dataclass(frozen=True)
class Feature:
    """One number of an observation, saturating at `least` and `most`."""

    name: str
    meaning: str
    unit: str = "0 or 1"
    least: float = 0.0
    most: float = 1.0
    scale: Scale = Scale.FLAG
    scale_unit: float = 1.0


def _flag(name: str, meaning: str) -> Feature:
    return Feature(name, meaning)


def _share(name: str, meaning: str, most: float = 4.0) -> Feature:
    return Feature(name, meaning, "share", 0.0, most, Scale.SHARE)


def _seconds(name: str, meaning: str, unit: float = 0.01, most: float = 1e4) -> Feature:
    return Feature(name, meaning, "s", 0.0, most, Scale.LOG, unit)


def _tokens(name: str, meaning: str) -> Feature:
    return Feature(name, meaning, "tokens", 0.0, 1e8, Scale.LOG, 100.0)


def _count(name: str, meaning: str) -> Feature:
    return Feature(name, meaning, "count", 0.0, 1e6, Scale.LOG, 1.0)


def _weight(name: str, meaning: str, unit: str) -> Feature:
    return Feature(name, meaning, unit, 0.0, 1e6, Scale.LOG, 0.1)


_STATE = (
    _flag("present", "there is such an instance (0: padding)"),
    _flag("active", "it takes requests"),
    _flag("warming", "it loads weights"),
    _flag("draining", "it takes no new requests and empties"),
    _flag("legal", "the request may go there"),
    _flag(
        "chosen", "chosen in an earlier stage of this decision; when pairing, the prefill instance that has the request"
    ),
)

REQUEST = (
    _flag("route", "a request is to be dispatched"),
    _flag("pair", "a decode instance is to be chosen for a request that has been dispatched"),
    _flag("scale", "the pools may be scaled"),
    _flag("stage_kind", "sequential: the kind of action is to be chosen now"),
    _flag("stage_prefill", "sequential: the prefill instance"),
    _flag("stage_decode", "sequential: the decode instance"),
    _flag("stage_precision", "sequential: the wire precision"),
    _flag("stage_colocated", "sequential: the co-located instance"),
    _tokens("prompt_tokens", "length of its prompt"),
    _tokens("predicted_tokens", "length of its output as the predictor told at arrival"),
    _seconds("waited_s", "since its arrival"),
    _seconds("held_s", "since it was first held; 0 if never"),
    Feature("ttft_left_s", "until its TTFT limit passes; negative after that", "s", -1e4, 1e4, Scale.LOG, 0.01),
    _count("attempts", "decisions taken on it so far"),
    Feature("priority", "higher is kept longer in decode memory", "rank", 0.0, 1e3, Scale.LOG, 1.0),
    *(
        _flag(f"may_{name}", f"its tier allows {name} on the wire (when pairing: it was dispatched so)")
        for name in PRECISIONS
    ),
    _flag("may_hold", "it may be held"),
    _flag("may_reject", "it may be rejected"),
)

PREFILL = (
    *_STATE,
    _count("requests", "dispatched to it and not prefilled yet, as last scraped plus what was sent since"),
    _tokens("tokens", "prompt tokens to compute, the same"),
    _seconds("work_s", "predicted time to compute them, the same"),
    _share("staging", "KV in staging memory / its capacity, as last scraped"),
    _seconds("prefill_s", "time that this request's prompt takes on it alone"),
    Feature(
        "cached_share",
        "leading share of the prompt in its prefix cache, from cache events",
        "share",
        0.0,
        1.0,
        Scale.SHARE,
    ),
)

DECODE = (
    *_STATE,
    _count("requests", "sent to it and not finished, as last scraped plus what was sent since"),
    _tokens("tokens", "their prompt and predicted tokens, the same"),
    _share("kv", "KV of their prompts / its memory, the same"),
    _count("receiving", "requests that wait for its memory, as last scraped"),
    _share("batch", "requests / largest batch, the same"),
    _seconds("iteration_s", "time of an iteration with them and this request", 0.001, 1e3),
    _seconds("memory_wait_s", "estimated wait for memory: what this request and they need beyond it"),
    Feature("store", "bytes of its stored KV relative to BF16", "share", 0.0, 1.0, Scale.SHARE),
)

PAIR = (
    *(
        _seconds(
            f"transfer_{name}_s", f"transfer of this request in {name} if one more flow shared every port of the path"
        )
        for name in PRECISIONS
    ),
    Feature(
        "tier",
        "kind of link that the path has to cross: 0 NIC, 1 rack, 2 spine, 3 NVLink",
        "index",
        0.0,
        3.0,
        Scale.SHARE,
    ),
)

COLOCATED = (
    _STATE[0],
    _STATE[4],
    _STATE[5],
    _count("requests", "sent to it and not finished, as last scraped plus what was sent since"),
    _tokens("tokens", "their prompt and predicted tokens, the same"),
    _share("kv", "KV of their prompts / its memory, the same"),
    _count("receiving", "prompts that wait in its queue, as last scraped"),
    _seconds("work_s", "predicted time to compute their prompts, as last scraped plus what was sent since"),
    _seconds("iteration_s", "time of an iteration with them and this request", 0.001, 1e3),
    _seconds("prefill_s", "time that this request's prompt takes on it alone"),
    Feature(
        "cached_share",
        "leading share of the prompt in its prefix cache, from cache events",
        "share",
        0.0,
        1.0,
        Scale.SHARE,
    ),
    Feature("store", "bytes of its stored KV relative to BF16", "share", 0.0, 1.0, Scale.SHARE),
)

CLUSTER = (
    _count("gateway", "requests at the gateway"),
    _share("prefill_busy", "prefill busy time over the last control interval", 1.0),
    _share("prefill_demanded", "prefill busy or stalled time, the same", 1.0),
    _share("decode_memory", "KV memory of active decode instances in use at the last control tick", 1.0),
    _share("gpus_on", "GPUs of instances that are not off / the GPU budget", 1.0),
    _count("ticks_since_scaling", "control ticks since the pools were last scaled"),
    _share("hidden", "share of a prefill that hides transfer: (layers − 1)/layers if layer-wise, else 0", 1.0),
    _flag("late_binding", "decode instances are chosen when the prefill ends"),
    Feature("ttft_limit_s", "TTFT limit", "s", 0.0, 1e6, Scale.LOG, 0.1),
    Feature("tpot_limit_s", "TPOT limit", "s", 0.0, 1e6, Scale.LOG, 0.001),
    _weight("ttft_step", "charged when the TTFT limit passes", "cost units"),
    _weight("ttft_slope_per_s", "charged for each second after it", "cost units/s"),
    _weight("tpot_step", "charged when the TPOT limit passes", "cost units"),
    _weight("tpot_slope_per_s", "charged for each second after it", "cost units/s"),
    _weight("w_prefill", "weight of part 1 of the cost", "cost units/s"),
    _weight("w_transfer", "weight of part 2", "cost units/s"),
    _weight("w_decode", "weight of part 3", "cost units/s"),
    *(_weight(f"price_{name}", f"price of {name}", "cost units") for name in PRECISIONS),
)

#: In the order in which `gymnasium.spaces.flatten` puts them, so that the flat form is the same memory.
FEATURES: dict[str, tuple[Feature, ...]] = {
    "cluster": CLUSTER,
    "colocated": COLOCATED,
    "decode": DECODE,
    "pair": PAIR,
    "prefill": PREFILL,
    "request": REQUEST,
}

N_REQUEST, N_PREFILL, N_DECODE, N_PAIR, N_COLOCATED, N_CLUSTER = map(
    len, (REQUEST, PREFILL, DECODE, PAIR, COLOCATED, CLUSTER)
)


def column(part: str, name: str) -> int:
    """Position of a feature in the last axis of its part."""
    return next(k for k, feature in enumerate(FEATURES[part]) if feature.name == name)


def bounds(part: str) -> tuple[np.ndarray, np.ndarray]:
    """`(F,)` float32: least and largest values of the part's features."""
    low = np.array([feature.least for feature in FEATURES[part]], np.float32)
    high = np.array([feature.most for feature in FEATURES[part]], np.float32)
    return low, high
