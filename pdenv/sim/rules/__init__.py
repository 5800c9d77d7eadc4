"""Compiled schedulers. `RULES` and `SCALERS` are the tables of them; readable twins live in the `baselines` package.

A rule reads only what a scheduler may see (`seen`, states, the request without its true output length) and leaves its
decision in the header. Decisions of the kinds in `Header.outside` are not theirs: the engine stops at each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdenv.errors import InputError, nearest
from pdenv.sim.layout import kernel
from pdenv.sim.rules import pairing, predicted, rows, sampled, scalers, simple
from pdenv.sim.rules.common import least_tokens_decode
from pdenv.sim.rules.numbers import (
    ADMISSION,
    COLOCATED,
    CONDITIONAL,
    FORECAST,
    GREEDY,
    JOIN_IDLE_QUEUE,
    KV_AWARE,
    LEAST_REQUESTS,
    LEAST_TOKENS,
    LEAST_WORK,
    NO_SCALER,
    POWER_OF_TWO,
    PULL,
    QUEUE,
    RANDOM,
    ROUND_ROBIN,
    SIZE_INTERVAL,
    THREE_PART,
    TOPOLOGY_SCORE,
    UTILISATION,
)
from pdenv.sim.state import OUTSIDE_PAIR, OUTSIDE_ROUTE, OUTSIDE_SCALE, header, request


@dataclass(frozen=True)
class Parameter:
    """A tunable number of a rule, and where to search for it."""

    row: int  # of Header.parameter
    default: float
    low: float  # of the search, inclusive
    high: float
    log: bool = False  # searched on a log scale
    whole: bool = False  # a whole number


@dataclass(frozen=True)
class Scaler:
    """A compiled scaling rule and its parameters."""

    name: str
    number: int
    summary: str
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A compiled scheduler: its routing rule, its scaling rule, and the parameters of both."""

    name: str
    route: int
    scaler: int
    summary: str
    parameters: dict[str, Parameter] = field(default_factory=dict)


_QUIET = {"quiet_ticks": Parameter(rows.QUIET_TICKS, 3, 0, 12, whole=True)}
_UTILISATION = {
    "prefill_high": Parameter(rows.PREFILL_HIGH, 0.92, 0.5, 0.99),
    "prefill_low": Parameter(rows.PREFILL_LOW, 0.45, 0.05, 0.7),
    "decode_high": Parameter(rows.DECODE_HIGH, 0.85, 0.4, 0.98),
    "decode_low": Parameter(rows.DECODE_LOW, 0.25, 0.05, 0.6),
    **_QUIET,
}

SCALERS: dict[str, Scaler] = {
    scaler.name: scaler
    for scaler in (
        Scaler("fixed", NO_SCALER, "the pools stay as they are"),
        Scaler("utilisation", UTILISATION, "bands of prefill utilisation and decode memory", _UTILISATION),
        Scaler(
            "queue",
            QUEUE,
            "prefill backlog in tokens; decode memory demanded",
            {
                "backlog_high_tokens": Parameter(rows.BACKLOG_HIGH_TOKENS, 16384, 1024, 262144, log=True),
                "backlog_low_tokens": Parameter(rows.BACKLOG_LOW_TOKENS, 4096, 256, 65536, log=True),
                "busy_after": Parameter(rows.BUSY_AFTER, 0.75, 0.3, 0.98),
                "decode_high": Parameter(rows.DECODE_HIGH, 0.8, 0.4, 0.98),
                "memory_after": Parameter(rows.MEMORY_AFTER, 0.5, 0.1, 0.9),
                **_QUIET,
            },
        ),
        Scaler(
            "forecast",
            FORECAST,
            "a floor from a forecast of the load; one more at high utilisation",
            {
                "level_weight": Parameter(rows.LEVEL_WEIGHT, 0.4, 0.05, 1.0),
                "trend_weight": Parameter(rows.TREND_WEIGHT, 0.1, 0.0, 0.6),
                "prefill_target": Parameter(rows.PREFILL_TARGET, 0.75, 0.3, 1.0),
                "decode_target": Parameter(rows.DECODE_TARGET, 0.7, 0.3, 1.0),
                "shrink_below": Parameter(rows.SHRINK_BELOW, 0.7, 0.4, 1.0),
                "prefill_high": Parameter(rows.PREFILL_HIGH, 0.95, 0.5, 1.0),
                "decode_high": Parameter(rows.DECODE_HIGH, 0.9, 0.4, 1.0),
                **_QUIET,
            },
        ),
    )
}

