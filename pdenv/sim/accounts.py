"""Integrals over time. Each `settle_*` brings one up to `t` and is called before what it integrates changes."""

from __future__ import annotations

from pdenv.sim import lists
from pdenv.sim.layout import kernel
from pdenv.sim.state import ACTIVE, DRAINING, OFF, batch, header, prefill, queue


@kernel
def settle_prefill_queue(S, p, t):
    it = prefill(S, p)
    it.queue_s += (queue(S, lists.prefill_queue(S, p)).count - it.started) * (t - it.queue_since)
    it.queue_since = t


@kernel
def settle_staging(S, p, t):
    it = prefill(S, p)
    it.memory_byte_s += it.staging_used * (t - it.staging_since)
    it.staging_since = t


@kernel
def batch_queue_length(S, b):
    it = batch(S, b)
    if it.colocated:
        return queue(S, lists.waiting_queue(S, b - header(S).n_decode)).count - it.started
    return queue(S, lists.receive_queue(S, b)).count


@kernel
def settle_batch_queue(S, b, t):
    it = batch(S, b)
    it.queue_s += batch_queue_length(S, b) * (t - it.queue_since)
    it.queue_since = t


@kernel
def settle_reserved(S, b, t):
    it = batch(S, b)
    it.memory_byte_s += it.reserved * (t - it.reserved_since)
    it.reserved_since = t


@kernel
def settle_prefill_state(S, p, t):
    it = prefill(S, p)
    span = t - it.state_since
    if it.state != OFF:
        it.billed_s += span
    if it.state == ACTIVE or it.state == DRAINING:
        it.active_s += span
    it.state_since = t


@kernel
def settle_batch_state(S, b, t):
    it = batch(S, b)
    span = t - it.state_since
    if it.state != OFF:
        it.billed_s += span
    if it.state == ACTIVE or it.state == DRAINING:
        it.active_s += span
    it.state_since = t


@kernel
def settle_starved(S, t):
    h = header(S)
    if h.in_flight > 0:
        h.starved_s += h.idle_decodes * (t - h.starved_since)
    h.starved_since = t
