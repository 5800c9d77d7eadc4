"""Schedulers in readable Python, one family a file.

Each class is the twin of a compiled rule in `pdenv.sim.rules`: with the same seed both make the same
decisions, bit for bit. Read these to understand a rule, and start from one to write your own;
docs/schedulers.md has the overview. `baselines.scaling` has the twins of the scalers, and `baselines.composed`
puts a routing and a scaling scheduler together. Runs use the compiled rules because they are much faster.
"""

from __future__ import annotations

from baselines.colocated import Colocated
from baselines.conditional import Conditional
from baselines.gatekeeping import Admission, Pull
from baselines.greedy import Greedy
from baselines.kv_aware import KvAware
from baselines.least import LeastRequests, LeastTokens, LeastWork
from baselines.oblivious import Random, RoundRobin
from baselines.sampled import JoinIdleQueue, PowerOfTwo
from baselines.size_interval import SizeInterval
from baselines.three_part import ThreePart
from baselines.topology import TopologyScore

__all__ = [
    "Admission",
    "Colocated",
    "Conditional",
    "Greedy",
    "JoinIdleQueue",
    "KvAware",
    "LeastRequests",
    "LeastTokens",
    "LeastWork",
    "PowerOfTwo",
    "Pull",
    "Random",
    "RoundRobin",
    "SizeInterval",
    "ThreePart",
    "TopologyScore",
]
