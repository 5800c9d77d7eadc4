"""Which ports of a path the solver has to look at.

A port is *wide* if the flows through it also cross other ports whose capacities add up to no more than its own: it can
never hold a flow below what those ports allow, so max-min fair rates are the same without it. Cross-rack paths lose
most of their ports so. All other ports are *narrow*.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim.state import MAX_HOPS

NO_PORT = -1


def mark_narrow_ports(rows: np.ndarray, capacity: np.ndarray) -> None:
    """Fill `narrow` and `narrow_hops` of PATH rows whose `port` is filled.

    Args:
        rows: (paths,) PATH, changed in place.
        capacity: (ports,) bytes/s.
    """
    entries = rows["port"].ravel()
    by_port = np.argsort(entries, kind="stable")
    begins = np.searchsorted(entries[by_port], np.arange(len(capacity) + 1))
    narrow = rows["port"].copy()
    for k in np.argsort(-capacity, kind="stable"):
        mine = by_port[begins[k] : begins[k + 1]] // MAX_HOPS
        others = _packed(np.where(narrow[mine] == k, NO_PORT, narrow[mine]))
        if _smallest_cut(others, capacity) <= capacity[k]:
            narrow[mine] = others
    rows["narrow"] = narrow = _packed(narrow)
    rows["narrow_hops"] = (narrow != NO_PORT).sum(axis=1)


def _packed(ports: np.ndarray) -> np.ndarray:
    """(paths, MAX_HOPS) ports, those of each path moved to the front in their order."""
    order = np.argsort(ports == NO_PORT, axis=1, kind="stable")
    return np.take_along_axis(ports, order, axis=1)


def _smallest_cut(ports: np.ndarray, capacity: np.ndarray) -> float:
    """Capacity that bounds the sum over all paths: of their first, second, … or of their last, next to last, … ports.

    Args:
        ports: (paths, MAX_HOPS), packed.
        capacity: (ports,) bytes/s.
    """
    hops = (ports != NO_PORT).sum(axis=1)
    every = np.arange(len(ports))
    best = np.inf
    for i in range(hops.min(initial=MAX_HOPS)):
        for column in (ports[:, i], ports[every, hops - 1 - i]):
            cut = np.zeros(len(capacity), bool)
            cut[column] = True
            best = min(best, float(capacity[cut].sum()))
    return best
