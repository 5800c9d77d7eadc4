"""Actions into decisions of the engine."""

from __future__ import annotations

import numpy as np

from pdenv.envs.kernels.face import (
    KIND_COLOCATED,
    KIND_HOLD,
    KIND_PAIR,
    MODE_FACTORED,
    MODE_PAIR,
    N_KINDS,
    NEW_DECISION,
    STAGE_COLOCATED,
    STAGE_DECODE,
    STAGE_KIND,
    STAGE_PRECISION,
    STAGE_PREFILL,
    scaling_delta,
    shown_colocated,
    shown_decode,
    shown_prefill,
)
from pdenv.envs.kernels.masks import first_true
from pdenv.sim.gateway import decode_legal, precision_allowed
from pdenv.sim.layout import kernel
from pdenv.sim.state import (
    ACT_COLOCATED,
    ACT_HOLD,
    ACT_PAIR,
    ACT_REJECT,
    N_PRECISIONS,
    PAIR,
    RETURN_GROW,
    ROUTE,
    SCALE,
    header,
)

ILLEGAL, ANOTHER_STAGE, DECIDED = range(3)


@kernel
def legal_or_first(face, mask, start, width, k):
    """k if the mask has it; else −1, or the first legal one where illegal actions are replaced (and counted)."""
    if 0 <= k < width and mask[start + k]:
        return np.int64(k)
    if not face.replace:
        return np.int64(-1)
    face.replaced += 1
    return first_true(mask, start, width, start) - start


@kernel
def decide_pair(S, p, d, q):
    h = header(S)
    h.act_kind = ACT_PAIR
    h.act_p = p
    h.act_d = -1 if h.bind_at_prefill_end and h.pending == ROUTE else d
    h.act_precision = q
    return DECIDED


@kernel
def decide_colocated(S, c):
    header(S).act_kind = ACT_COLOCATED
    header(S).act_h = c
    return DECIDED


@kernel
def decide_kind(S, kind):
    """Hold or reject."""
    header(S).act_kind = ACT_HOLD if kind == KIND_HOLD else ACT_REJECT
    return DECIDED


@kernel
def decide_scaling(S, k):
    h = header(S)
    h.act_scale_prefill, h.act_scale_decode, h.act_flip = scaling_delta(k)
    return DECIDED


