"""Greedy: predict what every legal choice would cost this request, and take the cheapest.

`PredictedCost` is a part of other schedulers too: of those that narrow the choice down before the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baselines.common import (
    FixedPools,
    chooses_decode_later,
    colocated_or_wait,
    finest_precision,
)
from baselines.estimates import exposed_transfer_seconds, iteration_seconds, memory_wait_seconds, prefill_seconds
from baselines.kv_aware import nearest_decode
from pdenv.sim.view import WAIT, Kind, RequestView, Route, View


class PredictedCost:
    """Predicts what a choice would cost the request, in the scenario's own units.

    It looks at this request only, not at what its choice does to others.

    Args:
        prefill_weight: of the part until prefill ends, times the scenario's own weight.
        transfer_weight: of the exposed transfer and the wait for decode memory.
        decode_weight: of decode.
    """

    def __init__(self, prefill_weight: float = 1.0, transfer_weight: float = 1.0, decode_weight: float = 1.0) -> None:
        self.prefill_weight = prefill_weight
        self.transfer_weight = transfer_weight
        self.decode_weight = decode_weight

    def cheapest(self, view: View, request: RequestView, prefills: Sequence[int]) -> Route:
        """The cheapest pair of these prefill instances, or co-located instance."""
        if chooses_decode_later(view):
            return self.pair_or_colocated(view, request, prefills)
        choices = (*pairs(request, prefills), *map(Route.colocated, request.colocated))
        return min(choices, key=lambda choice: self.predict(view, request, choice), default=WAIT)

    def pair_or_colocated(self, view: View, request: RequestView, prefills: Sequence[int]) -> Route:
        """The cheapest pair of these prefill instances; a co-located instance where there is none."""
        if chooses_decode_later(view) and prefills:
            prefill = min(prefills, key=lambda p: view.prefill[p].work_s)
            return Route.pair(prefill, -1, finest_precision(request))
        choices = () if chooses_decode_later(view) else pairs(request, prefills)
        best = min(choices, key=lambda choice: self.predict(view, request, choice), default=None)
        return colocated_or_wait(view, request) if best is None else best

    def predict(self, view: View, request: RequestView, choice: Route) -> float:
        if choice.kind is Kind.COLOCATED:
            return self._colocated_cost(view, request, choice.instance)
        return self._pair_cost(view, request, choice.prefill, choice.decode, choice.precision)

    def _pair_cost(self, view: View, request: RequestView, p: int, d: int, precision: int) -> float:
        """Predicted joint TPOT on the pair, weighted, plus SLA penalties and the price of the precisions."""
        aim = view.objective
        store = precision if view.cluster.mixed_store else view.cluster.decode[d].store_precision
        ttft_s = view.prefill[p].work_s + whole_prefill_seconds(view, request, p)
        decode_s = iteration_seconds(view, request, view.cluster.decode[d], view.decode[d])
        moved_s = exposed_transfer_seconds(view, request, p, d, precision)
        moved_s = moved_s + memory_wait_seconds(view, request, d, decode_s)
        cost = self.prefill_weight * aim.w_prefill * ttft_s + self.transfer_weight * aim.w_transfer * moved_s
        cost += self.decode_weight * aim.w_decode * decode_s
        cost += max(aim.quality[precision], aim.quality[store])
        return cost + sla_cost(view, ttft_s, decode_s + moved_s / max(request.predicted_tokens - 1, 1))

    def _colocated_cost(self, view: View, request: RequestView, c: int) -> float:
        """The same on a co-located instance, where the prefill ahead slows decode in proportion to its share."""
        aim, instance, load = view.objective, view.cluster.colocated[c], view.colocated[c]
        decode_s = iteration_seconds(view, request, instance, load)
        ttft_s = load.work_s + prefill_seconds(view.cluster.profiles[instance.profile], request.prompt_tokens)
        slowed_s = decode_s + ttft_s / max(request.predicted_tokens, 1)
        cost = self.prefill_weight * aim.w_prefill * ttft_s + self.decode_weight * aim.w_decode * slowed_s
        return cost + aim.quality[instance.store_precision] + sla_cost(view, ttft_s, slowed_s)


def pairs(request: RequestView, prefills: Sequence[int]) -> Iterator[Route]:
    """The legal pairs of these prefill instances, in the order in which ties are broken."""
    every_decode = sorted(set().union(*request.decodes.values()))
    for p in prefills:
        for d in every_decode:
            for precision in request.precisions:
                if d in request.decodes[precision]:
                    yield Route.pair(p, d, precision)


def whole_prefill_seconds(view: View, request: RequestView, p: int) -> float:
    """A step of the whole prompt on prefill instance p."""
    return prefill_seconds(view.cluster.profiles[view.cluster.prefill[p].profile], request.prompt_tokens)


def sla_cost(view: View, ttft_s: float, tpot_s: float) -> float:
    """Penalties for the limits that are predicted to be missed: a step, and a slope beyond it."""
    aim = view.objective
    cost = 0.0
    if ttft_s > aim.ttft_limit_s:
        cost += aim.ttft_step + aim.ttft_slope_per_s * (ttft_s - aim.ttft_limit_s)
    if tpot_s > aim.tpot_limit_s:
        cost += aim.tpot_step + aim.tpot_slope_per_s * (tpot_s - aim.tpot_limit_s)
    return cost


class CostBased(FixedPools):
    """A scheduler that takes the cheapest of some choices; its arguments are those of `PredictedCost`."""

    def __init__(self, prefill_weight: float = 1.0, transfer_weight: float = 1.0, decode_weight: float = 1.0) -> None:
        self.cost = PredictedCost(prefill_weight, transfer_weight, decode_weight)

    def pair(self, view: View, request: RequestView) -> int:
        return nearest_decode(view, request)


class Greedy(CostBased):
    """Least predicted joint TPOT plus SLA penalties over every pair, precision and co-located instance.

    Mooncake's Conductor (Qin et al., FAST 2025) takes the least predicted TTFT, Dynamo's KV router the least cost of
    prefill and decode blocks; llm-d can score instances by predicted latency.
    """

    name = "greedy"

    def route(self, view: View, request: RequestView) -> Route:
        return self.cost.cheapest(view, request, request.prefills)
