"""Schedulers that decide at the gateway when a request may pass, or whether it may."""

from __future__ import annotations

from baselines.greedy import CostBased, PredictedCost, whole_prefill_seconds
from pdenv.sim.view import HOLD, REJECT, RequestView, Route, View


class Pull(CostBased):
    """Requests wait at the gateway until a prefill instance is free, then take the cheapest pair of a free one.

    Nobody waits behind a long prompt while another instance becomes free, and the choice is made on the loads of the
    moment: late binding as in Sparrow (Ousterhout et al., SOSP 2013). The price is the time to ask and deliver,
    in which the instance idles. Limited by the scenario's `hold_max_s`; then the cheapest pair of all.
    Workers that pull from one prefill queue were Dynamo's first design.

    Args:
        pull_below_s: an instance is free up to this predicted work; 0: only when it is idle.
        prefill_weight: see `PredictedCost`, like the two that follow.
    """

    name = "pull"

    def __init__(
        self,
        pull_below_s: float = 0.0,
        prefill_weight: float = 1.0,
        transfer_weight: float = 1.0,
        decode_weight: float = 1.0,
    ) -> None:
        self.cost = PredictedCost(prefill_weight, transfer_weight, decode_weight)
        self.pull_below_s = pull_below_s

    def route(self, view: View, request: RequestView) -> Route:
        free = [p for p in request.prefills if view.prefill[p].work_s <= self.pull_below_s]
        if request.prefills and not free and request.may_hold:
            return HOLD
        return self.cost.pair_or_colocated(view, request, free or request.prefills)


class Admission(CostBased):
    """Rejects a request that no prefill instance is predicted to answer in time, where the scenario allows it.

    The prediction is the time waited so far, the work ahead and the request's own prefill, on the best instance.
    Others take the cheapest pair. Mooncake rejects early by predicted load (Qin et al., FAST 2025).

    Args:
        admit_factor: reject above this many times the TTFT limit.
        prefill_weight: see `PredictedCost`, like the two that follow.
    """

    name = "admission"

    def __init__(
        self,
        admit_factor: float = 1.0,
        prefill_weight: float = 1.0,
        transfer_weight: float = 1.0,
        decode_weight: float = 1.0,
    ) -> None:
        self.cost = PredictedCost(prefill_weight, transfer_weight, decode_weight)
        self.admit_factor = admit_factor

    def route(self, view: View, request: RequestView) -> Route:
        if request.may_reject and request.prefills and self._would_be_late(view, request):
            return REJECT
        return self.cost.pair_or_colocated(view, request, request.prefills)

    def _would_be_late(self, view: View, request: RequestView) -> bool:
        least_s = min(view.prefill[p].work_s + whole_prefill_seconds(view, request, p) for p in request.prefills)
        waited_s = view.now - request.arrival_s
        return waited_s + least_s > self.admit_factor * view.objective.ttft_limit_s
