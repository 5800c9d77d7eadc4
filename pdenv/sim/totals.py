"""What a run has accumulated up to a time, read without touching its state."""

from __future__ import annotations

from pdenv.sim import lists
from pdenv.sim.accounts import batch_queue_length
from pdenv.sim.batch import boundary_t, iterations_done
from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    ACTIVE,
    BOUNDARY,
    DRAINING,
    FLOWING,
    IDLE,
    ITERATING,
    MAX_HOPS,
    OFF,
    batch,
    header,
    path,
    port,
    prefill,
    queue,
    request,
)


@kernel
def prefill_totals(S, p, t, out):
    """Fill out[0:6] in the order of INSTANCE_TOTALS."""
    it = prefill(S, p)
    on = it.state == ACTIVE or it.state == DRAINING
    out[0] = it.busy_s + (max(t - it.step_start, 0.0) if it.busy else 0.0)
    out[1] = it.stalled_s + (max(t - it.stalled_since, 0.0) if it.stalled else 0.0)
    out[2] = it.active_s + (t - it.state_since if on else 0.0)
    out[3] = it.billed_s + (t - it.state_since if it.state != OFF else 0.0)
    waiting = queue(S, lists.prefill_queue(S, p)).count - it.started
    out[4] = it.queue_s + waiting * (t - it.queue_since)
    out[5] = it.memory_byte_s + it.staging_used * (t - it.staging_since)


@kernel
def kv_since_anchor(S, b, t):
    """Integral of the active sequences' KV bytes from the anchor to `t`, byte·s."""
    it = batch(S, b)
    if it.doing != ITERATING:
        return it.kv * max(t - it.anchor_t, 0.0)
    j = iterations_done(S, b, t)
    whole = j * it.kv * it.first_s + (it.kv * it.slope_s + it.growth * it.first_s) * (j * (j - 1) / 2)
    whole += it.growth * it.slope_s * ((j - 1) * j * (2 * j - 1) / 6)
    return whole + (it.kv + it.growth * j) * (t - boundary_t(S, b, j))


@kernel
def batch_totals(S, b, t, out):
    it = batch(S, b)
    on = it.state == ACTIVE or it.state == DRAINING
    working = it.doing != IDLE and it.doing != BOUNDARY
    out[0] = it.busy_s + (max(t - it.anchor_t, 0.0) if working else 0.0)
    out[1] = 0.0
    out[2] = it.active_s + (t - it.state_since if on else 0.0)
    out[3] = it.billed_s + (t - it.state_since if it.state != OFF else 0.0)
    out[4] = it.queue_s + batch_queue_length(S, b) * (t - it.queue_since)
    out[5] = it.memory_byte_s + it.reserved * (t - it.reserved_since)
    if working:
        out[5] += kv_since_anchor(S, b, t)


@kernel
def instance_totals(S, t, out):
    """Totals of prefill instances, then batches, at `t`; out is (P + B, 6)."""
    h = header(S)
    for p in range(h.n_prefill):
        prefill_totals(S, p, t, out[p])
    for b in range(h.n_decode + h.n_colocated):
        batch_totals(S, b, t, out[h.n_prefill + b])


@kernel
def port_totals(S, t, out):
    """Bytes carried by each port until `t`; out is (ports,)."""
    h = header(S)
    for k in range(h.n_ports):
        out[k] = port(S, k).carried
    for r in range(h.pool):
        it = request(S, r)
        if it.id >= 0 and it.flow_state == FLOWING:
            way = path(S, it.p * h.n_decode + it.d)
            for hop in range(min(way.hops, MAX_HOPS)):
                out[way.port[hop]] += it.sent + it.rate * (t - it.sent_t)


@kernel
def starved_total(S, t):
    h = header(S)
    return h.starved_s + (h.idle_decodes * (t - h.starved_since) if h.in_flight > 0 else 0.0)


@kernel
def largest_port_excess(S):
    """Largest ratio of a port's summed rates to its capacity."""
    h = header(S)
    for k in range(h.n_ports):
        port(S, k).left = 0.0
    for r in range(h.pool):
        it = request(S, r)
        if it.id >= 0 and it.flow_state == FLOWING:
            way = path(S, it.p * h.n_decode + it.d)
            for hop in range(way.hops):
                port(S, way.port[hop]).left += it.rate
    worst = 0.0
    for k in range(h.n_ports):
        worst = max(worst, port(S, k).left / port(S, k).capacity)
    return worst
