"""Slots of requests that have arrived and not ended, their place in the instances' loads, and their end."""

from __future__ import annotations

import numpy as np

from pdenv.sim.accrual import arrival_accrues, end_accrues
from pdenv.sim.layout import kernel
from pdenv.sim.records import COMPLETED
from pdenv.sim.state import (
    AT_GATEWAY,
    NO_FLOW,
    UNPAIRED,
    arrival,
    header,
    ledger,
    load,
    record,
    request,
    seen,
)


@kernel
def take_slot(S, row):
    """Put arrival `row` into a free slot (there must be one)."""
    h = header(S)
    r = h.free
    it = request(S, r)
    h.free = it.link_next[0]
    source = arrival(S, row)
    it.id = row
    it.prompt = source.prompt_tokens
    it.output = source.output_tokens
    it.predicted = source.predicted_tokens
    it.tokens = source.prompt_tokens
    it.cached = 0
    it.done = 0
    it.step = 0
    it.emitted = 0
    it.join_order = 0
    it.grant_bytes = 0
    it.sent = 0.0
    it.rate = 0.0
    it.arrival_t = source.arrival_s
    it.last_token_t = np.nan
    it.hold_since_t = np.nan
    it.work_s = 0.0
    it.p = -1
    it.d = -1
    it.b = -1
    it.tier = source.tier
    it.priority = source.priority
    it.wire = 0
    it.store = 0
    it.mode = 0
    it.prefill_state = AT_GATEWAY
    it.decode_state = UNPAIRED
    it.flow_state = NO_FLOW
    it.backlog = 0
    it.attempts = 0
    it.fresh = 0
    it.swapped = 0
    it.pairing = 0
    arrival_accrues(S, r)
    return r


@kernel
def end_request(S, r, t, status):
    """Write what is known at the end and give the slot back. The request is in no list any more."""
    h = header(S)
    it = request(S, r)
    row = record(S, it.id)
    row.status = status
    row.finish_s = t
    row.emitted = it.output if status == COMPLETED else it.emitted
    end_accrues(S, r, t, status)
    h.ended += 1
    if h.measured_from <= it.id < h.measured_to:
        h.measured_left -= 1
    it.id = -1
    it.link_next[0] = h.free
    h.free = r


@kernel
def add_load(S, i, requests, tokens, kv_bytes, work_s):
    """A dispatch to instance `i` (prefill, then batches): counted in its load and in the gateway's ledger."""
    it = load(S, i)
    it.requests += requests
    it.tokens += tokens
    it.kv_bytes += kv_bytes
    it.work_s += work_s
    if header(S).scrape_interval_s > 0.0:
        sent = ledger(S, i)
        sent.requests += requests
        sent.tokens += tokens
        sent.kv_bytes += kv_bytes
        sent.work_s += work_s
        view = seen(S, i)
        view.requests += requests
        view.tokens += tokens
        view.kv_bytes += kv_bytes
        view.work_s += work_s


@kernel
def drop_load(S, i, requests, tokens, kv_bytes, work_s):
    """Work that is done or has left instance `i`; the gateway learns of it at the next scrape."""
    it = load(S, i)
    it.requests -= requests
    it.tokens -= tokens
    it.kv_bytes -= kv_bytes
    it.work_s -= work_s
    if it.requests == 0:
        it.work_s = 0.0


@kernel
def drop_prefill_load(S, r):
    """The request's prefill is over (or it left its prefill instance)."""
    it = request(S, r)
    drop_load(S, it.p, 1, it.prompt - it.cached - it.done, 0, it.work_s)
    it.work_s = 0.0


@kernel
def drop_decode_load(S, r):
    """The request has left the batch that it was dispatched to."""
    it = request(S, r)
    if it.b >= 0:
        i = header(S).n_prefill + it.b
        drop_load(S, i, 1, it.prompt + it.predicted, it.prompt * header(S).kv_bytes_per_token[it.store], 0.0)
