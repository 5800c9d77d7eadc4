"""What an environment adds to the engine's state: where a decision stands, and how instances are shown."""

from __future__ import annotations

import numpy as np

from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    ACTIVE,
    NO_DECISION,
    OFF,
    PAIR,
    ROUTE,
    batch,
    header,
    prefill,
)

MODE_PAIR, MODE_FACTORED, MODE_SEQUENTIAL = range(3)
KIND_PAIR, KIND_COLOCATED, KIND_HOLD, KIND_REJECT, N_KINDS = range(5)
STAGE_KIND, STAGE_PREFILL, STAGE_DECODE, STAGE_PRECISION, STAGE_COLOCATED, STAGE_SCALE = range(6)
NEW_DECISION = -1  # Face.stage: the stage follows from the decision that is asked for
N_SCALINGS = 11
SCALE_NOTHING = 4

#: One row an environment.
FACE = np.dtype(
    [
        ("stage", np.int64),  # of a sequential decision
        ("prefill", np.int64),  # instance chosen in an earlier stage, −1
        ("decode", np.int64),
        ("pending", np.int64),  # kind of decision that is asked for
        ("now", np.float64),  # when it is, s
        ("since", np.float64),  # when the interval began whose cost has not been taken, s
        ("dt", np.float64),  # s since the decision before it
        ("cost", np.float64),  # accrued since then, cost units
        ("total_cost", np.float64),  # of the episode
        ("mode", np.int64),
        ("routes", np.int64),
        ("scales", np.int64),
        ("work_conserving", np.int64),
        ("replace", np.int64),  # illegal actions are replaced
        ("replaced", np.int64),  # how many were
        ("rows_prefill", np.int64),  # rows in the observation, padding included
        ("rows_decode", np.int64),
        ("rows_colocated", np.int64),
    ],
    align=True,
)


@kernel
def shown_prefill(face, order, i):
    """Prefill instance shown in row i, or −1."""
    return np.int64(order[i])


@kernel
def shown_decode(face, order, i):
    return np.int64(order[face.rows_prefill + i])


@kernel
def shown_colocated(face, order, i):
    return np.int64(order[face.rows_prefill + face.rows_decode + i])


@kernel
def row_of_prefill(face, order, p):
    """Row in which prefill instance p is shown."""
    i = np.int64(0)
    while order[i] != p:
        i += 1
    return i


@kernel
def row_of_decode(face, order, d):
    i = np.int64(0)
    while order[face.rows_prefill + i] != d:
        i += 1
    return i


@kernel
def begin_decision(S, face):
    """Which stage comes first is up to the decision that is asked for."""
    if face.stage != NEW_DECISION:
        return
    pending = header(S).pending
    face.prefill = -1
    face.decode = -1
    if pending == ROUTE or (pending == NO_DECISION and face.routes):
        face.stage = STAGE_KIND
    elif pending == PAIR:
        face.stage = STAGE_DECODE
    else:
        face.stage = STAGE_SCALE


@kernel
def scaling_delta(k):
    """(prefill delta, decode delta, flip) of scaling action k."""
    if k < 9:
        return k // 3 - 1, k % 3 - 1, np.int64(0)
    return np.int64(0), np.int64(0), k - 8


@kernel
def spare_prefill_gpus(S):
    """GPUs of the first prefill instance that is OFF, or −1 if all are on."""
    for p in range(header(S).n_prefill):
        if prefill(S, p).state == OFF:
            return np.int64(prefill(S, p).gpus)
    return np.int64(-1)


@kernel
def spare_decode_gpus(S):
    for d in range(header(S).n_decode):
        if batch(S, d).state == OFF:
            return np.int64(batch(S, d).gpus)
    return np.int64(-1)


@kernel
def count_active_prefill(S):
    n = 0
    for p in range(header(S).n_prefill):
        n += prefill(S, p).state == ACTIVE
    return n


@kernel
def count_active_decode(S):
    n = 0
    for d in range(header(S).n_decode):
        n += batch(S, d).state == ACTIVE
    return n


@kernel
def scaling_legal(S, k):
    """Would the engine carry scaling action k out in full?"""
    h = header(S)
    up, down, flip = scaling_delta(k)
    spare_prefill = spare_prefill_gpus(S)
    spare_decode = spare_decode_gpus(S)
    need = (spare_prefill if up > 0 else 0) + (spare_decode if down > 0 else 0)
    if (up > 0 and spare_prefill < 0) or (down > 0 and spare_decode < 0) or h.gpus_on + need > h.gpu_budget:
        return False
    if (up < 0 or flip == 1) and count_active_prefill(S) < 2:
        return False
    if (down < 0 or flip == 2) and count_active_decode(S) < 2:
        return False
    return not ((flip == 1 and spare_decode < 0) or (flip == 2 and spare_prefill < 0))
