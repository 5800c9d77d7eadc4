"""Schedulers that look at no load at all: random and round-robin."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.common import FixedPools, RandomStream, chooses_decode_later, finest_precision, pair_or_else
from pdenv.sim.view import RequestView, Route, View


class Random(FixedPools):
    """A uniformly random legal prefill instance, and independently a uniformly random decode instance.

    The floor that every other scheduler has to beat. The vLLM, SGLang, AIBrix and Dynamo routers offer it.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.stream = RandomStream(seed)

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = self.stream.pick(request.prefills)
        decode = None if chooses_decode_later(view) else self.stream.pick(request.decodes[precision])
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = self.stream.pick(request.decodes[request.wire])
        assert decode is not None  # asked only where some instance is legal
        return decode


class RoundRobin(FixedPools):
    """Each pool in turn, passing over instances that may not take the request.

    Even in requests, blind to their size. Dynamo's default router mode; the vLLM production-stack,
    vLLM and SGLang routers offer it.
    """

    name = "round-robin"

    def __init__(self) -> None:
        self.last_prefill = -1
        self.last_decode = -1

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = _next_after(self.last_prefill, len(view.prefill), request.prefills)
        if prefill is not None:
            self.last_prefill = prefill
        decode = None if chooses_decode_later(view) else self._next_decode(view, request.decodes[precision])
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = self._next_decode(view, request.decodes[request.wire])
        assert decode is not None  # asked only where some instance is legal
        return decode

    def _next_decode(self, view: View, legal: Sequence[int]) -> int | None:
        decode = _next_after(self.last_decode, len(view.decode), legal)
        if decode is not None:
            self.last_decode = decode
        return decode


def _next_after(last: int, n: int, legal: Sequence[int]) -> int | None:
    """The first legal instance of 0..n−1 after `last`, going round."""
    return min(legal, key=lambda i: (i - last - 1) % n, default=None)
