"""KV-aware pairing: long prompts follow the fastest links, short ones go where there is room."""

from __future__ import annotations

from itertools import product

from baselines.common import (
    FixedPools,
    chooses_decode_later,
    finest_precision,
    least_work_prefill,
    pair_or_else,
)
from baselines.estimates import arrival_seconds, kv_share
from pdenv.sim.view import RequestView, Route, View


class KvAwarePairing:
    """Chooses a pair by prompt length. A part: `KvAware` and `ThreePart` are made with it."""

    def __init__(self, long_tokens: float) -> None:
        self.long_tokens = long_tokens

    def pair(self, view: View, request: RequestView, precision: int) -> tuple[int | None, int | None]:
        """(prefill, decode) for a new request: if long, the pair that it joins soonest, else the least loaded."""
        if chooses_decode_later(view) or request.prompt_tokens < self.long_tokens:
            return least_work_prefill(view, request), emptiest_decode(view, request, precision)

        def arrives_s(pair: tuple[int, int]) -> float:
            p, d = pair
            return view.prefill[p].work_s + arrival_seconds(view, request, p, d, precision)

        pairs = product(request.prefills, request.decodes[precision])
        return min(pairs, key=arrives_s, default=(None, None))

    def decode(self, view: View, request: RequestView) -> int:
        """Decode instance for a request whose prefill instance is fixed."""
        if request.prompt_tokens >= self.long_tokens:
            return nearest_decode(view, request)
        decode = emptiest_decode(view, request, request.wire)
        assert decode is not None  # asked only where some instance is legal
        return decode


def emptiest_decode(view: View, request: RequestView, precision: int) -> int | None:
    """The decode instance whose memory has the smallest share taken."""
    return min(request.decodes[precision], key=lambda d: kv_share(view, d), default=None)


def nearest_decode(view: View, request: RequestView) -> int:
    """The decode instance that the KV reaches soonest; of equals, the emptiest."""
    p, precision = request.prefill, request.wire
    return min(
        request.decodes[precision],
        key=lambda d: (arrival_seconds(view, request, p, d, precision), kv_share(view, d)),
    )


class KvAware(FixedPools):
    """KV-aware pairing of least-loaded instances, in the finest precision that the tier allows.

    A long prompt's KV is large, so for it the link decides: least sum of prefill work ahead of it,
    transfer time and expected wait for decode memory, over all pairs. A short one may cross racks:
    least-loaded prefill, emptiest decode.
    Dynamo's topology-aware KV transfer binds or biases the decode choice to the prefill instance's domain.

    Args:
        long_tokens: prompt length from which on the link decides.
    """

    name = "kv-aware"

    def __init__(self, long_tokens: float = 4096.0) -> None:
        self.pairing = KvAwarePairing(long_tokens)

    def route(self, view: View, request: RequestView) -> Route:
        precision = finest_precision(request)
        prefill, decode = self.pairing.pair(view, request, precision)
        return pair_or_else(view, request, prefill, decode, precision)

    def pair(self, view: View, request: RequestView) -> int:
        return self.pairing.decode(view, request)
