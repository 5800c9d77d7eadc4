"""Schedulers that look at a random few instances instead of all."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.common import FixedPools, RandomStream, chooses_decode_later, finest_precision, pair_or_else
from pdenv.sim.view import Load, RequestView, Route, View


class Sampled(FixedPools):
    """Picks an instance of each pool on its own, by `_best`."""

    def __init__(self, seed: int = 0) -> None:
        self.stream = RandomStream(seed)

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = self._best(view.prefill, request.prefills)
        later = chooses_decode_later(view)
        decode = None if later else self._best(view.decode, request.decodes[precision])
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = self._best(view.decode, request.decodes[request.wire])
        assert decode is not None  # asked only where some instance is legal
        return decode

    def _best(self, loads: Sequence[Load], legal: Sequence[int]) -> int | None:
        raise NotImplementedError


class PowerOfTwo(Sampled):
    """Of two instances drawn at random, the one with fewer requests (the first drawn of equals), in each pool.

    Two choices are enough to make the longest queue of n grow like log log n instead of log n / log log n
    (Mitzenmacher, IEEE TPDS 2001), and with stale loads not everybody runs to the same instance. The vLLM and SGLang
    routers offer it.
    """

    name = "power-of-two"

    def _best(self, loads: Sequence[Load], legal: Sequence[int]) -> int | None:
        if len(legal) < 2:
            return legal[0] if legal else None
        i, k = self.stream.draw(len(legal)), self.stream.draw(len(legal) - 1)
        drawn = (legal[i], legal[k + 1 if k >= i else k])
        return min(drawn, key=lambda instance: loads[instance].requests)


class JoinIdleQueue(Sampled):
    """A random idle instance if there is one, else a random instance, in each pool.

    Needs to know only who is idle (Lu et al., Performance Evaluation 2011). Above some load hardly anybody is, and
    what is left is random.
    """

    name = "join-idle-queue"

    def _best(self, loads: Sequence[Load], legal: Sequence[int]) -> int | None:
        idle = [instance for instance in legal if loads[instance].requests == 0]
        return self.stream.pick(idle or legal)
