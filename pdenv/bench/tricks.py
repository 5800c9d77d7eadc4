"""Tricks that exploit the cost instead of scheduling well; a suite's gates show that none of them pays.

Each changes one thing about what another scheduler, the honest one, would do.
"""

from __future__ import annotations

from typing import Any

from pdenv.policies import Policy
from pdenv.scenario import Scenario
from pdenv.sim.view import HOLD, REJECT, Kind, RequestView, Route, Scale, View
from pdenv.topology import PRECISIONS

#: From the coarsest precision to the finest, indices into PRECISIONS.
COARSEST_FIRST = tuple(map(PRECISIONS.index, ("int4", "nvfp4", "fp8", "bf16")))


class Trick:
    """Does what the honest scheduler does.

    Args:
        honest: the scheduler that it is compared with, not used for anything else.
        warmup_s, end_s: between which the measured requests arrive, s.
    """

    name = "honest"

    def __init__(self, honest: Policy, warmup_s: float, end_s: float) -> None:
        self.honest = honest
        self.last_tenth_s = end_s - 0.1 * (end_s - warmup_s)

    def route(self, view: View, request: RequestView) -> Route:
        return self.honest.route(view, request)

    def pair(self, view: View, request: RequestView) -> int:
        return self.honest.pair(view, request)

    def scale(self, view: View) -> Scale:
        return self.honest.scale(view)


class AlwaysHold(Trick):
    """Holds every request for as long as it may."""

    name = "always-hold"

    def route(self, view: View, request: RequestView) -> Route:
        return HOLD if request.may_hold else super().route(view, request)


class AlwaysReject(Trick):
    """Rejects every request, in a copy of the scenario that allows it."""

    name = "always-reject"

    def route(self, view: View, request: RequestView) -> Route:
        return REJECT if request.may_reject else super().route(view, request)


class OneDecodeInstance(Trick):
    """Sends all KV to the first decode instance that is legal."""

    name = "one-decode-instance"

    def route(self, view: View, request: RequestView) -> Route:
        route = super().route(view, request)
        if route.kind is not Kind.PAIR or route.decode < 0:
            return route
        return route._replace(decode=request.decodes[route.precision][0])


class AlwaysInt4(Trick):
    """The honest pair, in the coarsest precision that the tier allows."""

    name = "always-int4"

    def route(self, view: View, request: RequestView) -> Route:
        route = super().route(view, request)
        if route.kind is not Kind.PAIR or route.decode < 0:
            return route
        return route._replace(precision=next(q for q in COARSEST_FIRST if route.decode in request.decodes.get(q, ())))


class IdleNearTheHorizon(AlwaysHold):
    """Honest at first; in the last tenth of the window it holds every request for as long as it may."""

    name = "idle-near-the-horizon"

    def route(self, view: View, request: RequestView) -> Route:
        return super().route(view, request) if view.now > self.last_tenth_s else Trick.route(self, view, request)


TRICKS: dict[str, type[Trick]] = {
    trick.name: trick for trick in (AlwaysHold, AlwaysReject, OneDecodeInstance, AlwaysInt4, IdleNearTheHorizon)
}

#: What a trick needs a scenario to allow, as overrides.
ALTERED: dict[str, dict[str, Any]] = {AlwaysReject.name: {"control.allow_reject": True}}


def possible(trick: str, scenario: Scenario) -> bool:
    """Whether a scenario, altered as the trick needs it, leaves room for it."""
    if trick == AlwaysInt4.name:
        return any("int4" in tier.precisions and tier.share > 0 for tier in scenario.quality.tiers.values())
    return trick != OneDecodeInstance.name or sum(group.count for group in scenario.decode) > 1
