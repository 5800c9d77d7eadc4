"""How many instances of a pool are in a state, and which is switched on next."""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.state import OFF, batch, header, prefill


@kernel
def count_prefill(S, state):
    n = np.int64(0)
    for p in range(header(S).n_prefill):
        n += prefill(S, p).state == state
    return n


@kernel
def count_decode(S, state):
    n = np.int64(0)
    for d in range(header(S).n_decode):
        n += batch(S, d).state == state
    return n


@kernel
def next_prefill_on(S):
    """The first prefill instance that is OFF, or −1."""
    for p in range(header(S).n_prefill):
        if prefill(S, p).state == OFF:
            return np.int64(p)
    return np.int64(-1)


@kernel
def next_decode_on(S):
    for d in range(header(S).n_decode):
        if batch(S, d).state == OFF:
            return np.int64(d)
    return np.int64(-1)


@kernel
def fits_budget(S, gpus):
    """Does the GPU budget allow so many more GPUs?"""
    return header(S).gpus_on + gpus <= header(S).gpu_budget