@kernel
def act_pair_form(S, face, order, k):
    """Carry out a legal action of the `pair` form."""
    n_pairs = face.rows_prefill * face.rows_decode * N_PRECISIONS if face.routes else 0
    n_routes = n_pairs + face.rows_colocated + 2 if face.routes else 0
    if k >= n_routes:
        return decide_scaling(S, k - n_routes)
    if k < n_pairs:
        row = k // N_PRECISIONS
        p = shown_prefill(face, order, row // face.rows_decode)
        return decide_pair(S, p, shown_decode(face, order, row % face.rows_decode), k % N_PRECISIONS)
    k -= n_pairs
    if k < face.rows_colocated:
        return decide_colocated(S, shown_colocated(face, order, k))
    return decide_kind(S, KIND_HOLD + k - face.rows_colocated)


@kernel
def repaired_precision(S, d, q):
    """q, or the finest precision that the decode instance can take (`kv.mixed_store` alone makes them differ)."""
    h = header(S)
    r = h.pending_request
    if h.pending != ROUTE or h.bind_at_prefill_end or decode_legal(S, r, d, q):
        return np.int64(q)
    for other in range(N_PRECISIONS):
        if precision_allowed(S, r, other) and decode_legal(S, r, d, other):
            return np.int64(other)
    return np.int64(q)


@kernel
def act_factored_form(S, face, order, mask, action):
    """Carry out an action of the `factored` form: (kind, prefill, decode, precision, co-located)."""
    kind = legal_or_first(face, mask, 0, N_KINDS, action[0])
    if kind == KIND_PAIR:
        at = N_KINDS
        i = legal_or_first(face, mask, at, face.rows_prefill, action[1])
        at += face.rows_prefill
        j = legal_or_first(face, mask, at, face.rows_decode, action[2])
        at += face.rows_decode
        q = legal_or_first(face, mask, at, N_PRECISIONS, action[3])
        if i < 0 or j < 0 or q < 0:
            return ILLEGAL
        d = shown_decode(face, order, j)
        return decide_pair(S, shown_prefill(face, order, i), d, repaired_precision(S, d, q))
    if kind == KIND_COLOCATED:
        at = N_KINDS + face.rows_prefill + face.rows_decode + N_PRECISIONS
        i = legal_or_first(face, mask, at, face.rows_colocated, action[4])
        return decide_colocated(S, shown_colocated(face, order, i)) if i >= 0 else ILLEGAL
    return decide_kind(S, kind) if kind >= 0 else ILLEGAL


@kernel
def act_stage(S, face, order, k):
    """Carry out a legal action of one stage."""
    h = header(S)
    if h.pending == SCALE:
        return decide_scaling(S, k)
    if face.stage == STAGE_KIND:
        if k == KIND_PAIR:
            face.stage = STAGE_PREFILL
        elif k == KIND_COLOCATED:
            face.stage = STAGE_COLOCATED
        else:
            return decide_kind(S, k)
        return ANOTHER_STAGE
    if face.stage == STAGE_PREFILL:
        face.prefill = shown_prefill(face, order, k)
        face.stage = STAGE_PRECISION if h.bind_at_prefill_end else STAGE_DECODE
        return ANOTHER_STAGE
    if face.stage == STAGE_DECODE:
        face.decode = shown_decode(face, order, k)
        if h.pending == PAIR:
            return decide_pair(S, face.prefill, face.decode, 0)
        face.stage = STAGE_PRECISION
        return ANOTHER_STAGE
    if face.stage == STAGE_PRECISION:
        return decide_pair(S, face.prefill, face.decode, k)
    return decide_colocated(S, shown_colocated(face, order, k))


@kernel
def act(S, face, order, mask, action):
    """Carry out an action; ILLEGAL leaves everything as it was."""
    replaced = face.replaced
    if face.mode == MODE_FACTORED:
        done = act_factored_form(S, face, order, mask, action)
    else:
        k = legal_or_first(face, mask, 0, mask.shape[0], action[0])
        if k < 0:
            return ILLEGAL
        done = act_pair_form(S, face, order, k) if face.mode == MODE_PAIR else act_stage(S, face, order, k)
    face.replaced = min(face.replaced, replaced + 1)  # an action counts once, however many of its factors were illegal
    if done == DECIDED:
        face.stage = NEW_DECISION
    return done


@kernel
def is_legal(face, mask, action):
    """Does the mask allow the action? Of a factored one only the factors that its kind uses count."""
    k = action[0]
    if face.mode != MODE_FACTORED:
        return 0 <= k < mask.shape[0] and mask[k]
    if not (0 <= k < N_KINDS and mask[k]):
        return False
    at = N_KINDS
    factor = 1
    for width in (face.rows_prefill, face.rows_decode, N_PRECISIONS, face.rows_colocated):
        used = (k == KIND_COLOCATED) if factor == 4 else (k == KIND_PAIR)
        if used and not (0 <= action[factor] < width and mask[at + action[factor]]):
            return False
        at += width
        factor += 1
    return True


@kernel
def act_each(blocks, faces, orders, masks, which, actions, why, done):
    """Act in the environments in `which`; or, if an action is not legal and not replaced, in none.

    Args:
        blocks, faces, orders, masks: as for `observe_each`.
        which: `(n,)` environments.
        actions: `(E, 1)`, or `(E, 5)` in the factored form, int64, in the action space.
        why: `(E,)` set to RETURN_GROW, to be run, where a decision is complete.
        done: `(E,)` filled with ANOTHER_STAGE or DECIDED.

    Returns:
        The first environment whose action is not legal, or −1.
    """
    for n in range(which.shape[0]):
        i = which[n]
        if not faces[i].replace and not is_legal(faces[i], masks[i], actions[i]):
            return np.int64(i)
    for n in range(which.shape[0]):
        i = which[n]
        done[i] = act(blocks[i], faces[i], orders[i], masks[i], actions[i])
        if done[i] == DECIDED:
            why[i] = RETURN_GROW
    return np.int64(-1)
