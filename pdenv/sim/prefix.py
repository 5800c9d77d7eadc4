"""Per-instance prefix caches: LRU over block hashes, an open-addressing table over a node list."""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.state import arrival, cache, cache_cell, cache_node, header, prefix_block, request


@kernel
def home_cell(c, key):
    """Fibonacci hashing of a block hash onto the table."""
    return (np.uint64(key) * np.uint64(11400714819323198485) >> np.uint64(20)) & np.uint64(c.mask)


@kernel
def find_node(S, c, key):
    """Node of block `key`, or −1."""
    cell = np.int64(home_cell(c, key))
    while True:
        node = cache_cell(S, c.first_cell + cell).node
        if node < 0 or cache_node(S, c.first_node + node).hash == key:
            return node
        cell = (cell + 1) & c.mask


@kernel
def put_cell(S, c, node):
    cell = np.int64(home_cell(c, cache_node(S, c.first_node + node).hash))
    while cache_cell(S, c.first_cell + cell).node >= 0:
        cell = (cell + 1) & c.mask
    cache_cell(S, c.first_cell + cell).node = node


@kernel
def drop_cell(S, c, node):
    """Remove a node from the table and move later ones of its run up (no tombstones)."""
    cell = np.int64(home_cell(c, cache_node(S, c.first_node + node).hash))
    while cache_cell(S, c.first_cell + cell).node != node:
        cell = (cell + 1) & c.mask
    hole = cell
    cell = (cell + 1) & c.mask
    while cache_cell(S, c.first_cell + cell).node >= 0:
        other = cache_cell(S, c.first_cell + cell).node
        home = np.int64(home_cell(c, cache_node(S, c.first_node + other).hash))
        if ((cell - home) & c.mask) >= ((cell - hole) & c.mask):
            cache_cell(S, c.first_cell + hole).node = other
            hole = cell
        cell = (cell + 1) & c.mask
    cache_cell(S, c.first_cell + hole).node = -1


@kernel
def unlink_node(S, c, node):
    it = cache_node(S, c.first_node + node)
    if it.newer < 0:
        c.newest = it.older
    else:
        cache_node(S, c.first_node + it.newer).older = it.older
    if it.older < 0:
        c.oldest = it.newer
    else:
        cache_node(S, c.first_node + it.older).newer = it.newer


@kernel
def link_newest(S, c, node):
    it = cache_node(S, c.first_node + node)
    it.newer = -1
    it.older = c.newest
    if c.newest < 0:
        c.oldest = node
    else:
        cache_node(S, c.first_node + c.newest).newer = node
    c.newest = node


@kernel
def cached_prefix(S, i, r, touch):
    """Tokens of the request's prompt that cache `i` holds; with `touch`, the hits become most recent."""
    c = cache(S, i)
    if c.capacity == 0:
        return 0
    source = arrival(S, request(S, r).id)
    hits = 0
    while hits < source.block_count:
        node = find_node(S, c, prefix_block(S, source.block_start + hits).hash)
        if node < 0:
            break
        if touch:
            unlink_node(S, c, node)
            link_newest(S, c, node)
        hits += 1
    return min(hits * header(S).block_tokens, request(S, r).prompt - 1)


@kernel
def insert_block(S, c, key):
    node = find_node(S, c, key)
    if node >= 0:
        unlink_node(S, c, node)
        link_newest(S, c, node)
        return
    if c.count < c.capacity:
        node = np.int32(c.count)
        c.count += 1
    else:
        node = c.oldest
        drop_cell(S, c, node)
        unlink_node(S, c, node)
    cache_node(S, c.first_node + node).hash = key
    put_cell(S, c, node)
    link_newest(S, c, node)


@kernel
def insert_prompt(S, i, r):
    """All blocks of the request's prompt become most recent, in order, each evicting the least recent."""
    c = cache(S, i)
    if c.capacity == 0:
        return
    source = arrival(S, request(S, r).id)
    for k in range(source.block_count):
        insert_block(S, c, prefix_block(S, source.block_start + k).hash)
