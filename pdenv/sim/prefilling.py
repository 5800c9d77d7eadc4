"""Prefill instances: queues, token-budget steps, staging memory and stalls (docs/model.md, section 4)."""

from __future__ import annotations

import numpy as np

from pdenv.sim import lists
from pdenv.sim.accounts import settle_prefill_queue, settle_staging, settle_starved
from pdenv.sim.accrual import first_token_comes, prefill_end_accrues
from pdenv.sim.events import prefill_slot, schedule
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load, drop_load, drop_prefill_load, end_request
from pdenv.sim.prefix import cached_prefix, insert_prompt
from pdenv.sim.receive import ask_memory, ask_pairing, drop_memory_request, serve_receive_queue
from pdenv.sim.records import COMPLETED
from pdenv.sim.state import (
    LINK_DECODE,
    LINK_PREFILL,
    PREFILLED,
    QUEUED,
    RECEIVING,
    STARTED,
    UNPAIRED,
    header,
    load,
    prefill,
    queue,
    record,
    request,
)
from pdenv.sim.steps import prefill_seconds
from pdenv.sim.transfer import free_staging, kick_prefill, start_flow_if_due, step_changed

RESERVE_AT_DISPATCH, RESERVE_AT_START, RESERVE_AT_END = range(3)


@kernel
def enqueue_prefill(S, p, r, t):
    """The request has reached its prefill instance."""
    it = request(S, r)
    box = prefill(S, p)
    it.prefill_state = QUEUED
    settle_prefill_queue(S, p, t)
    other = -1
    if box.sjf:
        other = queue(S, lists.prefill_queue(S, p)).head
        for _ in range(box.started):
            other = request(S, other).link_next[LINK_PREFILL]
        while other >= 0 and request(S, other).prompt <= it.prompt:
            other = request(S, other).link_next[LINK_PREFILL]
    lists.insert_before(S, lists.prefill_queue(S, p), LINK_PREFILL, r, other)
    kick_prefill(S, p)


@kernel
def start_prompt(S, p, r, t):
    """Take staging memory for the whole prompt and look its prefix up."""
    it = request(S, r)
    box = prefill(S, p)
    settle_prefill_queue(S, p, t)
    settle_staging(S, p, t)
    held = it.prompt * box.kv_bytes_per_token
    box.staging_used += held
    box.started += 1
    load(S, p).kv_bytes += held
    settle_starved(S, t)
    header(S).in_flight += 1
    it.prefill_state = STARTED
    it.cached = cached_prefix(S, p, r, True)
    drop_load(S, p, 0, it.cached, 0, 0.0)
    row = record(S, it.id)
    row.prefill_start_s = t
    row.cached_tokens = it.cached


@kernel
def compose_prefill(S, p, t):
    """Choose the requests of the next step; returns its new tokens and Σ((done + x)² − done²)."""
    box = prefill(S, p)
    left = box.max_batch_tokens
    tokens = 0
    squares = 0.0
    box.step_requests = 0
    r = queue(S, lists.prefill_queue(S, p)).head
    while r >= 0 and left > 0 and box.step_requests < box.max_batch_requests:
        it = request(S, r)
        starts = it.prefill_state != STARTED
        if starts and box.staging_used + it.prompt * box.kv_bytes_per_token > box.staging_bytes:
            break
        if not box.chunked:
            cached = cached_prefix(S, p, r, False) if starts else it.cached
            if it.prompt - cached - it.done > left and tokens > 0:
                break
        if starts:
            start_prompt(S, p, r, t)
        x = it.prompt - it.cached - it.done
        if box.chunked:
            x = min(x, left)
        before = float(it.cached + it.done)
        squares += (before + x) * (before + x) - before * before
        it.step = x
        tokens += x
        left -= x
        box.step_requests += 1
        r = it.link_next[LINK_PREFILL]
    return tokens, squares


@kernel
def set_stalled(S, p, stalled, t):
    box = prefill(S, p)
    if box.stalled and not stalled:
        box.stalled_s += t - box.stalled_since
    if stalled and not box.stalled:
        box.stalled_since = t
    box.stalled = stalled


@kernel
def start_step(S, p, t):
    """Start a step on an idle instance if there is anything to compute and room for it."""
    box = prefill(S, p)
    if box.busy:
        return
    tokens, squares = compose_prefill(S, p, t)
    if tokens == 0:
        set_stalled(S, p, queue(S, lists.prefill_queue(S, p)).head >= 0, t)
        return
    set_stalled(S, p, False, t)
    box.busy = 1
    box.step_start = t
    box.step_end = t + prefill_seconds(S, box.profile, tokens, squares)
    schedule(S, prefill_slot(S, p), box.step_end)
    r = queue(S, lists.prefill_queue(S, p)).head
    for _ in range(box.step_requests):
        it = request(S, r)
        if it.done == 0:
            if header(S).reserve == RESERVE_AT_START:
                ask_memory(S, r, t)
            if it.decode_state == RECEIVING:
                serve_receive_queue(S, it.d, t)
            start_flow_if_due(S, r, t)
        step_changed(S, r, t)
        r = it.link_next[LINK_PREFILL]


@kernel
def finish_prefill(S, p, r, t):
    """The last chunk is computed: first token, and on to the transfer."""
    h = header(S)
    it = request(S, r)
    row = record(S, it.id)
    it.prefill_state = PREFILLED
    row.prefill_end_s = t
    prefill_end_accrues(S, r, t)
    insert_prompt(S, p, r)
    if not h.decode_first:
        it.emitted = 1
        it.last_token_t = t
        row.first_token_s = t
        first_token_comes(S, r, t)
        if it.output == 1:
            cancel_rest(S, r, t)
            return
    if it.decode_state == UNPAIRED:
        ask_pairing(S, r)
        return
    ask_memory(S, r, t)
    step_changed(S, r, t)
    start_flow_if_due(S, r, t)


@kernel
def cancel_rest(S, r, t):
    """A request of one token ends with its prefill: no transfer, no decode."""
    it = request(S, r)
    if it.pairing:
        lists.remove(S, lists.PAIRING_QUEUE, LINK_DECODE, r)
    drop_memory_request(S, r, t)
    drop_decode_load(S, r)
    free_staging(S, r, t)
    end_request(S, r, t, COMPLETED)


@kernel
def end_step(S, p):
    """The step's time is up: count its tokens and let finished prompts go."""
    box = prefill(S, p)
    t = box.step_end
    box.busy = 0
    box.busy_s += t - box.step_start
    header(S).visible = 1
    r = queue(S, lists.prefill_queue(S, p)).head
    for _ in range(box.step_requests):
        it = request(S, r)
        after = it.link_next[LINK_PREFILL]
        uncached = it.prompt - it.cached
        part = it.work_s * (it.step / (uncached - it.done))
        it.work_s -= part
        drop_load(S, p, 0, it.step, 0, part)
        it.done += it.step
        it.step = 0
        if it.done == uncached:
            settle_prefill_queue(S, p, t)
            lists.remove(S, lists.prefill_queue(S, p), LINK_PREFILL, r)
            box.started -= 1
            drop_prefill_load(S, r)
            finish_prefill(S, p, r, t)
        else:
            step_changed(S, r, t)
        r = after
    box.step_requests = 0
    schedule(S, prefill_slot(S, p), np.inf)
    kick_prefill(S, p)