_LONG = {"long_tokens": Parameter(rows.LONG_TOKENS, 4096, 256, 65536, log=True)}
_THREE_PART = {
    **_LONG,
    "receive_limit": Parameter(rows.RECEIVE_LIMIT, 4, 1, 64, log=True, whole=True),
    "compress_above_s": Parameter(rows.COMPRESS_ABOVE_S, 0.2, 0.005, 5.0, log=True),
    **_UTILISATION,
}
_WEIGHTS = {
    "prefill_weight": Parameter(rows.PREFILL_WEIGHT, 1.0, 0.25, 4.0, log=True),
    "transfer_weight": Parameter(rows.TRANSFER_WEIGHT, 1.0, 0.25, 4.0, log=True),
    "decode_weight": Parameter(rows.DECODE_WEIGHT, 1.0, 0.25, 16.0, log=True),
}
_SIZE_INTERVAL = {
    "cut_tokens": Parameter(rows.CUT_TOKENS, 20000, 256, 262144, log=True),
    "short_share": Parameter(rows.SHORT_SHARE, 0.33, 0.1, 0.9),
    "spill_s": Parameter(rows.SPILL_S, 5.0, 0.02, 60.0, log=True),
    **_WEIGHTS,
}
_TOPOLOGY_SCORE = {
    "link_weight": Parameter(rows.LINK_WEIGHT, 1.0, 0.05, 20.0, log=True),
    "room_weight_s": Parameter(rows.ROOM_WEIGHT_S, 1.0, 0.01, 20.0, log=True),
}
_CONDITIONAL = {
    "local_tokens": Parameter(rows.LOCAL_TOKENS, 1024, 64, 65536, log=True),
    "queue_s": Parameter(rows.QUEUE_S, 2.0, 0.05, 30.0, log=True),
    "local_queue_s": Parameter(rows.LOCAL_QUEUE_S, 1.0, 0.02, 10.0, log=True),
    **_WEIGHTS,
}
_PULL = {"pull_below_s": Parameter(rows.PULL_BELOW_S, 0.0, 0.0, 4.0), **_WEIGHTS}
_ADMISSION = {"admit_factor": Parameter(rows.ADMIT_FACTOR, 1.0, 0.5, 4.0, log=True), **_WEIGHTS}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("random", RANDOM, NO_SCALER, "uniformly random legal pair"),
        Rule("round-robin", ROUND_ROBIN, NO_SCALER, "each pool in turn"),
        Rule("power-of-two", POWER_OF_TWO, NO_SCALER, "of two random instances the one with fewer requests"),
        Rule("join-idle-queue", JOIN_IDLE_QUEUE, NO_SCALER, "a random idle instance, else a random one"),
        Rule("least-requests", LEAST_REQUESTS, NO_SCALER, "fewest requests in each pool (JSQ)"),
        Rule("least-tokens", LEAST_TOKENS, NO_SCALER, "fewest tokens in each pool"),
        Rule("least-work", LEAST_WORK, NO_SCALER, "least predicted prefill seconds; fewest decode tokens"),
        Rule(
            "kv-aware",
            KV_AWARE,
            NO_SCALER,
            "long prompts follow the fastest links, short ones the room",
            _LONG,
        ),
        Rule(
            "topology-score",
            TOPOLOGY_SCORE,
            NO_SCALER,
            "soft score of prefill work, transfer and room",
            _TOPOLOGY_SCORE,
        ),
        Rule("greedy", GREEDY, NO_SCALER, "least predicted cost over every pair and precision", _WEIGHTS),
        Rule(
            "size-interval",
            SIZE_INTERVAL,
            NO_SCALER,
            "greedy, with prefill instances that are closed to long prompts (SITA)",
            _SIZE_INTERVAL,
        ),
        Rule("pull", PULL, NO_SCALER, "greedy among free prefill instances; held until there is one", _PULL),
        Rule("admission", ADMISSION, NO_SCALER, "greedy, rejecting what would be late anyway", _ADMISSION),
        Rule("colocated", COLOCATED, NO_SCALER, "prefill and decode on one instance, least predicted work"),
        Rule(
            "conditional",
            CONDITIONAL,
            NO_SCALER,
            "co-located for short prompts and while prefill is busy, else greedy",
            _CONDITIONAL,
        ),
        Rule(
            "three-part",
            THREE_PART,
            UTILISATION,
            "least-loaded prefill, KV-aware pairing, rate matching, precision by tier, utilisation scaling",
            _THREE_PART,
        ),
    )
}


