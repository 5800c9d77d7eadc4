"""Max-min fair rates (docs/model.md, section 5), re-solved for what changed only.

A port is *binding* if the sum of its flows' bounds exceeds its capacity; no other port can hold a flow
below its bound. So only flows that are connected through binding ports influence each other, and progressive
filling runs on the connected component of what changed.
"""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    FLOWING,
    LATE_EVENT,
    LATE_RATE,
    dirty_flow,
    dirty_port,
    flow_list,
    header,
    path,
    port,
    port_list,
    request,
)

SHARING, NOT_BINDING = 1, 2  # Port.mark during a solve


@kernel
def path_of(S, r):
    return path(S, request(S, r).way)


@kernel
def mark_port(S, k):
    it = port(S, k)
    if not it.dirty:
        it.dirty = 1
        h = header(S)
        dirty_port(S, h.dirty_ports).i = k
        h.dirty_ports += 1


@kernel
def mark_flow(S, r, why):
    it = request(S, r)
    if not it.dirty:
        h = header(S)
        dirty_flow(S, h.dirty_flows).i = r
        h.dirty_flows += 1
    it.dirty = max(it.dirty, why)


@kernel
def set_bound(S, r, bound):
    """The flow's rate can be at most `bound`, bytes/s."""
    it = request(S, r)
    if bound == it.bound and (it.rate > 0.0 or bound == 0.0):
        mark_flow(S, r, LATE_EVENT)
        return
    way = path_of(S, r)
    for hop in range(way.hops):
        k = way.port[hop]
        port(S, k).bounds += bound - it.bound
        mark_port(S, k)
    it.bound = bound
    mark_flow(S, r, LATE_RATE)


@kernel
def raise_idle_bound(S, r, bound):
    """Raise a bound that does not hold the flow down: no rate changes, but its ports may become binding."""
    it = request(S, r)
    way = path_of(S, r)
    for hop in range(way.hops):
        k = way.port[hop]
        port(S, k).bounds += bound - it.bound
        if is_binding(S, k):
            port(S, k).was_binding = 1
    it.bound = bound


@kernel
def enter_ports(S, r):
    it = request(S, r)
    way = path_of(S, r)
    it.bound = 0.0
    for hop in range(way.hops):
        k = way.port[hop]
        box = port(S, k)
        entry = (r << 3) + hop
        it.hop_next[hop] = -1
        it.hop_prev[hop] = box.tail
        if box.tail < 0:
            box.head = entry
        else:
            request(S, box.tail >> 3).hop_next[box.tail & 7] = entry
        box.tail = entry
        box.flows += 1


@kernel
def leave_ports(S, r):
    it = request(S, r)
    way = path_of(S, r)
    for hop in range(way.hops):
        k = way.port[hop]
        box = port(S, k)
        before = it.hop_prev[hop]
        after = it.hop_next[hop]
        if before < 0:
            box.head = after
        else:
            request(S, before >> 3).hop_next[before & 7] = after
        if after < 0:
            box.tail = before
        else:
            request(S, after >> 3).hop_prev[after & 7] = before
        box.flows -= 1
        box.bounds -= it.bound
        if box.flows == 0:
            box.bounds = 0.0
        box.carried += it.sent
        mark_port(S, k)
    it.bound = 0.0


@kernel
def is_binding(S, k):
    it = port(S, k)
    return it.bounds > it.capacity * (1.0 + 1e-12)


@kernel
def visit_flow(S, r, n_flows):
    it = request(S, r)
    if it.mark == 0:
        it.mark = 1
        flow_list(S, n_flows).i = r
        n_flows += 1
    return n_flows


@kernel
def visit_port(S, k, n_ports):
    """Put a port in `port_list`; whether it is binding, so that its flows are to be visited too."""
    it = port(S, k)
    binding = is_binding(S, k)
    it.mark = SHARING if binding else NOT_BINDING
    it.left = it.capacity
    it.unfixed = it.flows if binding else 0
    port_list(S, n_ports).i = k
    return binding


@kernel
def visit_flows_of(S, k, n_flows):
    entry = port(S, k).head
    while entry >= 0:
        r = entry >> 3
        n_flows = visit_flow(S, r, n_flows)
        entry = request(S, r).hop_next[entry & 7]
    return n_flows


@kernel
def collect(S):
    """Flows in `flow_list` and their ports in `port_list` that what changed can reach; how many of each."""
    h = header(S)
    n_flows = np.int64(0)
    n_ports = np.int64(0)
    for i in range(h.dirty_flows):
        r = dirty_flow(S, i).i
        if request(S, r).dirty == LATE_RATE and request(S, r).flow_state == FLOWING:
            n_flows = visit_flow(S, r, n_flows)
    for i in range(h.dirty_ports):
        k = dirty_port(S, i).i
        it = port(S, k)
        it.dirty = 0
        binding = is_binding(S, k)
        if binding or it.was_binding:
            n_flows = visit_flows_of(S, k, n_flows)
        it.was_binding = binding
    h.dirty_ports = 0
    i = 0
    while i < n_flows:
        way = path_of(S, flow_list(S, i).i)
        for hop in range(way.hops):
            k = way.port[hop]
            if port(S, k).mark == 0:
                if visit_port(S, k, n_ports):
                    n_flows = visit_flows_of(S, k, n_flows)
                n_ports += 1
        i += 1
    return n_flows, n_ports


@kernel
def fix_rate(S, r, rate):
    """The flow's share is decided: take it out of the ports that still have capacity to share."""
    it = request(S, r)
    it.next_rate = rate
    it.mark = 2
    way = path_of(S, r)
    for hop in range(way.hops):
        box = port(S, way.port[hop])
        if box.mark == SHARING:
            box.left -= rate
            box.unfixed -= 1


@kernel
def tightest_port(S, n_ports):
    """The port with the smallest fair share left, and that share."""
    share = np.inf
    where = np.int64(-1)
    for i in range(n_ports):
        k = port_list(S, i).i
        it = port(S, k)
        if it.unfixed > 0:
            s = max(it.left, 0.0) / it.unfixed
            if s < share:
                share = s
                where = k
    return where, share


@kernel
def fix_bounded(S, n_left, share):
    """Fix every flow whose bound is below the smallest share; the others stay first in `flow_list`."""
    kept = np.int64(0)
    for i in range(n_left):
        r = flow_list(S, i).i
        it = request(S, r)
        if it.mark == 2:
            continue
        if it.bound <= share:
            fix_rate(S, r, it.bound)
        else:
            other = flow_list(S, kept).i
            flow_list(S, kept).i = r
            flow_list(S, i).i = other
            kept += 1
    return kept


@kernel
def fix_flows_of(S, k, share):
    entry = port(S, k).head
    while entry >= 0:
        r = entry >> 3
        if request(S, r).mark == 1:
            fix_rate(S, r, share)
        entry = request(S, r).hop_next[entry & 7]


@kernel
def solve(S):
    """Decide `next_rate` of every flow that may have changed; returns how many are in `flow_list`."""
    n_flows, n_ports = collect(S)
    n_left = n_flows
    while n_left > 0:
        where, share = tightest_port(S, n_ports)
        still = fix_bounded(S, n_left, share)
        if still == n_left and where >= 0:
            fix_flows_of(S, where, share)
            still = fix_bounded(S, n_left, -1.0)
        n_left = still
    for i in range(n_ports):
        port(S, port_list(S, i).i).mark = 0
    return n_flows
