"""What an environment adds to the engine's state: where a decision stands, and how instances are shown."""

from __future__ import annotations

import numpy as np

from pdenv.sim.instances import count_decode, count_prefill, fits_budget, next_decode_on, next_prefill_on
from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    ACTIVE,
    NO_DECISION,
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
def scaling_legal(S, k):
    """Would the engine carry scaling action k out in full?"""
    up, down, flip = scaling_delta(k)
    p = next_prefill_on(S)
    d = next_decode_on(S)
    if ((up > 0 or flip == 2) and p < 0) or ((down > 0 or flip == 1) and d < 0):
        return False
    need = (prefill(S, p).gpus if up > 0 else 0) + (batch(S, d).gpus if down > 0 else 0)
    if not fits_budget(S, need):
        return False
    if (up < 0 or flip == 1) and count_prefill(S, ACTIVE) < 2:
        return False
    return not ((down < 0 or flip == 2) and count_decode(S, ACTIVE) < 2)
