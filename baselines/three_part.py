"""The three-part scheduler: routing, elastic scaling and KV-aware pairing, held together by rate matching."""

from __future__ import annotations

from baselines.common import chooses_decode_later, colocated_or_wait, finest_precision
from baselines.estimates import transfer_seconds
from baselines.kv_aware import KvAwarePairing
from baselines.scaling import UtilisationScaling
from pdenv.sim.state import ACTIVE
from pdenv.sim.view import HOLD, RequestView, Route, Scale, View


class ThreePart:
    """A composition of small parts, each of which can be read, tuned or replaced on its own.

    Requests go to the least-loaded prefill instance, paired by `KvAwarePairing`, in a precision chosen by
    `PrecisionByTier`; `RateMatching` holds the gateway while decode cannot keep up, and `UtilisationScaling`
    sizes the two pools. Where no pair is legal a co-located instance takes the request.

    Args:
        long_tokens: prompt length from which on the link decides about the pair.
        receive_limit: hold while every decode instance has so many requests in its receive queue.
        compress_above_s: compress a transfer that would take longer, as far as the tier allows.
        prefill_high: add a prefill instance above this demanded utilisation.
        prefill_low: remove one below it.
        decode_high: add a decode instance above this share of KV memory in use.
        decode_low: remove one below it.
        quiet_ticks: control ticks without scaling after each scaling action.
    """

    name = "three-part"

    def __init__(
        self,
        long_tokens: float = 4096.0,
        receive_limit: float = 4.0,
        compress_above_s: float = 0.2,
        prefill_high: float = 0.92,
        prefill_low: float = 0.45,
        decode_high: float = 0.85,
        decode_low: float = 0.25,
        quiet_ticks: float = 3.0,
    ) -> None:
        self.matching = RateMatching(receive_limit)
        self.pairing = KvAwarePairing(long_tokens)
        self.compression = PrecisionByTier(compress_above_s)
        self.scaling = UtilisationScaling((prefill_low, prefill_high), (decode_low, decode_high), quiet_ticks)

    def route(self, view: View, request: RequestView) -> Route:
        if request.may_hold and self.matching.throttles(view):
            return HOLD
        precision = finest_precision(request)
        prefill, decode = self.pairing.pair(view, request, precision)
        if prefill is not None and chooses_decode_later(view):
            return Route.pair(prefill, -1, precision)
        if prefill is None or decode is None:
            return colocated_or_wait(view, request)
        return Route.pair(prefill, decode, self.compression.precision(view, request, prefill, decode))

    def pair(self, view: View, request: RequestView) -> int:
        return self.pairing.decode(view, request)

    def scale(self, view: View) -> Scale:
        return self.scaling.scale(view)


class RateMatching:
    """Throttles dispatch by the depth of the receive queues.

    KV that no decode instance has room for stays in prefill memory. Dispatching on would fill it up and stall
    the prefill pool; dispatching too little starves decode.
    """

    def __init__(self, receive_limit: float) -> None:
        self.receive_limit = receive_limit

    def throttles(self, view: View) -> bool:
        """Has every ACTIVE decode instance `receive_limit` requests in its receive queue?"""
        active = [load for load, state in zip(view.decode, view.decode_state, strict=True) if state == ACTIVE]
        return bool(view.decode) and all(load.receiving >= self.receive_limit for load in active)


class PrecisionByTier:
    """The least compression, within the tier, that keeps a transfer short."""

    def __init__(self, compress_above_s: float) -> None:
        self.compress_above_s = compress_above_s

    def precision(self, view: View, request: RequestView, p: int, d: int) -> int:
        """The first precision whose transfer is short enough; if none is, the fastest."""
        allowed = [q for q in request.precisions if d in request.decodes[q]]
        seconds = {q: transfer_seconds(view, request, p, d, q) for q in allowed}
        for q in allowed:
            if seconds[q] <= self.compress_above_s:
                return q
        return min(allowed, key=lambda q: seconds[q])
