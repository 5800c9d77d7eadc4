"""Decisions that both simulators can be driven with: a hash of what is decided, not of when or in what order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Route = (
    tuple[Literal["pair"], int, int, int]
    | tuple[Literal["colocated"], int]
    | tuple[Literal["hold"]]
    | tuple[Literal["reject"]]
)

_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """64 well-mixed bits of some integers (splitmix64 finaliser over a running state)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


@dataclass(frozen=True)
class Script:
    """Shares are probabilities in [0, 1] of a decision where it is allowed."""

    seed: int
    hold_share: float = 0.0
    reject_share: float = 0.0
    colocated_share: float = 0.5  # of requests that could go either way
    scale_share: float = 0.0  # of control ticks at which something is asked for
    flip_share: float = 0.0  # of those, flips

    def _unit(self, *key: int) -> float:
        return mix(self.seed, *key) / 2.0**64

    def route(
        self,
        request: int,
        attempt: int,
        pairs: list[tuple[int, int, int]],
        colocated: list[int],
        may_hold: bool,
        may_reject: bool,
    ) -> Route:
        """Decision on the head of the gateway queue.

        `pairs` holds the legal (prefill, decode or −1, wire precision) and `colocated` the legal instances, both
        ascending and not both empty. `attempt` is how often this request has been offered before.
        """
        if may_reject and self._unit(1, request, attempt) < self.reject_share:
            return ("reject",)
        if may_hold and self._unit(2, request, attempt) < self.hold_share:
            return ("hold",)
        pick = mix(self.seed, 3, request, attempt)
        if colocated and (not pairs or self._unit(4, request, attempt) < self.colocated_share):
            return ("colocated", colocated[pick % len(colocated)])
        return ("pair", *pairs[pick % len(pairs)])

    def pair(self, request: int, attempt: int, decodes: list[int]) -> int:
        """Decode instance for a request that needs one (again); `decodes` is ascending and not empty."""
        return decodes[mix(self.seed, 5, request, attempt) % len(decodes)]

    def scale(self, tick: int) -> tuple[int, int, int]:
        """(prefill delta, decode delta, flip); flip is 0, 1 (prefill → decode) or 2, and excludes deltas."""
        if self._unit(6, tick) >= self.scale_share:
            return (0, 0, 0)
        pick = mix(self.seed, 7, tick)
        if self._unit(8, tick) < self.flip_share:
            return (0, 0, 1 + pick % 2)
        return (pick % 3 - 1, pick // 3 % 3 - 1, 0)
