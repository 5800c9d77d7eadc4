"""Size-interval assignment: some prefill instances are closed to long prompts."""

from __future__ import annotations

from baselines.estimates import speed_seconds
from baselines.greedy import CostBased, PredictedCost
from pdenv.sim.view import RequestView, Route, View


class SizeInterval(CostBased):
    """Greedy, with a share of the prefill instances closed to long prompts.

    With heavy-tailed prompts a few long ones hold up everything behind them. They get the fastest of the legal prefill
    instances, and the slowest `short_share` of them, at least one of each kind, are closed to them while they do not
    have much less work. Short prompts may go anywhere: the predicted cost keeps them from queues of long ones. Where
    no prompt is long this is greedy. After size-interval task assignment (Harchol-Balter, Crovella and Murta, JPDC
    1999), in which each class keeps to its own.

    Args:
        cut_tokens: prompts from this length on are long.
        short_share: share of the prefill instances that are closed to long prompts.
        spill_s: one of these is open all the same if it has this much less predicted work than all the others.
        prefill_weight: see `PredictedCost`, like the two that follow.
    """

    name = "size-interval"

    def __init__(
        self,
        cut_tokens: float = 20000.0,
        short_share: float = 0.33,
        spill_s: float = 5.0,
        prefill_weight: float = 1.0,
        transfer_weight: float = 1.0,
        decode_weight: float = 1.0,
    ) -> None:
        self.cost = PredictedCost(prefill_weight, transfer_weight, decode_weight)
        self.cut_tokens = cut_tokens
        self.short_share = short_share
        self.spill_s = spill_s

    def route(self, view: View, request: RequestView) -> Route:
        return self.cost.cheapest(view, request, self._open(view, request))

    def _open(self, view: View, request: RequestView) -> list[int]:
        """Prefill instances that this request may use, ascending."""
        legal = list(request.prefills)
        if request.prompt_tokens < self.cut_tokens or len(legal) < 2:
            return legal
        slowest_first = sorted(legal, key=lambda p: -speed_seconds(view, p))
        n_short = min(max(int(self.short_share * len(legal) + 0.5), 1), len(legal) - 1)
        own = slowest_first[n_short:]
        least_s = min(view.prefill[p].work_s for p in own)
        return [p for p in legal if p in own or view.prefill[p].work_s < least_s - self.spill_s]
