"""Co-located instances: chunked prefill and decode share iterations (docs/model.md, section 7)."""

from __future__ import annotations

import math

from pdenv.sim import lists
from pdenv.sim.accounts import settle_batch_queue, settle_reserved
from pdenv.sim.accrual import decode_start_accrues, first_token_comes, prefill_end_accrues
from pdenv.sim.batch import (
    extract_active,
    go_idle,
    join_batch,
    pick_victim,
    release_reservation,
    set_doing,
    start_iterations,
    wake_batch,
)
from pdenv.sim.decode import count_preemption, fail_oom, held_tokens
from pdenv.sim.events import batch_slot, schedule
from pdenv.sim.layout import kernel
from pdenv.sim.pool import drop_decode_load, drop_load, end_request
from pdenv.sim.prefix import cached_prefix, insert_prompt
from pdenv.sim.receive import count_revocation
from pdenv.sim.records import COMPLETED
from pdenv.sim.state import (
    BOUNDARY,
    IDLE,
    LINK_PREFILL,
    MIXED,
    QUEUED,
    STARTED,
    UNPAIRED,
    batch,
    header,
    load,
    profile,
    queue,
    record,
    request,
)
from pdenv.sim.steps import iteration_seconds, prefill_seconds


@kernel
def waiting_of(S, b):
    return lists.waiting_queue(S, b - header(S).n_decode)


@kernel
def cache_of(S, b):
    return header(S).n_prefill + (b - header(S).n_decode)


@kernel
def enqueue_colocated(S, b, r, t):
    """The request has reached the instance."""
    it = request(S, r)
    it.prefill_state = QUEUED
    settle_batch_queue(S, b, t)
    lists.append(S, waiting_of(S, b), LINK_PREFILL, r)
    load(S, header(S).n_prefill + b).receiving += 1
    header(S).visible = 1
    wake_batch(S, b, t)


@kernel
def requeue(S, b, r, t):
    """A preempted or revoked sequence goes to the head of the prompts not started, to be prefilled (again)."""
    it = request(S, r)
    it.prefill_state = QUEUED
    it.decode_state = UNPAIRED
    it.tokens = held_tokens(S, r)
    it.cached = 0
    it.done = 0
    it.step = 0
    q = waiting_of(S, b)
    other = queue(S, q).head
    for _ in range(batch(S, b).started):
        other = request(S, other).link_next[LINK_PREFILL]
    settle_batch_queue(S, b, t)
    lists.insert_before(S, q, LINK_PREFILL, r, other)
    load(S, header(S).n_prefill + b).receiving += 1


@kernel
def last_started(S, b):
    r = queue(S, waiting_of(S, b)).head
    for _ in range(batch(S, b).started - 1):
        r = request(S, r).link_next[LINK_PREFILL]
    return r


@kernel
def revoke_prompt(S, b, t):
    """The newest prompt being prefilled loses its memory and its progress."""
    r = last_started(S, b)
    release_reservation(S, r, t)
    settle_batch_queue(S, b, t)
    lists.remove(S, waiting_of(S, b), LINK_PREFILL, r)
    batch(S, b).started -= 1
    count_revocation(S, r)
    requeue(S, b, r, t)


@kernel
def make_room_colocated(S, b):
    """Preempt, revoke or fail until the next iteration fits."""
    it = batch(S, b)
    t = it.anchor_t
    while it.active > 0 and it.reserved + it.kv > it.capacity:
        if it.active >= 2:
            r = extract_active(S, b, pick_victim(S, b))
            count_preemption(S, r)
            requeue(S, b, r, t)
        elif it.started > 0:
            revoke_prompt(S, b, t)
        else:
            fail_oom(S, extract_active(S, b, 0), t)


@kernel
def start_prompt(S, b, r):
    """Take memory for the prompt and look its prefix up; whether it fits."""
    it = request(S, r)
    box = batch(S, b)
    each = header(S).kv_bytes_per_token[it.store]
    if box.active + box.started >= box.max_batch:
        return False
    if box.reserved + box.kv + next_bytes_after_prefill(S, r) > box.capacity:
        return False
    settle_batch_queue(S, b, box.anchor_t)
    settle_reserved(S, b, box.anchor_t)
    it.grant_bytes = it.tokens * each
    box.reserved += it.grant_bytes
    box.started += 1
    load(S, header(S).n_prefill + b).receiving -= 1
    it.prefill_state = STARTED
    it.done = 0
    row = record(S, it.id)
    it.cached = cached_prefix(S, cache_of(S, b), r, True)
    if math.isnan(row.prefill_start_s):
        row.prefill_start_s = box.anchor_t
        row.cached_tokens = it.cached
    return True


