"""What a scheduler written in Python may see, and what it may answer.

A view is a copy in plain Python numbers, taken at the moment of the decision: it does not change afterwards
and gives no access to the engine. It holds loads as schedulers see them (with stale metrics: the last scrape
that has arrived, plus the gateway's own ledger since then) and never a true output length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from pdenv.sim import decisions
from pdenv.sim.engine import Objective, Simulation
from pdenv.sim.state import (
    W_CHURN,
    W_DECODE,
    W_FAILURE,
    W_GPU,
    W_PREFILL,
    W_QUALITY,
    W_REJECTION,
    W_TPOT_SLOPE,
    W_TPOT_STEP,
    W_TRANSFER,
    W_TTFT_SLOPE,
    W_TTFT_STEP,
)
from pdenv.topology import Cluster


class Load(NamedTuple):
    """An instance's load as the scheduler sees it."""

    requests: int  # dispatched to it and not done there
    tokens: int  # prefill: prompt tokens to compute; else: prompt + predicted tokens of its requests
    kv_bytes: int  # prefill: staging memory in use; else: KV of its requests' prompts
    receiving: int  # decode: depth of its receive queue; co-located: of its queue
    work_s: float  # predicted seconds of prefill work


@dataclass(frozen=True)
class View:
    """The cluster at a decision. P prefill, D decode and H co-located instances, in their numbering.

    Facts on instances, paths and step times are in `cluster` (see `pdenv.topology`) and never change.
    """

    cluster: Cluster
    objective: Objective  # what cost-minimising schedulers aim at
    now: float  # s
    prefill: tuple[Load, ...]  # (P,)
    decode: tuple[Load, ...]  # (D,)
    colocated: tuple[Load, ...]  # (H,)
    prefill_state: tuple[int, ...]  # (P,) OFF, WARMING, ACTIVE or DRAINING of pdenv.sim.state
    decode_state: tuple[int, ...]  # (D,)
    port_bytes_per_s: tuple[float, ...]  # (ports,) achievable
    port_flows: tuple[int, ...]  # (ports,) transfers on each port, as of the last scrape where metrics are stale
    prefill_busy: float  # share of the last control interval, in [0, 1]
    prefill_demanded: float  # busy or stalled, the same
    decode_memory: float  # share of the decode pool's KV memory in use at the last control tick
    waiting_tokens: int  # prompt tokens at the gateway at the last control tick
    offered_prefill_s: float  # what arrived in the last control interval would take prefill instance 0 by itself, s


@dataclass(frozen=True)
class RequestView:
    """The request that a decision is about, and what is legal for it now.

    The tuples are ascending, and empty where there is nothing. When a decode instance is to be chosen for a
    request that has been dispatched already, only the precision of its wire format is in `decodes`.
    """

    number: int  # in order of arrival
    arrival_s: float
    prompt_tokens: int
    predicted_tokens: int  # of output, by the length predictor
    tier: int  # of quality, index into Cluster.tier_precisions
    priority: int
    attempts: int  # decisions taken on it so far
    first_hold_s: float  # when it was first held; NaN: never
    may_hold: bool  # hold_max_s since then have not passed
    may_reject: bool
    precisions: tuple[int, ...]  # wire formats that its tier allows, finest first
    prefills: tuple[int, ...]
    decodes: dict[int, tuple[int, ...]]  # by wire precision
    colocated: tuple[int, ...]
    prefill: int  # instance that it was dispatched to; −1: none yet
    wire: int  # precision in which it was dispatched; −1: not yet


class Kind(Enum):
    """Kinds of answer to a route decision."""

    PAIR = "pair"
    COLOCATED = "colocated"
    HOLD = "hold"  # let nobody pass for now; limited by hold_max_s
    REJECT = "reject"  # where the scenario allows it
    WAIT = "wait"  # there is nowhere to go; asked again when something changes


