"""Which actions are legal, in every form of the actions."""

from __future__ import annotations

import numpy as np

from pdenv.envs.kernels.face import (
    KIND_COLOCATED,
    KIND_HOLD,
    KIND_PAIR,
    KIND_REJECT,
    MODE_FACTORED,
    MODE_PAIR,
    N_KINDS,
    N_SCALINGS,
    SCALE_NOTHING,
    STAGE_COLOCATED,
    STAGE_DECODE,
    STAGE_KIND,
    STAGE_PRECISION,
    STAGE_PREFILL,
    row_of_prefill,
    scaling_legal,
    shown_colocated,
    shown_decode,
    shown_prefill,
)
from pdenv.sim.gateway import colocated_legal, decode_legal, may_hold, precision_allowed, prefill_legal
from pdenv.sim.layout import kernel
from pdenv.sim.state import N_PRECISIONS, NO_DECISION, PAIR, ROUTE, header, request


@kernel
def first_true(mask, start, width, otherwise):
    """The first position in `start`, …, `start + width − 1` where the mask is true."""
    for k in range(start, start + width):
        if mask[k]:
            return np.int64(k)
    return np.int64(otherwise)


@kernel
def legal_prefill_row(S, face, order, r, i):
    p = shown_prefill(face, order, i)
    return p >= 0 and prefill_legal(S, r, p)


@kernel
def legal_decode_row(S, face, order, r, i, q):
    """May the request, sent in precision q, go to the decode instance in row i? Late binding opens row 0 alone."""
    if not precision_allowed(S, r, q):
        return False
    if header(S).bind_at_prefill_end and header(S).pending == ROUTE:
        return i == 0
    d = shown_decode(face, order, i)
    return d >= 0 and decode_legal(S, r, d, q)


@kernel
def some_precision(S, face, order, r, i):
    """Is the decode instance in row i legal in any precision?"""
    for q in range(N_PRECISIONS):
        if legal_decode_row(S, face, order, r, i, q):
            return True
    return False


@kernel
def some_decode(S, face, order, r, q):
    for i in range(face.rows_decode):
        if legal_decode_row(S, face, order, r, i, q):
            return True
    return False


@kernel
def legal_colocated_row(S, face, order, r, i):
    c = shown_colocated(face, order, i)
    return c >= 0 and colocated_legal(S, r, c)


@kernel
def some_colocated(S, face, order, r):
    for i in range(face.rows_colocated):
        if legal_colocated_row(S, face, order, r, i):
            return True
    return False


@kernel
def some_pair(S, face, order, r):
    for i in range(face.rows_prefill):
        if legal_prefill_row(S, face, order, r, i):
            for q in range(N_PRECISIONS):
                if some_decode(S, face, order, r, q):
                    return True
            return False
    return False


@kernel
def hold_legal(S, face, r, somewhere):
    """Holding is legal where it is allowed, and where there is nowhere to go."""
    return not somewhere or (may_hold(S, r) and not face.work_conserving)


@kernel
def mask_kinds(S, face, order, r, mask):
    mask[KIND_PAIR] = some_pair(S, face, order, r)
    mask[KIND_COLOCATED] = some_colocated(S, face, order, r)
    mask[KIND_HOLD] = hold_legal(S, face, r, mask[KIND_PAIR] or mask[KIND_COLOCATED])
    mask[KIND_REJECT] = header(S).allow_reject != 0


