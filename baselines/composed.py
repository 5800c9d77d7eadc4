"""One scheduler's routing with another's scaling: the twins of policies named ROUTE+SCALER."""

from __future__ import annotations

from baselines.scaling import Scaling
from pdenv.policies import Policy
from pdenv.sim.view import RequestView, Route, Scale, View


class Composed:
    """Routes as one object does and scales as another.

    `Composed(Greedy(), QueueScaling())` decides like the compiled policy `greedy+queue`.

    Args:
        routing: a scheduler; its own scaling is not used.
        scaling: see `baselines.scaling`.
        name: for reports.
    """

    def __init__(self, routing: Policy, scaling: Scaling, name: str = "composed") -> None:
        self.routing = routing
        self.scaling = scaling
        self.name = name

    def route(self, view: View, request: RequestView) -> Route:
        return self.routing.route(view, request)

    def pair(self, view: View, request: RequestView) -> int:
        return self.routing.pair(view, request)

    def scale(self, view: View) -> Scale:
        return self.scaling.scale(view)
