"""Compiled schedulers. `RULES` is the one table of them; readable twins live in the `baselines` package.

A rule reads only what a scheduler may see (`seen`, states, the request without its true output length) and leaves its
decision in the header. Decisions of the kinds in `Header.outside` are not theirs: the engine stops at each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdenv.sim.layout import kernel
from pdenv.sim.rules import pairing, scalers, simple
from pdenv.sim.rules.common import least_tokens_decode
from pdenv.sim.state import OUTSIDE_PAIR, OUTSIDE_ROUTE, OUTSIDE_SCALE, header, request

NO_RULE, RANDOM, ROUND_ROBIN, LEAST_REQUESTS, LEAST_WORK, KV_AWARE, GREEDY, COLOCATED, THREE_PART = range(9)
NO_SCALER, UTILISATION = range(2)


@dataclass(frozen=True)
class Rule:
    """A compiled scheduler: its routing rule, its scaling rule, and its parameters with defaults."""

    name: str
    route: int
    scaler: int
    summary: str
    parameters: dict[str, tuple[int, float]] = field(default_factory=dict)  # name -> (row, default)


_LONG = {"long_tokens": (pairing.LONG_TOKENS, 4096.0)}
_SCALING = {
    "prefill_high": (scalers.PREFILL_HIGH, 0.92),
    "prefill_low": (scalers.PREFILL_LOW, 0.45),
    "decode_high": (scalers.DECODE_HIGH, 0.85),
    "decode_low": (scalers.DECODE_LOW, 0.25),
    "quiet_ticks": (scalers.QUIET_TICKS, 3.0),
}
_THREE_PART = {
    **_LONG,
    "receive_limit": (pairing.RECEIVE_LIMIT, 4.0),
    "compress_above_s": (pairing.COMPRESS_ABOVE_S, 0.2),
    **_SCALING,
}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("random", RANDOM, NO_SCALER, "uniformly random legal pair"),
        Rule("round-robin", ROUND_ROBIN, NO_SCALER, "each pool in turn"),
        Rule("least-requests", LEAST_REQUESTS, NO_SCALER, "fewest requests in each pool (JSQ)"),
        Rule("least-work", LEAST_WORK, NO_SCALER, "least predicted prefill seconds; fewest decode tokens"),
        Rule(
            "kv-aware",
            KV_AWARE,
            NO_SCALER,
            "long prompts follow the fastest links, short ones the room",
            _LONG,
        ),
        Rule("greedy", GREEDY, NO_SCALER, "least predicted cost over every pair and precision"),
        Rule("colocated", COLOCATED, NO_SCALER, "prefill and decode on one instance, least predicted work"),
        Rule(
            "three-part",
            THREE_PART,
            UTILISATION,
            "least-loaded prefill, KV-aware pairing, rate matching, precision by tier, utilisation scaling",
            _THREE_PART,
        ),
    )
}


@kernel
def choose_route(S, r):
    """Leave a decision for request r in the header; False if decisions come from outside."""
    if header(S).outside & OUTSIDE_ROUTE:
        return False
    rule = header(S).rule
    if rule == LEAST_REQUESTS:
        simple.route_least_requests(S, r)
    elif rule == ROUND_ROBIN:
        simple.route_round_robin(S, r)
    elif rule == RANDOM:
        simple.route_random(S, r)
    elif rule == LEAST_WORK:
        simple.route_least_work(S, r)
    elif rule == KV_AWARE:
        pairing.route_kv_aware(S, r)
    elif rule == GREEDY:
        pairing.route_greedy(S, r)
    elif rule == COLOCATED:
        simple.route_colocated(S, r)
    else:
        pairing.route_three_part(S, r)
    return True


@kernel
def pair_decode(S, r):
    """The rule's decode instance for a request whose prefill instance and precision are fixed, or −1."""
    h = header(S)
    q = request(S, r).wire
    if h.rule == ROUND_ROBIN:
        return simple.next_decode(S, r, q)
    if h.rule == RANDOM:
        return simple.random_decode(S, r, q)
    if h.rule == LEAST_REQUESTS:
        return simple.fewest_requests_decode(S, r, q)
    if h.rule == KV_AWARE or h.rule == THREE_PART or h.rule == GREEDY:
        return pairing.kv_aware_decode(S, r, request(S, r).p, q)
    return least_tokens_decode(S, r, q)


@kernel
def choose_pair(S, r):
    """Leave a decode instance for request r in the header; False if decisions come from outside."""
    if header(S).outside & OUTSIDE_PAIR:
        return False
    header(S).act_d = pair_decode(S, r)
    return True


@kernel
def choose_scale(S):
    """Leave a scaling decision in the header; False if decisions come from outside."""
    h = header(S)
    if h.outside & OUTSIDE_SCALE:
        return False
    if h.scaler == UTILISATION:
        scalers.scale_by_utilisation(S)
    return True


__all__ = ["RULES", "Rule", "choose_pair", "choose_route", "choose_scale"]
