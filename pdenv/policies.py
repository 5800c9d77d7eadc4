"""Policies by name: the compiled rules, and schedulers in Python that installed packages offer.

`greedy+queue` is the compiled rule `greedy` with the scaler `queue` (see `pdenv.sim.rules.SCALERS`).

A package joins by naming a class in the entry-point group `pdenv.policies`:

    [project.entry-points."pdenv.policies"]
    my-scheduler = "my_package.schedulers:MyScheduler"

What such a scheduler sees and answers (`View`, `Route`, `WAIT`, …) is in `pdenv.sim.view` and offered here as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import numpy as np

from pdenv.errors import InputError, nearest, worded
from pdenv.sim import decisions
from pdenv.sim.engine import Simulation
from pdenv.sim.rules import RULES, find_rule, is_rule, rule_names
from pdenv.sim.view import HOLD, REJECT, WAIT, Kind, Load, RequestView, Route, Scale, View, see, see_request

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


def check_policy(name: str) -> None:
    """Raise InputError, with the nearest valid name, for a policy that does not exist."""
    if not is_rule(name) and name not in policy_names():
        known = rule_names(composed=True) if "+" in name else policy_names()
        raise InputError(f"unknown policy '{name}'{nearest(name, known)}", where="policy")


def describe(name: str) -> tuple[str, dict[str, Any]]:
    """What a policy does in one line, and its parameters with their defaults.

    Raises:
        InputError: a policy in Python that cannot be loaded.
    """
    if is_rule(name):
        rule = find_rule(name)
        return rule.summary, {key: parameter.default for key, parameter in rule.parameters.items()}
    made_by, accepted = _load(name)
    defaults = {key: p.default for key, p in accepted.items() if key != "seed" and p.default is not p.empty}
    return (inspect.getdoc(made_by) or "").partition("\n")[0], defaults


def load_policy(name: str, parameters: dict[str, float] | None = None, seed: int = 0) -> Policy:
    """An instance of the Python policy that a package offers under `name`.

    Args:
        name: of the entry point. The name of a compiled rule gives its readable twin, if that is installed.
        parameters: keyword arguments of the policy's class.
        seed: of the policy's own random stream; goes to policies that have an argument `seed`.

    Raises:
        InputError: unknown policy or parameter, or the policy cannot be imported.
    """
    made_by, accepted = _load(name)
    arguments: dict[str, float] = dict(parameters or {})
    for key in arguments:
        if key not in accepted:
            raise InputError(f"no parameter '{key}'{nearest(key, accepted)}", where=f"policy '{name}'")
    if "seed" in accepted:
        arguments.setdefault("seed", seed)
    with _failures_named(name, "when it is made"):
        policy: Policy = made_by(**arguments)
    check_object(policy)
    return policy


def _load(name: str) -> tuple[Any, Mapping[str, inspect.Parameter]]:
    """The class that a package offers under `name`, and what it can be made with."""
    offered = _offered()
    if name not in offered:
        raise InputError(f"no package offers a policy '{name}' in Python{nearest(name, offered)}", where="policy")
    try:
        made_by = offered[name].load()
        return made_by, inspect.signature(made_by).parameters
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever somebody else's module does when it is imported, sys.exit included
        raise InputError(f"cannot load {offered[name].value}: {worded(error)}", where=f"policy '{name}'") from error


def check_object(policy: Any) -> None:
    """Raise InputError unless this can be asked as a `Policy`."""
    if isinstance(policy, type):
        raise InputError(f"{policy.__name__} is a class; give an instance, {policy.__name__}()", where="policy")
    missing = [part for part in ("name", "route", "pair", "scale") if not hasattr(policy, part)]
    if missing:
        message = f"has no {' and no '.join(missing)}; see pdenv.policies.Policy"
        raise InputError(message, where=f"policy {type(policy).__name__}")


@contextmanager
def _failures_named(name: str, asked: str) -> Iterator[None]:
    """What goes wrong inside a policy, as one line that names it and what it was asked."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"fails {asked}: {worded(error)}", where=f"policy '{name}'") from error


def drive(sim: Simulation, policy: Policy, until_s: float = np.inf, measured_only: bool = False) -> bool:
    """Run a `Simulation(rule=None)` up to `until_s` with a policy in Python.

    Args:
        measured_only: stop when the requests of `sim.measure` have ended, not only when all have.

    Returns:
        Whether they have ended.

    Raises:
        InputError: the policy fails, or its answer is not legal.
    """
    answer = {"scale": _answer_scale, "pair": _answer_pair, "route": _answer_route}
    while sim.step(until_s, measured_only):
        kind = decisions.pending(sim)
        with _failures_named(policy.name, f"in {kind} at {sim.now:g} s"):
            answer[kind](sim, policy)
    h = sim.block.header
    return bool(h["measured_left"] == 0) if measured_only else bool(h["ended"] == h["n_arrivals"])


def _answer_scale(sim: Simulation, policy: Policy) -> None:
    scale = policy.scale(see(sim))
    _check_type(scale, Scale, "scale", policy)
    if scale.prefill not in (-1, 0, 1) or scale.decode not in (-1, 0, 1) or scale.flip not in (0, 1, 2):
        raise InputError(f"{scale}: deltas are −1, 0 or 1, flips 0, 1 or 2", where=f"policy '{policy.name}'")
    decisions.scale(sim, *scale)


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
    _check_type(route, Route, "route", policy)
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


def _check_type(answer: object, expected: type, asked: str, policy: Policy) -> None:
    if not isinstance(answer, expected):
        message = f"{asked} answered {type(answer).__name__}; a pdenv.policies.{expected.__name__} was expected"
        raise InputError(message, where=f"policy '{policy.name}'")


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
        return f"prefill {route.prefill!r} with decode {route.decode!r} in precision {route.precision!r}"
    return f"co-located instance {route.instance}" if route.kind is Kind.COLOCATED else f"'{route.kind.value}'"


__all__ = [
    "GROUP",
    "HOLD",
    "REJECT",
    "WAIT",
    "Kind",
    "Load",
    "Policy",
    "RequestView",
    "Route",
    "Scale",
    "View",
    "check_object",
    "check_policy",
    "describe",
    "drive",
    "load_policy",
    "policy_names",
]
