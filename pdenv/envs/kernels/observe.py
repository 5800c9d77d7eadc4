"""Observations, filled in the order of `pdenv.envs.kernels.features`."""

from __future__ import annotations

import math

from pdenv.envs.kernels.face import (
    STAGE_SCALE,
    begin_decision,
    shown_colocated,
    shown_decode,
    shown_prefill,
)
from pdenv.envs.kernels.features import N_CLUSTER, N_COLOCATED, N_DECODE, N_PAIR, N_PREFILL, N_REQUEST
from pdenv.envs.kernels.masks import fill_mask, legal_colocated_row, legal_prefill_row, some_precision
from pdenv.sim import lists
from pdenv.sim.accrual import take_accrual
from pdenv.sim.gateway import may_hold, precision_allowed
from pdenv.sim.layout import kernel
from pdenv.sim.prefix import cached_prefix
from pdenv.sim.rules.common import flows_seen, iteration_estimate_s, seen_batch, seen_prefill
from pdenv.sim.rules.pairing import memory_wait_s
from pdenv.sim.state import (
    ACTIVE,
    DRAINING,
    N_PRECISIONS,
    N_TERMS,
    PAIR,
    RETURN_DECISION,
    ROUTE,
    SCALE,
    W_REJECTION,
    WARMING,
    batch,
    cache,
    header,
    path,
    port,
    prefill,
    queue,
    request,
)
from pdenv.sim.steps import prefill_seconds


@kernel
def alone_s(S, k, r):
    """Time that the request's prompt takes in a step of its own on profile k, s."""
    n = request(S, r).prompt
    return prefill_seconds(S, k, n, float(n) * n)


@kernel
def cached_share(S, i, r):
    if cache(S, i).capacity == 0:
        return 0.0
    return cached_prefix(S, i, r, False) / request(S, r).prompt


@kernel
def observe_request(S, face, r, out):
    h = header(S)
    out[0] = h.pending == ROUTE
    out[1] = h.pending == PAIR
    out[2] = h.pending == SCALE
    if r < 0:
        return
    if face.mode == 2 and face.stage < STAGE_SCALE:
        out[3 + face.stage] = 1.0
    it = request(S, r)
    out[8] = it.prompt
    out[9] = it.predicted
    out[10] = h.now - it.arrival_t
    out[11] = 0.0 if math.isnan(it.hold_since_t) else h.now - it.hold_since_t
    out[12] = h.ttft_limit_s - (h.now - it.arrival_t)
    out[13] = it.attempts
    out[14] = it.priority
    for q in range(N_PRECISIONS):
        out[15 + q] = it.wire == q if h.pending == PAIR else precision_allowed(S, r, q)
    if h.pending == ROUTE:
        out[15 + N_PRECISIONS] = may_hold(S, r)
        out[16 + N_PRECISIONS] = h.allow_reject


@kernel
def observe_state(state, out):
    out[0] = 1.0
    out[1] = state == ACTIVE
    out[2] = state == WARMING
    out[3] = state == DRAINING


@kernel
def observe_prefill(S, face, order, r, i, out):
    p = shown_prefill(face, order, i)
    if p < 0:
        return
    it = prefill(S, p)
    known = seen_prefill(S, p)
    observe_state(it.state, out)
    out[6] = known.requests
    out[7] = known.tokens
    out[8] = known.work_s
    out[9] = known.kv_bytes / it.staging_bytes
    if r < 0:
        return
    out[4] = header(S).pending == ROUTE and legal_prefill_row(S, face, order, r, i)
    out[5] = p == face.prefill or (header(S).pending == PAIR and p == request(S, r).p)
    out[10] = alone_s(S, it.profile, r)
    out[11] = cached_share(S, p, r)


@kernel
def observe_decode(S, face, order, r, i, out):
    d = shown_decode(face, order, i)
    if d < 0:
        return
    h = header(S)
    it = batch(S, d)
    known = seen_batch(S, d)
    observe_state(it.state, out)
    out[6] = known.requests
    out[7] = known.tokens
    out[8] = known.kv_bytes / it.capacity
    out[9] = known.receiving
    out[10] = known.requests / it.max_batch
    out[13] = h.kv_bytes_per_token[it.store] / h.kv_bytes_per_token[0]
    if r < 0:
        return
    out[4] = some_precision(S, face, order, r, i)
    out[5] = d == face.decode
    out[11] = iteration_estimate_s(S, d, r)
    out[12] = memory_wait_s(S, r, d, out[11])


@kernel
def note_port_shares(S):
    """Leave in `left`, which belongs to the flow solver only while it runs, the time of a byte of one more flow, s."""
    for k in range(header(S).n_ports):
        port(S, k).left = (flows_seen(S, k) + 1) / port(S, k).capacity


