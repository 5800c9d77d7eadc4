"""Prefill and decode on one instance: what disaggregation is compared with."""

from __future__ import annotations

from baselines.common import FixedPools, colocated_or_wait, least_tokens_decode
from pdenv.sim.view import RequestView, Route, View


class Colocated(FixedPools):
    """Always a co-located instance: the one with the least predicted prefill work, then the fewest tokens.

    No KV crosses the network, but prefill chunks share iterations with decode and slow it down: chunked
    prefill as in Sarathi-Serve (Agrawal et al., OSDI 2024), which vLLM and SGLang have taken up.
    """

    name = "colocated"

    def route(self, view: View, request: RequestView) -> Route:
        return colocated_or_wait(view, request)

    def pair(self, view: View, request: RequestView) -> int:
        """Only for requests that somebody else dispatched to a pair."""
        decode = least_tokens_decode(view, request, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode
