"""Greedy: predict what every legal choice would cost this request, and take the cheapest."""

from __future__ import annotations

from collections.abc import Iterator

from baselines.common import (
    FixedPools,
    chooses_decode_later,
    finest_precision,
    least_work_prefill,
    pair_or_else,
)
from baselines.estimates import exposed_transfer_seconds, iteration_seconds, memory_wait_seconds, prefill_seconds
from baselines.kv_aware import nearest_decode
from pdenv.sim.view import WAIT, Kind, RequestView, Route, View


class Greedy(FixedPools):
    """Least predicted joint TPOT plus SLA penalties over every pair, precision and co-located instance.

    It looks at this request only, not at what its choice does to others. Mooncake's Conductor (Qin et al.,
    FAST 2025) takes the least predicted TTFT, Dynamo's KV router the least cost of prefill and decode blocks;
    llm-d can score instances by predicted latency.
    """

    name = "greedy"

    def route(self, view: View, request: RequestView) -> Route:
        if chooses_decode_later(view):
            prefill = least_work_prefill(view, request)
            return pair_or_else(view, request, prefill, None, finest_precision(request))
        return min(_choices(request), key=lambda choice: predicted_cost(view, request, choice), default=WAIT)

    def pair(self, view: View, request: RequestView) -> int:
        return nearest_decode(view, request)


def _choices(request: RequestView) -> Iterator[Route]:
    """Everything legal, in the order in which ties are broken."""
    every_decode = sorted(set().union(*request.decodes.values()))
    for p in request.prefills:
        for d in every_decode:
            for precision in request.precisions:
                if d in request.decodes[precision]:
                    yield Route.pair(p, d, precision)
    for c in request.colocated:
        yield Route.colocated(c)


def predicted_cost(view: View, request: RequestView, choice: Route) -> float:
    if choice.kind is Kind.COLOCATED:
        return colocated_cost(view, request, choice.instance)
    return pair_cost(view, request, choice.prefill, choice.decode, choice.precision)


def pair_cost(view: View, request: RequestView, p: int, d: int, precision: int) -> float:
    """Predicted joint TPOT on the pair, weighted, plus SLA penalties and the price of the precisions."""
    aim = view.objective
    store = precision if view.cluster.mixed_store else view.cluster.decode[d].store_precision
    profile = view.cluster.profiles[view.cluster.prefill[p].profile]
    ttft_s = view.prefill[p].work_s + prefill_seconds(profile, request.prompt_tokens)
    decode_s = iteration_seconds(view, request, view.cluster.decode[d], view.decode[d])
    moved_s = exposed_transfer_seconds(view, request, p, d, precision)
    moved_s = moved_s + memory_wait_seconds(view, request, d, decode_s)
    cost = aim.w_prefill * ttft_s + aim.w_transfer * moved_s + aim.w_decode * decode_s
    cost += max(aim.quality[precision], aim.quality[store])
    return cost + sla_cost(view, ttft_s, decode_s + moved_s / max(request.predicted_tokens - 1, 1))


def colocated_cost(view: View, request: RequestView, c: int) -> float:
    """The same on a co-located instance, where the prefill ahead slows decode in proportion to its share."""
    aim, instance, load = view.objective, view.cluster.colocated[c], view.colocated[c]
    decode_s = iteration_seconds(view, request, instance, load)
    ttft_s = load.work_s + prefill_seconds(view.cluster.profiles[instance.profile], request.prompt_tokens)
    slowed_s = decode_s + ttft_s / max(request.predicted_tokens, 1)
    cost = aim.w_prefill * ttft_s + aim.w_decode * slowed_s
    return cost + aim.quality[instance.store_precision] + sla_cost(view, ttft_s, slowed_s)


def sla_cost(view: View, ttft_s: float, tpot_s: float) -> float:
    """Penalties for the limits that are predicted to be missed: a step, and a slope beyond it."""
    aim = view.objective
    cost = 0.0
    if ttft_s > aim.ttft_limit_s:
        cost += aim.ttft_step + aim.ttft_slope_per_s * (ttft_s - aim.ttft_limit_s)
    if tpot_s > aim.tpot_limit_s:
        cost += aim.tpot_step + aim.tpot_slope_per_s * (tpot_s - aim.tpot_limit_s)
    return cost
