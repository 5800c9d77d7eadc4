"""Drives the compiled engine with a `Script`, as the reference simulator is driven."""

from __future__ import annotations

import numpy as np
from strategies import Case

from pdenv.sim import decisions
from pdenv.sim.engine import Simulation


def answer(sim: Simulation, script) -> None:
    """Answer the pending decision as the script says."""
    kind = decisions.pending(sim)
    if kind == "scale":
        decisions.scale(sim, *script.scale(int(sim.block.header["tick"])))
        return
    request = decisions.pending_request(sim)
    number, attempt = int(request["id"]), int(request["attempts"])
    if kind == "pair":
        decisions.pair(sim, script.pair(number, attempt, decisions.legal_decodes(sim, int(request["wire"]))))
        return
    pairs, colocated = decisions.legal_pairs(sim), decisions.legal_colocated(sim)
    if not pairs and not colocated:
        decisions.wait(sim)
        return
    may_reject = bool(sim.block.header["allow_reject"])
    choice = script.route(number, attempt, pairs, colocated, decisions.may_hold(sim), may_reject)
    {
        "pair": decisions.dispatch,
        "colocated": decisions.dispatch_colocated,
        "hold": decisions.hold,
        "reject": decisions.reject,
    }[choice[0]](sim, *choice[1:])


def run_engine(case: Case, until_s: float = np.inf, pool: int = 16) -> Simulation:
    """Run a scripted case on the engine; the small pool makes it grow on the way."""
    sim = Simulation(case.cluster, case.arrivals, case.blocks, rule=None, pool=pool)
    while sim.step(until_s):
        answer(sim, case.script)
    return sim
