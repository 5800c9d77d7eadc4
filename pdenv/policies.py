"""Policies by name: the compiled rules, and schedulers in Python that installed packages offer.

A package joins by naming a class in the entry-point group `pdenv.policies`:

    [project.entry-points."pdenv.policies"]
    my-scheduler = "my_package.schedulers:MyScheduler"
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import numpy as np

from pdenv.errors import InputError, nearest
from pdenv.sim import decisions
from pdenv.sim.engine import Simulation
from pdenv.sim.rules import RULES
from pdenv.sim.view import Kind, RequestView, Route, Scale, View, see, see_request

GROUP = "pdenv.policies"


class Policy(Protocol):
    """A scheduler in Python. Its parameters are keyword arguments of its class, all with defaults."""

    name: str

    def route(self, view: View, request: RequestView) -> Route:
        """Where the request at the head of the gateway goes."""
        ...

    def pair(self, view: View, request: RequestView) -> int:
        """Decode instance, one of `request.decodes[request.wire]`, for a request dispatched already."""
        ...

    def scale(self, view: View) -> Scale:
        """Pool deltas at a control tick."""
        ...


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def policy_names() -> tuple[str, ...]:
    """Compiled rules in the order of their table, then what other packages offer under names of their own."""
    return (*RULES, *sorted(set(_offered()) - set(RULES)))


def load_policy(name: str, parameters: dict[str, float] | None = None, seed: int = 0) -> Policy:
    """An instance of the Python policy that a package offers under `name`.

    Args:
        name: of the entry point. The name of a compiled rule gives its readable twin, if that is installed.
        parameters: keyword arguments of the policy's class.
        seed: of the policy's own random stream; goes to policies that have an argument `seed`.

    Raises:
        InputError: unknown policy or parameter, or the policy cannot be imported.
    """
    offered = _offered()
    if name not in offered:
        raise InputError(f"no package offers a policy '{name}' in Python{nearest(name, offered)}", where="policy")
    try:
        made_by = offered[name].load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot load {offered[name].value}: {error}", where=f"policy '{name}'") from error
    accepted = inspect.signature(made_by).parameters
    arguments: dict[str, float] = dict(parameters or {})
    for key in arguments:
        if key not in accepted:
            raise InputError(f"no parameter '{key}'{nearest(key, accepted)}", where=f"policy '{name}'")
    if "seed" in accepted:
        arguments.setdefault("seed", seed)
    policy: Policy = made_by(**arguments)
    return policy


def drive(sim: Simulation, policy: Policy, until_s: float = np.inf) -> bool:
    """Run a `Simulation(rule=None)` up to `until_s` with a policy in Python; True if every request has ended.

    Raises:
        InputError: the policy's answer is not legal.
    """
    while sim.step(until_s):
        kind = decisions.pending(sim)
        if kind == "scale":
            decisions.scale(sim, *_checked_scale(policy, policy.scale(see(sim))))
        elif kind == "pair":
            _answer_pair(sim, policy)
        else:
            _answer_route(sim, policy)
    return int(sim.block.header["ended"]) == int(sim.block.header["n_arrivals"])


def _checked_scale(policy: Policy, scale: Scale) -> Scale:
    if scale.prefill not in (-1, 0, 1) or scale.decode not in (-1, 0, 1) or scale.flip not in (0, 1, 2):
        raise InputError(f"{scale}: deltas are −1, 0 or 1, flips 0, 1 or 2", where=f"policy '{policy.name}'")
    return scale


def _answer_pair(sim: Simulation, policy: Policy) -> None:
    request = see_request(sim)
    decode = policy.pair(see(sim), request)
    legal = request.decodes[request.wire]
    if decode not in legal:
        raise InputError(
            f"decode instance {decode} for request {request.number} at {sim.now:g} s is not legal "
            f"(decode {list(legal)})",
            where=f"policy '{policy.name}'",
        )
    decisions.pair(sim, decode)


def _answer_route(sim: Simulation, policy: Policy) -> None:
    request = see_request(sim)
    route = policy.route(see(sim), request)
    bound_later = bool(sim.block.header["bind_at_prefill_end"])
    if not _is_legal(route, request, bound_later):
        raise InputError(
            f"{_worded(route)} is not legal for request {request.number} at {sim.now:g} s "
            f"(prefill {list(request.prefills)}, decode by precision {request.decodes}, "
            f"co-located {list(request.colocated)}, hold: {request.may_hold}, reject: {request.may_reject})",
            where=f"policy '{policy.name}'",
        )
    if route.kind is Kind.PAIR:
        decisions.dispatch(sim, route.prefill, route.decode, route.precision)
    elif route.kind is Kind.COLOCATED:
        decisions.dispatch_colocated(sim, route.instance)
    elif route.kind is Kind.HOLD and request.may_hold:
        decisions.hold(sim)
    elif route.kind is Kind.REJECT:
        decisions.reject(sim)
    else:
        decisions.wait(sim)


def _is_legal(route: Route, request: RequestView, bound_later: bool) -> bool:
    if route.kind is Kind.PAIR:
        decodes = (-1,) if bound_later else request.decodes.get(route.precision, ())
        return route.prefill in request.prefills and route.decode in decodes and route.precision in request.precisions
    if route.kind is Kind.COLOCATED:
        return route.instance in request.colocated
    if route.kind is Kind.REJECT:
        return request.may_reject
    # A hold beyond its limit is a wait where there is nowhere to go, and refused where there is.
    return route.kind is Kind.WAIT or request.may_hold or not _has_somewhere(request, bound_later)


def _has_somewhere(request: RequestView, bound_later: bool) -> bool:
    pairs = bool(request.prefills) and (bound_later or any(request.decodes.values()))
    return pairs or bool(request.colocated)


def _worded(route: Route) -> str:
    if route.kind is Kind.PAIR:
        return f"prefill {route.prefill} with decode {route.decode} in precision {route.precision}"
    return f"co-located instance {route.instance}" if route.kind is Kind.COLOCATED else f"'{route.kind.value}'"
