"""A soft score of prefill work, link and room for KV."""

from __future__ import annotations

from baselines.common import FixedPools, chooses_decode_later, finest_precision, least_work_prefill, pair_or_else
from baselines.estimates import kv_share, transfer_seconds
from baselines.greedy import whole_prefill_seconds
from pdenv.sim.view import RequestView, Route, View


class TopologyScore(FixedPools):
    """Least sum of prefill work, weighted transfer time and weighted share of KV memory taken, over all pairs.

    A slow link counts against a pair and never rules it out. llm-d adds up weighted scores of queues, KV memory and
    others; Dynamo's topology-aware KV transfer can bias the decode choice by domain.

    Args:
        link_weight: of a second of transfer, in seconds of prefill work.
        room_weight_s: of a full decode memory, in seconds of prefill work.
    """

    name = "topology-score"

    def __init__(self, link_weight: float = 1.0, room_weight_s: float = 1.0) -> None:
        self.link_weight = link_weight
        self.room_weight_s = room_weight_s

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        if chooses_decode_later(view):
            return pair_or_else(view, request, least_work_prefill(view, request), None, precision)

        def score_s(pair: tuple[int, int]) -> float:
            p, d = pair
            own_s = view.prefill[p].work_s + whole_prefill_seconds(view, request, p)
            return own_s + self._link_s(view, request, p, d, precision)

        pairs = [(p, self._decode(view, request, p, precision)) for p in request.prefills]
        prefill, decode = min(((p, d) for p, d in pairs if d is not None), key=score_s, default=(None, None))
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = self._decode(view, request, request.prefill, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode

    def _decode(self, view: View, request: RequestView, p: int, precision: int) -> int | None:
        """The best decode instance for KV from p."""
        decodes = request.decodes[precision]
        return min(decodes, key=lambda d: self._link_s(view, request, p, d, precision), default=None)

    def _link_s(self, view: View, request: RequestView, p: int, d: int, precision: int) -> float:
        transfer_s = transfer_seconds(view, request, p, d, precision)
        return self.link_weight * transfer_s + self.room_weight_s * kv_share(view, d)
