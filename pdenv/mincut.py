"""The narrowest cut between the prefill and the decode pool, as a maximum flow through the ports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import compress, pairwise

from pdenv.topology import Cluster

_SOURCE, _SINK = 0, 1


class _Graph:
    """Directed graph of capacities, with the residual of every edge stored beside its reverse."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # node -> edge numbers; edge e ^ 1 is the reverse of e
        self.to: list[int] = []
        self.residual: list[float] = []

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        for a, b, free in ((start, end, capacity), (end, start, 0.0)):
            self.edges[a].append(len(self.to))
            self.to.append(b)
            self.residual.append(free)

    def levels(self) -> list[int]:
        """Hops from the source over edges with room, −1 where there is no way."""
        level = [-1] * len(self.edges)
        level[_SOURCE] = 0
        queue = [_SOURCE]
        for node in queue:
            for e in self.edges[node]:
                if self.residual[e] > 0 and level[self.to[e]] < 0:
                    level[self.to[e]] = level[node] + 1
                    queue.append(self.to[e])
        return level

    def push(self, node: int, limit: float, level: list[int], untried: list[int]) -> float:
        """Send up to `limit` from `node` to the sink along one shortest way; returns what was sent."""
        if node == _SINK:
            return limit
        while untried[node] < len(self.edges[node]):
            e = self.edges[node][untried[node]]
            if self.residual[e] > 0 and level[self.to[e]] == level[node] + 1:
                sent = self.push(self.to[e], min(limit, self.residual[e]), level, untried)
                if sent > 0:
                    self.residual[e] -= sent
                    self.residual[e ^ 1] += sent
                    return sent
            untried[node] += 1
        return 0.0

    def max_flow(self) -> float:
        """Dinic's algorithm (1970): all shortest ways at once, then longer ones."""
        total = 0.0
        while (level := self.levels())[_SINK] >= 0:
            untried = [0] * len(self.edges)
            while (sent := self.push(_SOURCE, float("inf"), level, untried)) > 0:
                total += sent
        return total


def successors(cluster: Cluster) -> dict[int, set[int]]:
    """Port → next ports on paths between instances that are active at the start; −1 is the source, −2 the sink."""
    following: dict[int, set[int]] = defaultdict(set)
    active = [instance.active for instance in cluster.decode]
    for instance, row in zip(cluster.prefill, cluster.paths, strict=True):
        if not instance.active:
            continue
        for path in compress(row, active):
            ports = path.ports
            following[-1].add(ports[0])
            following[ports[-1]].add(-2)
            for port, after in pairwise(ports):
                following[port].add(after)
    return following


def _max_flow(following: dict[int, set[int]], rate: Callable[[int], float]) -> float:
    """Largest flow from source to sink where port k carries `rate(k)`."""
    graph = _Graph()
    entry, leave = {-2: _SINK}, {-1: _SOURCE}
    for port in sorted(k for k in following if k >= 0):
        entry[port], leave[port] = graph.node(), graph.node()
        graph.edge(entry[port], leave[port], rate(port))
    # Ports with the same successors share a hub, so that P × D pairs do not make P × D edges.
    hubs: dict[frozenset[int], int] = {}
    for port, after in following.items():
        key = frozenset(after)
        if key not in hubs:
            hubs[key] = graph.node()
            for port_after in sorted(key):
                graph.edge(hubs[key], entry[port_after], float("inf"))
        graph.edge(leave[port], hubs[key], float("inf"))
    return graph.max_flow()


def min_cuts_bytes_per_s(cluster: Cluster) -> tuple[float, float]:
    """Largest total rate from active prefill to active decode instances: achievable, and at line rates; bytes/s.

    0 where one of the pools is empty.
    """
    following = successors(cluster)
    achievable = _max_flow(following, lambda k: cluster.ports[k].bytes_per_s)
    return achievable, _max_flow(following, lambda k: cluster.ports[k].line_bytes_per_s)
