"""Schedulers in readable Python, one family a file.

Each class is the twin of a compiled rule in `pdenv.sim.rules`: with the same seed both make the same
decisions, bit for bit. Read these to understand a rule, and start from one to write your own;
docs/schedulers.md has the overview. Runs use the compiled rules because they are much faster.
"""

from __future__ import annotations

from baselines.colocated import Colocated
from baselines.greedy import Greedy
from baselines.kv_aware import KvAware
from baselines.least import LeastRequests, LeastWork
from baselines.oblivious import Random, RoundRobin
from baselines.three_part import ThreePart

__all__ = [
    "Colocated",
    "Greedy",
    "KvAware",
    "LeastRequests",
    "LeastWork",
    "Random",
    "RoundRobin",
    "ThreePart",
]
