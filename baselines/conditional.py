"""Conditional disaggregation: a pair only for prompts that are worth the transfer."""

from __future__ import annotations

from baselines.common import least_work_colocated, least_work_prefill
from baselines.greedy import CostBased, PredictedCost
from pdenv.sim.view import RequestView, Route, View


class Conditional(CostBased):
    """Co-located for short prompts, and for all while prefill is busy, unless co-located instances are busy too.

    Otherwise, and where there is no co-located instance, the cheapest pair. Dynamo's conditional disaggregation
    decides by prompt length and load between a prefill worker and prefill in place.

    Args:
        local_tokens: shorter prompts stay on a co-located instance.
        queue_s: so do all while every prefill instance has more predicted work.
        local_queue_s: but only on a co-located instance with less predicted work than this.
        prefill_weight: see `PredictedCost`, like the two that follow.
    """

    name = "conditional"

    def __init__(
        self,
        local_tokens: float = 1024.0,
        queue_s: float = 2.0,
        local_queue_s: float = 1.0,
        prefill_weight: float = 1.0,
        transfer_weight: float = 1.0,
        decode_weight: float = 1.0,
    ) -> None:
        self.cost = PredictedCost(prefill_weight, transfer_weight, decode_weight)
        self.local_tokens = local_tokens
        self.queue_s = queue_s
        self.local_queue_s = local_queue_s

    def route(self, view: View, request: RequestView) -> Route:
        local = least_work_colocated(view, request)
        if local is not None and view.colocated[local].work_s < self.local_queue_s:
            if request.prompt_tokens < self.local_tokens or self._prefill_is_busy(view, request):
                return Route.colocated(local)
        return self.cost.pair_or_colocated(view, request, request.prefills)

    def _prefill_is_busy(self, view: View, request: RequestView) -> bool:
        prefill = least_work_prefill(view, request)
        return prefill is None or view.prefill[prefill].work_s > self.queue_s