@kernel
def observe_pair(S, p, d, r, out):
    h = header(S)
    way = path(S, p * h.n_decode + d)
    out[N_PRECISIONS] = way.tier
    if r < 0:
        return
    slowest = 0.0
    for hop in range(way.hops):
        slowest = max(slowest, port(S, way.port[hop]).left)
    for q in range(N_PRECISIONS):
        size = float(request(S, r).prompt * h.kv_bytes_per_token[q])
        out[q] = way.latency_s + size * (way.cost[q] + slowest)


@kernel
def observe_colocated(S, face, order, r, i, out):
    c = shown_colocated(face, order, i)
    if c < 0:
        return
    h = header(S)
    b = h.n_decode + c
    it = batch(S, b)
    known = seen_batch(S, b)
    out[0] = 1.0
    out[3] = known.requests
    out[4] = known.tokens
    out[5] = known.kv_bytes / it.capacity
    out[6] = known.receiving
    out[7] = known.work_s
    out[11] = h.kv_bytes_per_token[it.store] / h.kv_bytes_per_token[0]
    if r < 0:
        return
    out[1] = h.pending == ROUTE and legal_colocated_row(S, face, order, r, i)
    out[8] = iteration_estimate_s(S, b, r)
    out[9] = alone_s(S, it.profile, r)
    out[10] = cached_share(S, h.n_prefill + c, r)


@kernel
def observe_cluster(S, out):
    h = header(S)
    out[0] = queue(S, lists.GATEWAY_QUEUE).count
    out[1] = h.tick_prefill_busy
    out[2] = h.tick_prefill_demanded
    out[3] = h.tick_decode_memory
    out[4] = h.gpus_on / h.gpu_budget
    out[5] = h.scale_quiet
    out[6] = (h.layers - 1) / h.layers if h.layerwise else 0.0
    out[7] = h.bind_at_prefill_end
    out[8] = h.ttft_limit_s
    out[9] = h.tpot_limit_s
    for k in range(W_REJECTION):
        out[10 + k] = h.cost_weight[k]


@kernel
def fill_observation(S, face, order, low, high, out):
    """Fill `out` (size,), saturating at `low` and `high`."""
    for k in range(out.shape[0]):
        out[k] = 0.0
    h = header(S)
    r = h.pending_request if h.pending == ROUTE or h.pending == PAIR else -1
    note_port_shares(S)
    observe_cluster(S, out[0:N_CLUSTER])
    at = N_CLUSTER
    for i in range(face.rows_colocated):
        observe_colocated(S, face, order, r, i, out[at : at + N_COLOCATED])
        at += N_COLOCATED
    for i in range(face.rows_decode):
        observe_decode(S, face, order, r, i, out[at : at + N_DECODE])
        at += N_DECODE
    for i in range(face.rows_prefill):
        p = shown_prefill(face, order, i)
        for j in range(face.rows_decode):
            d = shown_decode(face, order, j)
            if p >= 0 and d >= 0:
                observe_pair(S, p, d, r, out[at : at + N_PAIR])
            at += N_PAIR
    for i in range(face.rows_prefill):
        observe_prefill(S, face, order, r, i, out[at : at + N_PREFILL])
        at += N_PREFILL
    observe_request(S, face, r, out[at : at + N_REQUEST])
    for k in range(out.shape[0]):
        out[k] = min(max(out[k], low[k]), high[k])


@kernel
def take_step(S, face, terms):
    """What the step that ends now took and cost."""
    face.dt = header(S).now - face.since
    face.since = header(S).now
    take_accrual(S, terms)
    face.cost = 0.0
    for k in range(N_TERMS):
        face.cost += terms[k]
    face.total_cost += face.cost


@kernel
def observe_each(blocks, faces, orders, low, high, which, why, first, observations, masks, terms):
    """Observe those environments in `which` that stand at a decision; returns how many do not.

    Args:
        blocks: `(E,)` addresses.
        faces: `(E,)` FACE.
        orders: `(E, P + D + H)` instances by row, −1 for none.
        low, high: `(size,)` bounds.
        which: `(n,)` environments.
        why: `(E,)` why the engine stopped; other reasons than a decision are passed over.
        first: the episode has just begun: cost goes on accruing for the first step.
        observations: `(E, size)` float32, filled.
        masks: `(E, A)` bool, filled.
        terms: `(E, N_TERMS)` cost units accrued since the last decision, filled.
    """
    passed = 0
    for n in range(which.shape[0]):
        i = which[n]
        if why[i] != RETURN_DECISION:
            passed += 1
            continue
        S = blocks[i]
        face = faces[i]
        begin_decision(S, face)
        if not first:
            take_step(S, face, terms[i])
        face.now = header(S).now
        face.pending = header(S).pending
        fill_observation(S, face, orders[i], low, high, observations[i])
        fill_mask(S, face, orders[i], masks[i])
    return passed


@kernel
def take_accruals(blocks, which, out):
    """Fill the rows `which` of `out` `(E, N_TERMS)` with what has accrued since the last time."""
    for n in range(which.shape[0]):
        take_accrual(blocks[which[n]], out[which[n]])
