"""Schedulers that send a request where the least of one thing is: requests, tokens, or predicted work."""

from __future__ import annotations

from baselines.common import (
    FixedPools,
    finest_precision,
    least_tokens_decode,
    least_work_prefill,
    pair_or_else,
)
from pdenv.sim.view import RequestView, Route, View


class LeastRequests(FixedPools):
    """Join the shortest queue (JSQ), counted in requests, in each pool on its own.

    Good where requests are alike; with heavy-tailed prompts a queue of one can be the longest. AIBrix
    `least-request`, Dynamo `least-loaded`; the fallback of most prefix-aware routers.
    """

    name = "least-requests"

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = min(request.prefills, key=lambda p: view.prefill[p].requests, default=None)
        decode = self._decode(view, request, precision)
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = self._decode(view, request, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode

    def _decode(self, view: View, request: RequestView, precision: int) -> int | None:
        return min(request.decodes[precision], key=lambda d: view.decode[d].requests, default=None)


class LeastTokens(FixedPools):
    """Fewest prompt tokens that wait to be computed; for decode, fewest prompt and predicted tokens.

    Sees that a long prompt is more, but neither that its cost grows faster than its length nor that some GPUs are
    slower. Dynamo's KV router counts tokens in this way.
    """

    name = "least-tokens"

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = min(request.prefills, key=lambda p: view.prefill[p].tokens, default=None)
        decode = least_tokens_decode(view, request, precision)
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = least_tokens_decode(view, request, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode


class LeastWork(FixedPools):
    """Least predicted prefill seconds; for decode, fewest prompt and predicted tokens.

    Counts a long prompt for what it costs. Dynamo's KV router adds up prompt tokens in prefill and KV blocks
    in decode in this way (less cached prefixes); AIBrix has `least-busy-time` and `throughput`.
    """

    name = "least-work"

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill = least_work_prefill(view, request)
        decode = least_tokens_decode(view, request, precision)
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        decode = least_tokens_decode(view, request, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode
