"""Doubly linked lists of requests. `q` is a QUEUE row, `link` says which pointers of the request it uses."""

from __future__ import annotations

from pdenv.sim.layout import kernel
from pdenv.sim.state import header, queue, request

GATEWAY_QUEUE = 0
DELIVERY_QUEUE = 1
PAIRING_QUEUE = 2
FIRST_QUEUE = 3


@kernel
def prefill_queue(S, p):
    return FIRST_QUEUE + p


@kernel
def receive_queue(S, d):
    return FIRST_QUEUE + header(S).n_prefill + d


@kernel
def granted_list(S, d):
    return FIRST_QUEUE + header(S).n_prefill + header(S).n_decode + d


@kernel
def ready_list(S, d):
    return FIRST_QUEUE + header(S).n_prefill + 2 * header(S).n_decode + d


@kernel
def preempted_list(S, d):
    return FIRST_QUEUE + header(S).n_prefill + 3 * header(S).n_decode + d


@kernel
def inbound_list(S, d):
    return FIRST_QUEUE + header(S).n_prefill + 4 * header(S).n_decode + d


@kernel
def waiting_queue(S, h):
    return FIRST_QUEUE + header(S).n_prefill + 5 * header(S).n_decode + h


@kernel
def fresh_list(S, b):
    return FIRST_QUEUE + header(S).n_prefill + 5 * header(S).n_decode + header(S).n_colocated + b


def count_queues(n_prefill: int, n_decode: int, n_colocated: int) -> int:
    return FIRST_QUEUE + n_prefill + 6 * n_decode + 2 * n_colocated


@kernel
def append(S, q, link, r):
    box = queue(S, q)
    item = request(S, r)
    item.link_next[link] = -1
    item.link_prev[link] = box.tail
    if box.tail < 0:
        box.head = r
    else:
        request(S, box.tail).link_next[link] = r
    box.tail = r
    box.count += 1


@kernel
def prepend(S, q, link, r):
    box = queue(S, q)
    item = request(S, r)
    item.link_prev[link] = -1
    item.link_next[link] = box.head
    if box.head < 0:
        box.tail = r
    else:
        request(S, box.head).link_prev[link] = r
    box.head = r
    box.count += 1


@kernel
def insert_before(S, q, link, r, other):
    """Put `r` before `other`, or last if `other` is −1."""
    if other < 0:
        append(S, q, link, r)
        return
    before = request(S, other).link_prev[link]
    if before < 0:
        prepend(S, q, link, r)
        return
    item = request(S, r)
    item.link_prev[link] = before
    item.link_next[link] = other
    request(S, before).link_next[link] = r
    request(S, other).link_prev[link] = r
    queue(S, q).count += 1


@kernel
def remove(S, q, link, r):
    box = queue(S, q)
    item = request(S, r)
    before = item.link_prev[link]
    after = item.link_next[link]
    if before < 0:
        box.head = after
    else:
        request(S, before).link_next[link] = after
    if after < 0:
        box.tail = before
    else:
        request(S, after).link_prev[link] = before
    item.link_prev[link] = -1
    item.link_next[link] = -1
    box.count -= 1
