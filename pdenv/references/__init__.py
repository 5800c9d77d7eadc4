"""References: schedulers that nobody can run in production, to show how much there is to win.

`lookahead` rolls copies of the engine forward for every promising decision, over futures drawn from training
workloads. `clairvoyant` does the same with the true future and true output lengths. Neither is a baseline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pdenv.errors import InputError, nearest

if TYPE_CHECKING:
    from pdenv.scenario import Scenario
    from pdenv.sim.engine import Simulation
    from pdenv.topology import Cluster
    from pdenv.workload import Workload

Advance = Callable[..., bool]

DEFAULT_BASE = "greedy"

REFERENCES = {
    "lookahead": "reference: rolls every promising decision forward over futures drawn from training workloads",
    "clairvoyant": "reference: the same, knowing all output lengths and arrivals to come",
}

_NAME = re.compile(r"(?P<kind>[a-z]+)(?:\((?P<base>[^()]*)\))?")


def is_reference(name: str) -> bool:
    """Is this `lookahead`, `clairvoyant`, or one of them with a base rule, as in `lookahead(size-interval)`?"""
    found = _NAME.fullmatch(name)
    return found is not None and found["kind"] in REFERENCES


def parse(name: str) -> tuple[str, str]:
    """Which reference a name means, and the compiled rule that takes the decisions after the one in question.

    Raises:
        InputError: not a reference.
    """
    found = _NAME.fullmatch(name)
    if found is None or found["kind"] not in REFERENCES:
        raise InputError(f"unknown reference '{name}'{nearest(name, REFERENCES)}", where="policy")
    return found["kind"], found["base"] or DEFAULT_BASE


def prepare(
    name: str,
    scenario: Scenario,
    cluster: Cluster,
    load: Workload,
    seed: int = 0,
    parameters: dict[str, float] | None = None,
    trace: str | Path | None = None,
    rate_scale: float | str = 1.0,
) -> tuple[Simulation, Advance]:
    """A run whose decisions a reference takes.

    Args:
        scenario: where training futures come from, with the same trace and rate scale as the load.
        parameters: of the base rule.

    Returns:
        The simulation, and a function that runs it to a time (or, with `measured_only=True`, until the requests named
        by `Simulation.measure` have ended) and says whether all that counts has ended.

    Raises:
        InputError: an unknown reference, base rule or parameter; no training window.
    """
    from pdenv.references.futures import Futures
    from pdenv.references.lookahead import Lookahead, run_of

    kind, base = parse(name)
    sim = run_of(base, parameters or {}, seed, scenario, cluster, load)
    futures = Futures(scenario, trace, rate_scale, seed) if kind == "lookahead" else None
    return sim, Lookahead(sim, futures, seed).drive
