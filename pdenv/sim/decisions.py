"""Decisions from outside: what is asked, what is legal, and how to answer.

`Simulation.step()` stops at a decision; these functions read it and write the answer, and the next
`step()` carries it out. Nothing here reads true output lengths or the future.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim.engine import Simulation
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_HOLD,
    ACT_PAIR,
    ACT_REJECT,
    ACT_WAIT,
    ACTIVE,
    NO_DECISION,
    PAIR,
    ROUTE,
    SCALE,
    TIE_S,
)
from pdenv.topology import N_PRECISIONS

KIND_NAMES = {NO_DECISION: "none", ROUTE: "route", PAIR: "pair", SCALE: "scale"}


def pending(sim: Simulation) -> str:
    """ "route", "pair", "scale" or "none"."""
    return KIND_NAMES[int(sim.block.header["pending"])]


def pending_request(sim: Simulation) -> np.void:
    """The in-flight request (a REQUEST row) that a route or pair decision is about."""
    return sim.block.views["request"][int(sim.block.header["pending_request"])]


def allowed_precisions(sim: Simulation) -> list[int]:
    """Wire precisions that the pending request's tier allows."""
    mask = int(sim.block.header["tier_precisions"][pending_request(sim)["tier"]])
    return [q for q in range(N_PRECISIONS) if mask >> q & 1]


def legal_prefills(sim: Simulation) -> list[int]:
    rows = sim.block.views["prefill"]
    need = int(pending_request(sim)["prompt"]) * rows["kv_bytes_per_token"]
    return np.flatnonzero((rows["state"] == ACTIVE) & (need <= rows["staging_bytes"])).tolist()


def legal_decodes(sim: Simulation, precision: int) -> list[int]:
    """Decode instances that may take the pending request, sent in `precision`."""
    h = sim.block.header
    rows = sim.block.views["batch"][: int(h["n_decode"])]
    request = pending_request(sim)
    store = np.full(rows.shape, precision) if h["mixed_store"] else rows["store"]
    allowed = int(h["tier_precisions"][request["tier"]]) >> store & 1
    need = int(request["prompt"]) * h["kv_bytes_per_token"][store]
    return np.flatnonzero((rows["state"] == ACTIVE) & (allowed == 1) & (need <= rows["capacity"])).tolist()


def legal_colocated(sim: Simulation) -> list[int]:
    h = sim.block.header
    rows = sim.block.views["batch"][int(h["n_decode"]) :]
    request = pending_request(sim)
    allowed = int(h["tier_precisions"][request["tier"]]) >> rows["store"] & 1
    need = (int(request["prompt"]) + 1) * h["kv_bytes_per_token"][rows["store"]]
    return np.flatnonzero((allowed == 1) & (need <= rows["capacity"])).tolist()


def legal_pairs(sim: Simulation) -> list[tuple[int, int, int]]:
    """(prefill, decode, precision) in ascending order; decode is −1 where it is chosen at prefill end."""
    prefills, precisions = legal_prefills(sim), allowed_precisions(sim)
    if sim.block.header["bind_at_prefill_end"]:
        return [(p, -1, q) for p in prefills for q in precisions]
    decodes = {q: legal_decodes(sim, q) for q in precisions}
    return sorted((p, d, q) for p in prefills for q in precisions for d in decodes[q])


def may_hold(sim: Simulation) -> bool:
    """Holding is allowed until `hold_max_s` after the request's first hold."""
    since = float(pending_request(sim)["hold_since_t"])
    return np.isnan(since) or sim.now < since + float(sim.block.header["hold_max_s"]) - TIE_S


def dispatch(sim: Simulation, p: int, d: int, precision: int) -> None:
    h = sim.block.header
    h["act_kind"], h["act_p"], h["act_d"], h["act_precision"] = ACT_PAIR, p, d, precision


def dispatch_colocated(sim: Simulation, instance: int) -> None:
    h = sim.block.header
    h["act_kind"], h["act_h"] = ACT_COLOCATED, instance


def hold(sim: Simulation) -> None:
    sim.block.header["act_kind"] = ACT_HOLD


def wait(sim: Simulation) -> None:
    """Nothing is legal now: the request is offered again when something changes."""
    sim.block.header["act_kind"] = ACT_WAIT


def reject(sim: Simulation) -> None:
    sim.block.header["act_kind"] = ACT_REJECT


def pair(sim: Simulation, d: int) -> None:
    sim.block.header["act_d"] = d


def scale(sim: Simulation, prefill: int, decode: int, flip: int = 0) -> None:
    """Deltas in {−1, 0, 1}; flip 1 turns a prefill instance into a decode instance, 2 the other way round."""
    h = sim.block.header
    h["act_scale_prefill"], h["act_scale_decode"], h["act_flip"] = prefill, decode, flip