@kernel
def mask_pairs(S, face, order, r, mask):
    """Fill the (prefill, decode, precision) part of the `pair` form; whether any is legal."""
    width = face.rows_decode * N_PRECISIONS
    for k in range(width):  # what is legal after the prefill instance does not depend on it
        mask[k] = legal_decode_row(S, face, order, r, k // N_PRECISIONS, k % N_PRECISIONS)
    some = first_true(mask, 0, width, -1) >= 0
    found = False
    for i in range(face.rows_prefill - 1, -1, -1):
        fits = some and legal_prefill_row(S, face, order, r, i)
        found = found or fits
        for k in range(width):
            mask[i * width + k] = fits and mask[k]
    return found


@kernel
def mask_route_pair(S, face, order, r, mask):
    somewhere = mask_pairs(S, face, order, r, mask)
    k = face.rows_prefill * face.rows_decode * N_PRECISIONS
    for i in range(face.rows_colocated):
        mask[k + i] = legal_colocated_row(S, face, order, r, i)
        somewhere = somewhere or mask[k + i]
    mask[k + face.rows_colocated] = hold_legal(S, face, r, somewhere)
    mask[k + face.rows_colocated + 1] = header(S).allow_reject != 0


@kernel
def mask_pairing_pair(S, face, order, r, mask):
    """Only the decode instance of a request that has been dispatched is open."""
    it = request(S, r)
    i = row_of_prefill(face, order, it.p)
    for j in range(face.rows_decode):
        k = (i * face.rows_decode + j) * N_PRECISIONS + it.wire
        mask[k] = legal_decode_row(S, face, order, r, j, it.wire)


@kernel
def mask_factors(S, face, order, r, mask):
    """Fill prefill, decode, precision and co-located factors of a dispatch."""
    at = N_KINDS
    for i in range(face.rows_prefill):
        mask[at + i] = legal_prefill_row(S, face, order, r, i)
    at += face.rows_prefill
    for i in range(face.rows_decode):
        mask[at + i] = some_precision(S, face, order, r, i)
    at += face.rows_decode
    for q in range(N_PRECISIONS):
        mask[at + q] = some_decode(S, face, order, r, q)
    at += N_PRECISIONS
    for i in range(face.rows_colocated):
        mask[at + i] = legal_colocated_row(S, face, order, r, i)


@kernel
def open_empty_factors(face, mask):
    """A factor without a legal choice opens its first one: the kind that would use it is closed."""
    at = N_KINDS
    for width in (face.rows_prefill, face.rows_decode, N_PRECISIONS, face.rows_colocated):
        found = False
        for i in range(width):
            found = found or mask[at + i]
        if not found:
            mask[at] = True
        at += width


@kernel
def mask_factored(S, face, order, r, mask):
    pending = header(S).pending
    if pending == ROUTE:
        mask_kinds(S, face, order, r, mask)
        mask_factors(S, face, order, r, mask)
    elif pending == PAIR:
        it = request(S, r)
        mask[KIND_PAIR] = True
        mask[N_KINDS + row_of_prefill(face, order, it.p)] = True
        for i in range(face.rows_decode):
            mask[N_KINDS + face.rows_prefill + i] = legal_decode_row(S, face, order, r, i, it.wire)
        mask[N_KINDS + face.rows_prefill + face.rows_decode + it.wire] = True
    else:
        mask[KIND_HOLD] = True
    open_empty_factors(face, mask)


@kernel
def mask_stage(S, face, order, r, mask):
    """The stage of a sequential decision that is open."""
    it = request(S, r)
    if face.stage == STAGE_KIND:
        mask_kinds(S, face, order, r, mask)
    elif face.stage == STAGE_PREFILL:
        for i in range(face.rows_prefill):
            mask[i] = legal_prefill_row(S, face, order, r, i)
    elif face.stage == STAGE_DECODE:
        for i in range(face.rows_decode):
            if header(S).pending == PAIR:
                mask[i] = legal_decode_row(S, face, order, r, i, it.wire)
            else:
                mask[i] = some_precision(S, face, order, r, i)
    elif face.stage == STAGE_PRECISION:
        for q in range(N_PRECISIONS):
            late = face.decode < 0
            mask[q] = precision_allowed(S, r, q) and (late or decode_legal(S, r, face.decode, q))
    elif face.stage == STAGE_COLOCATED:
        for i in range(face.rows_colocated):
            mask[i] = legal_colocated_row(S, face, order, r, i)


@kernel
def mask_scaling(S, mask, first):
    for k in range(N_SCALINGS):
        mask[first + k] = scaling_legal(S, k)


@kernel
def mask_nothing(face, mask, n_routes):
    """No decision is asked for: the one action that does nothing."""
    if not face.routes:
        mask[SCALE_NOTHING] = True
    elif face.mode == MODE_PAIR:
        mask[n_routes - 2] = True
    else:
        mask[KIND_HOLD] = True


@kernel
def fill_mask(S, face, order, mask):
    """Every legal action of the pending decision; never none."""
    h = header(S)
    for k in range(mask.shape[0]):
        mask[k] = False
    r = h.pending_request
    n_pairs = face.rows_prefill * face.rows_decode * N_PRECISIONS
    n_routes = n_pairs + face.rows_colocated + 2 if face.routes else 0
    if face.mode == MODE_FACTORED:
        mask_factored(S, face, order, r, mask)
    elif h.pending == NO_DECISION:
        mask_nothing(face, mask, n_routes)
    elif h.pending != ROUTE and h.pending != PAIR:
        mask_scaling(S, mask, n_routes if face.mode == MODE_PAIR else 0)
    elif face.mode != MODE_PAIR:
        mask_stage(S, face, order, r, mask)
    elif h.pending == ROUTE:
        mask_route_pair(S, face, order, r, mask)
    else:
        mask_pairing_pair(S, face, order, r, mask)
