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
    flow,
    flow_list,
    header,
    path,
    port,
    port_list,
    request,
)


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
    it = flow(S, r)
    if bound == it.bound and (request(S, r).rate > 0.0 or bound == 0.0):
        mark_flow(S, r, LATE_EVENT)
        return
    for hop in range(it.hops):
        k = it.port[hop]
        port(S, k).bounds += bound - it.bound
        mark_port(S, k)
    it.bound = bound
    mark_flow(S, r, LATE_RATE)


@kernel
def raise_idle_bound(S, r, bound):
    """Raise a bound that does not hold the flow down: no rate changes, but its ports may become binding."""
    it = flow(S, r)
    for hop in range(it.hops):
        k = it.port[hop]
        port(S, k).bounds += bound - it.bound
        refresh_binding(S, k)
    it.bound = bound


@kernel
def enter_ports(S, r):
    """Count the flow on the ports of its path, and put it in the lists of the narrow ones."""
    it = flow(S, r)
    way = path_of(S, r)
    for hop in range(way.hops):
        port(S, way.port[hop]).flows += 1
    it.bound = 0.0
    it.visited = 0
    it.hops = way.narrow_hops
    for hop in range(it.hops):
        k = way.narrow[hop]
        box = port(S, k)
        entry = (r << 3) + hop
        it.port[hop] = k
        it.hop_next[hop] = -1
        request(S, r).hop_prev[hop] = box.tail
        if box.tail < 0:
            box.head = entry
        else:
            flow(S, box.tail >> 3).hop_next[box.tail & 7] = entry
        box.tail = entry


@kernel
def leave_ports(S, r):
    it = flow(S, r)
    way = path_of(S, r)
    for hop in range(way.hops):
        box = port(S, way.port[hop])
        box.flows -= 1
        box.carried += request(S, r).sent
    for hop in range(it.hops):
        k = it.port[hop]
        box = port(S, k)
        before = request(S, r).hop_prev[hop]
        after = it.hop_next[hop]
        if before < 0:
            box.head = after
        else:
            flow(S, before >> 3).hop_next[before & 7] = after
        if after < 0:
            box.tail = before
        else:
            request(S, after >> 3).hop_prev[after & 7] = before
        box.bounds = box.bounds - it.bound if box.flows > 0 else 0.0
        mark_port(S, k)
    it.bound = 0.0


@kernel
def refresh_binding(S, k):
    """Find out whether the port is binding."""
    it = port(S, k)
    binding = it.bounds > it.capacity * (1.0 + 1e-12)
    header(S).binding_ports += binding - it.binding
    it.binding = binding


@kernel
def visit_flow(S, r, n_flows):
    """Put a flow in `flow_list`, once."""
    it = flow(S, r)
    if not it.visited:
        it.visited = 1
        flow_list(S, n_flows).i = r
        n_flows += 1
    return n_flows


@kernel
def visit_flows_of(S, k, n_flows):
    entry = port(S, k).head
    while entry >= 0:
        r = entry >> 3
        n_flows = visit_flow(S, r, n_flows)
        entry = flow(S, r).hop_next[entry & 7]
    return n_flows


@kernel
def visit_port(S, k, n_flows, n_ports):
    """Put a port in `port_list`, once, if it is binding, and its flows in `flow_list`."""
    it = port(S, k)
    if it.visited or not it.binding:
        return n_flows, n_ports
    it.visited = 1
    it.left = it.capacity
    it.unfixed = it.flows
    port_list(S, n_ports).i = k
    return visit_flows_of(S, k, n_flows), n_ports + 1


@kernel
def visit_changed(S):
    """Visit the flows whose bound has changed and those of the ports that are binding or were; how many of each."""
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
        was_binding = it.binding
        refresh_binding(S, k)
        if it.binding:
            n_flows, n_ports = visit_port(S, k, n_flows, n_ports)
        elif was_binding:
            n_flows = visit_flows_of(S, k, n_flows)
    h.dirty_ports = 0
    return n_flows, n_ports


@kernel
def collect(S):
    """Flows in `flow_list` and binding ports in `port_list` that what changed can reach; how many of each."""
    n_flows, n_ports = visit_changed(S)
    i = 0
    while i < n_flows and n_ports < header(S).binding_ports:
        it = flow(S, flow_list(S, i).i)
        for hop in range(it.hops):
            n_flows, n_ports = visit_port(S, it.port[hop], n_flows, n_ports)
        i += 1
    return n_flows, n_ports


@kernel
def fix_rate(S, r, rate):
    """The flow's share is decided: take it out of its ports (of those not binding, nobody reads what is left)."""
    it = flow(S, r)
    it.next_rate = rate
    it.visited = 0
    for hop in range(it.hops):
        box = port(S, it.port[hop])
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
    """Fix every flow whose bound is at most the smallest share; the others stay first in `flow_list`."""
    kept = np.int64(0)
    for i in range(n_left):
        r = flow_list(S, i).i
        if flow(S, r).bound <= share:
            fix_rate(S, r, flow(S, r).bound)
        else:
            keep_flow(S, i, kept)
            kept += 1
    return kept


@kernel
def fix_flows_of(S, n_left, k, share):
    """Fix every flow that crosses port k; the others stay first in `flow_list`."""
    kept = np.int64(0)
    for i in range(n_left):
        r = flow_list(S, i).i
        if crosses(S, r, k):
            fix_rate(S, r, share)
        else:
            keep_flow(S, i, kept)
            kept += 1
    return kept


@kernel
def crosses(S, r, k):
    it = flow(S, r)
    for hop in range(it.hops):
        if it.port[hop] == k:
            return True
    return False


@kernel
def keep_flow(S, i, kept):
    """Move a flow that is not fixed yet from place `i` to place `kept`."""
    other = flow_list(S, kept).i
    flow_list(S, kept).i = flow_list(S, i).i
    flow_list(S, i).i = other


@kernel
def solve(S):
    """Decide `next_rate` of every flow that may have changed; returns how many are in `flow_list`."""
    n_flows, n_ports = collect(S)
    n_left = n_flows
    while n_left > 0:
        where, share = tightest_port(S, n_ports)
        still = fix_bounded(S, n_left, share)
        if still == n_left and where >= 0:
            still = fix_flows_of(S, n_left, where, share)
        n_left = still
    for i in range(n_ports):
        port(S, port_list(S, i).i).visited = 0
    return n_flows