def _named(name: str) -> Rule | None:
    """The rule of that name, plain or ROUTE+SCALER; None if there is none."""
    if name in RULES:
        return RULES[name]
    route, plus, scaling = name.partition("+")
    if not plus or route not in RULES or route == "colocated" or scaling not in SCALERS:
        return None
    rule, scaler = RULES[route], SCALERS[scaling]
    of_pools = {key for own in SCALERS.values() if own.number == rule.scaler for key in own.parameters}
    routing = {key: value for key, value in rule.parameters.items() if key not in of_pools}
    summary = f"{rule.summary.removesuffix(', utilisation scaling')}; {scaler.summary}"
    return Rule(name, rule.route, scaler.number, summary, {**routing, **scaler.parameters})


def is_rule(name: str) -> bool:
    """Is it the name of a compiled scheduler, plain or ROUTE+SCALER?"""
    return _named(name) is not None


def find_rule(name: str) -> Rule:
    """A compiled scheduler by its name; "greedy+queue" is the routing of one with the scaler of another.

    `colocated` has no pools to scale.

    Raises:
        InputError: there is none.
    """
    rule = _named(name)
    if rule is None:
        raise InputError(f"unknown policy '{name}'{nearest(name, rule_names('+' in name))}")
    return rule


def rule_names(composed: bool = False) -> tuple[str, ...]:
    """The plain names, or all of the form ROUTE+SCALER."""
    if not composed:
        return tuple(RULES)
    return tuple(f"{route}+{scaling}" for route in RULES if route != "colocated" for scaling in SCALERS)


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
        sampled.route_random(S, r)
    elif rule == POWER_OF_TWO:
        sampled.route_power_of_two(S, r)
    elif rule == JOIN_IDLE_QUEUE:
        sampled.route_join_idle_queue(S, r)
    elif rule == LEAST_TOKENS:
        simple.route_least_tokens(S, r)
    elif rule == LEAST_WORK:
        simple.route_least_work(S, r)
    elif rule == KV_AWARE:
        pairing.route_kv_aware(S, r)
    elif rule == TOPOLOGY_SCORE:
        pairing.route_topology_score(S, r)
    elif rule == THREE_PART:
        pairing.route_three_part(S, r)
    elif rule == COLOCATED:
        simple.route_colocated(S, r)
    else:
        predicted.route_predicted(S, r)
    return True


@kernel
def pair_decode(S, r):
    """The rule's decode instance for a request whose prefill instance and precision are fixed, or −1."""
    h = header(S)
    p = request(S, r).p
    q = request(S, r).wire
    if h.rule == ROUND_ROBIN:
        return simple.next_decode(S, r, q)
    if h.rule == RANDOM:
        return sampled.random_decode(S, r, q, False)
    if h.rule == POWER_OF_TWO:
        return sampled.shorter_of_two_decodes(S, r, q)
    if h.rule == JOIN_IDLE_QUEUE:
        return sampled.idle_or_random_decode(S, r, q)
    if h.rule == LEAST_REQUESTS:
        return simple.fewest_requests_decode(S, r, q)
    if h.rule == TOPOLOGY_SCORE:
        return pairing.best_link_decode(S, r, p, q)
    if h.rule == LEAST_TOKENS or h.rule == LEAST_WORK or h.rule == COLOCATED:
        return least_tokens_decode(S, r, q)
    return pairing.kv_aware_decode(S, r, p, q)


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
    elif h.scaler == QUEUE:
        scalers.scale_by_queue(S)
    elif h.scaler == FORECAST:
        scalers.scale_by_forecast(S)
    return True


__all__ = [
    "RULES",
    "SCALERS",
    "Parameter",
    "Rule",
    "Scaler",
    "choose_pair",
    "choose_route",
    "choose_scale",
    "find_rule",
    "is_rule",
    "rule_names",
]