@kernel
def next_bytes_after_prefill(S, r):
    """The prompt (or what is restored) plus one token."""
    it = request(S, r)
    return (it.tokens + 1) * header(S).kv_bytes_per_token[it.store]


@kernel
def compose_chunk(S, b):
    """Choose the prompts of the next iteration; returns its new tokens and Σ((done + x)² − done²)."""
    box = batch(S, b)
    left = box.max_batch_tokens - box.active
    tokens = 0
    squares = 0.0
    box.step_requests = 0
    r = queue(S, waiting_of(S, b)).head
    while r >= 0 and left > 0:
        it = request(S, r)
        after = it.link_next[LINK_PREFILL]
        if it.prefill_state != STARTED and not start_prompt(S, b, r):
            if box.active > 0 or box.started > 0:
                break
            drop_waiting(S, b, r)
            fail_oom(S, r, box.anchor_t)
            r = after
            continue
        x = min(it.tokens - it.cached - it.done, left)
        before = float(it.cached + it.done)
        squares += (before + x) * (before + x) - before * before
        it.step = x
        tokens += x
        left -= x
        box.step_requests += 1
        r = after
    return tokens, squares


@kernel
def drop_waiting(S, b, r):
    settle_batch_queue(S, b, batch(S, b).anchor_t)
    lists.remove(S, waiting_of(S, b), LINK_PREFILL, r)
    load(S, header(S).n_prefill + b).receiving -= 1
    finish_work(S, b, r)


@kernel
def finish_work(S, b, r):
    """The prompt's predicted prefill seconds are no longer outstanding."""
    it = request(S, r)
    drop_load(S, header(S).n_prefill + b, 0, 0, 0, it.work_s)
    it.work_s = 0.0


@kernel
def start_mixed(S, b, tokens, squares):
    it = batch(S, b)
    chunk = prefill_seconds(S, it.profile, tokens, squares)
    decode = iteration_seconds(S, b) if it.active > 0 else 0.0
    it.first_s = decode + chunk - profile(S, it.profile).piggyback * min(decode, chunk)
    it.slope_s = 0.0
    it.event_at = 1
    set_doing(S, b, MIXED, it.anchor_t)
    schedule(S, batch_slot(S, b), it.anchor_t + it.first_s)


@kernel
def finish_prompt(S, b, r):
    """The whole prompt is computed at the anchor: first token, and a place in the next iteration."""
    it = request(S, r)
    box = batch(S, b)
    t = box.anchor_t
    row = record(S, it.id)
    settle_batch_queue(S, b, t)
    lists.remove(S, waiting_of(S, b), LINK_PREFILL, r)
    box.started -= 1
    finish_work(S, b, r)
    insert_prompt(S, cache_of(S, b), r)
    if it.emitted == 0:
        row.prefill_end_s = t
        row.first_token_s = t
        row.decode_start_s = t
        it.emitted = 1
        it.last_token_t = t
        prefill_end_accrues(S, r, t)
        decode_start_accrues(S, r, t)
        first_token_comes(S, r, t)
        if it.output == 1:
            release_reservation(S, r, t)
            drop_decode_load(S, r)
            end_request(S, r, t, COMPLETED)
            header(S).visible = 1
            return
    join_batch(S, b, r, t)


@kernel
def end_chunk(S, b):
    """Account the prompts of the iteration that has just ended (the anchor is its end)."""
    box = batch(S, b)
    r = queue(S, waiting_of(S, b)).head
    for _ in range(box.step_requests):
        it = request(S, r)
        after = it.link_next[LINK_PREFILL]
        it.done += it.step
        it.step = 0
        if it.done == it.tokens - it.cached:
            finish_prompt(S, b, r)
        r = after
    box.step_requests = 0


@kernel
def compose_colocated(S, b, now):
    """Compose the next iteration of a co-located instance that is at a boundary, or idle."""
    it = batch(S, b)
    if it.doing == IDLE:
        it.anchor_t = now
    elif it.doing != BOUNDARY:
        return
    make_room_colocated(S, b)
    tokens, squares = compose_chunk(S, b)
    if tokens > 0:
        header(S).visible = 1
        start_mixed(S, b, tokens, squares)
    elif it.active > 0:
        start_iterations(S, b)
    else:
        go_idle(S, b, it.anchor_t)
