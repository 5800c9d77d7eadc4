"""What the schedulers share: ways to pick an instance, and what to do where there is none.

Instances are compared in ascending order and the first of equals wins, as `min` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdenv.sim.view import WAIT, RequestView, Route, Scale, View

_MASK = (1 << 64) - 1


class FixedPools:
    """A scheduler that does not scale."""

    def scale(self, view: View) -> Scale:
        return Scale()


class RandomStream:
    """Uniform integers by splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def draw(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
        return (z >> 11) % n

    def pick(self, instances: Sequence[int]) -> int | None:
        """A uniformly random one of them, or None."""
        return instances[self.draw(len(instances))] if instances else None


def finest_precision(request: RequestView) -> int:
    """The most precise wire format that the request's tier allows."""
    return request.precisions[0]


def least_work_prefill(view: View, request: RequestView) -> int | None:
    """The prefill instance with the least predicted work."""
    return min(request.prefills, key=lambda p: view.prefill[p].work_s, default=None)


def least_tokens_decode(view: View, request: RequestView, precision: int) -> int | None:
    """The decode instance with the fewest prompt and predicted tokens."""
    return min(request.decodes[precision], key=lambda d: view.decode[d].tokens, default=None)


def least_work_colocated(view: View, request: RequestView) -> int | None:
    """The co-located instance with the least predicted prefill work, then the fewest tokens."""
    return min(
        request.colocated,
        key=lambda c: (view.colocated[c].work_s, view.colocated[c].tokens),
        default=None,
    )


def colocated_or_wait(view: View, request: RequestView) -> Route:
    instance = least_work_colocated(view, request)
    return WAIT if instance is None else Route.colocated(instance)


def chooses_decode_later(view: View) -> bool:
    """Is the decode instance chosen when the prefill ends (`decode_binding: prefill_end`)?"""
    return view.cluster.binding == 1


def pair_or_else(view: View, request: RequestView, prefill: int | None, decode: int | None, precision: int) -> Route:
    """The pair if there is one, else a co-located instance, else wait."""
    if prefill is not None and chooses_decode_later(view):
        return Route.pair(prefill, -1, precision)
    if prefill is not None and decode is not None:
        return Route.pair(prefill, decode, precision)
    return colocated_or_wait(view, request)