class Route(NamedTuple):
    """Where a request goes. Use the constructors below; fields that do not apply are −1."""

    kind: Kind
    prefill: int = -1
    decode: int = -1  # −1 also where the cluster chooses it at prefill end
    precision: int = -1
    instance: int = -1  # co-located

    @classmethod
    def pair(cls, prefill: int, decode: int, precision: int) -> Route:
        return cls(Kind.PAIR, prefill, decode, precision)

    @classmethod
    def colocated(cls, instance: int) -> Route:
        return cls(Kind.COLOCATED, instance=instance)


HOLD = Route(Kind.HOLD)
REJECT = Route(Kind.REJECT)
WAIT = Route(Kind.WAIT)


class Scale(NamedTuple):
    """Pool deltas in {−1, 0, +1}, or a flip: 1 prefill to decode, 2 decode to prefill."""

    prefill: int = 0
    decode: int = 0
    flip: int = 0


def see(sim: Simulation) -> View:
    """The cluster as a scheduler sees it at the pending decision."""
    views, h = sim.block.views, sim.block.header
    n_prefill, n_decode = int(h["n_prefill"]), int(h["n_decode"])
    n_all = n_prefill + n_decode + int(h["n_colocated"])
    loads = tuple(map(Load._make, views["seen"][:n_all].tolist()))
    flows = "seen_flows" if h["scrape_interval_s"] > 0.0 else "flows"
    return View(
        cluster=sim.cluster,
        objective=_objective(h),
        now=float(h["now"]),
        prefill=loads[:n_prefill],
        decode=loads[n_prefill : n_prefill + n_decode],
        colocated=loads[n_prefill + n_decode :],
        prefill_state=tuple(views["prefill"]["state"].tolist()),
        decode_state=tuple(views["batch"]["state"][:n_decode].tolist()),
        port_bytes_per_s=tuple(views["port"]["capacity"].tolist()),
        port_flows=tuple(views["port"][flows].tolist()),
        prefill_busy=float(h["tick_prefill_busy"]),
        prefill_demanded=float(h["tick_prefill_demanded"]),
        decode_memory=float(h["tick_decode_memory"]),
        waiting_tokens=int(h["tick_waiting_tokens"]),
        offered_prefill_s=float(h["tick_offered_s"]),
    )


def _objective(h: np.void) -> Objective:
    weights = h["cost_weight"].tolist()
    return Objective(
        ttft_limit_s=float(h["ttft_limit_s"]),
        tpot_limit_s=float(h["tpot_limit_s"]),
        ttft_step=weights[W_TTFT_STEP],
        ttft_slope_per_s=weights[W_TTFT_SLOPE],
        tpot_step=weights[W_TPOT_STEP],
        tpot_slope_per_s=weights[W_TPOT_SLOPE],
        w_prefill=weights[W_PREFILL],
        w_transfer=weights[W_TRANSFER],
        w_decode=weights[W_DECODE],
        standard=bool(h["standard"]),
        quality=tuple(weights[W_QUALITY:W_REJECTION]),
        rejection=weights[W_REJECTION],
        failure=weights[W_FAILURE],
        gpu_s=weights[W_GPU],
        churn=weights[W_CHURN],
    )


def see_request(sim: Simulation) -> RequestView:
    """The request of the pending route or pair decision."""
    it = decisions.pending_request(sim)
    dispatched = decisions.pending(sim) == "pair"
    precisions = tuple(decisions.allowed_precisions(sim))
    return RequestView(
        number=int(it["id"]),
        arrival_s=float(it["arrival_t"]),
        prompt_tokens=int(it["prompt"]),
        predicted_tokens=int(it["predicted"]),
        tier=int(it["tier"]),
        priority=int(it["priority"]),
        attempts=int(it["attempts"]),
        first_hold_s=float(it["hold_since_t"]),
        may_hold=not dispatched and bool(decisions.may_hold(sim)),
        may_reject=not dispatched and bool(sim.block.header["allow_reject"]),
        precisions=precisions,
        prefills=() if dispatched else tuple(decisions.legal_prefills(sim)),
        decodes={q: tuple(decisions.legal_decodes(sim, q)) for q in ((int(it["wire"]),) if dispatched else precisions)},
        colocated=() if dispatched else tuple(decisions.legal_colocated(sim)),
        prefill=int(it["p"]),
        wire=int(it["wire"]) if dispatched else -1,
    )
