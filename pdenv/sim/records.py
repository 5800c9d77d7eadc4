"""What goes into a run and what comes out of it, one row a request: plain structured arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: One request as the engine reads it.
ARRIVAL = np.dtype(
    [
        ("arrival_s", np.float64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),  # true length; schedulers never see it
        ("predicted_tokens", np.int64),  # a length predictor's output, fixed at arrival
        ("tier", np.int32),  # quality tier, index into Cluster.tier_precisions
        ("priority", np.int32),  # higher is kept longer
        ("block_start", np.int64),  # first index into the block-hash array
        ("block_count", np.int64),  # number of prefix blocks (0: no hashes)
    ],
    align=True,
)

STATUSES = ("waiting", "completed", "rejected", "too_large", "failed_oom", "unfinished")
WAITING, COMPLETED, REJECTED, TOO_LARGE, FAILED_OOM, UNFINISHED = range(len(STATUSES))

MODES = ("none", "pair", "colocated")

#: One request as the engine leaves it. Times are absolute seconds, NaN where the event never came.
RECORD = np.dtype(
    [
        ("dispatch_s", np.float64),  # first dispatch decision
        ("prefill_start_s", np.float64),  # first step that contains it (first time)
        ("prefill_end_s", np.float64),  # t_P, first time
        ("grant_s", np.float64),  # decode memory granted (the grant under which it joined)
        ("flow_start_s", np.float64),
        ("transfer_end_s", np.float64),
        ("decode_start_s", np.float64),  # t_J
        ("first_token_s", np.float64),
        ("second_token_s", np.float64),
        ("finish_s", np.float64),  # t_F, or the time of rejection or failure
        ("wire_bytes", np.float64),  # bytes sent, aborted flows included
        ("cached_tokens", np.int64),  # prefix hit of the first prefill
        ("emitted", np.int64),  # tokens emitted
        ("prefill", np.int32),  # instance index, -1
        ("decode", np.int32),
        ("colocated", np.int32),
        ("wire_precision", np.int8),  # -1: none
        ("store_precision", np.int8),
        ("mode", np.int8),  # index into MODES
        ("status", np.int8),  # index into STATUSES
        ("preemptions", np.int32),
        ("revocations", np.int32),
    ],
    align=True,
)


def empty_records(n: int) -> np.ndarray:
    """`(n,)` records with all times NaN, all indices −1, status waiting."""
    rows = np.zeros(n, RECORD)
    for name in RECORD.names or ():
        if name.endswith("_s"):
            rows[name] = np.nan
    for name in ("prefill", "decode", "colocated", "wire_precision", "store_precision"):
        rows[name] = -1
    return rows


#: Totals of one instance up to a time.
INSTANCE_TOTALS = np.dtype(
    [
        ("busy_s", np.float64),  # in a step
        ("stalled_s", np.float64),  # prefill: a prompt waits for staging memory
        ("active_s", np.float64),  # ACTIVE or DRAINING
        ("billed_s", np.float64),  # not OFF
        ("queue_s", np.float64),  # integral of queue length: prefill queue, receive queue, co-located queue
        ("memory_byte_s", np.float64),  # integral of bytes in use: staging, or KV with reservations
    ]
)

#: Inter-token gaps are counted in bins whose edges grow by 2 %: `gap_edges()[i] <= gap < gap_edges()[i + 1]`.
GAP_BINS = 1024
GAP_FIRST_S = 1e-5
GAP_RATIO = 1.02


def gap_edges() -> np.ndarray:
    """`(GAP_BINS + 1,)` bin edges in s; the first and last bins also hold what lies beyond."""
    return GAP_FIRST_S * GAP_RATIO ** np.arange(GAP_BINS + 1)


@dataclass(frozen=True)
class Totals:
    """What a run has accumulated from its start to `time_s`; subtract two to get a span."""

    time_s: float
    prefill: np.ndarray  # (P,) INSTANCE_TOTALS
    decode: np.ndarray  # (D,) INSTANCE_TOTALS
    colocated: np.ndarray  # (H,) INSTANCE_TOTALS
    port_bytes: np.ndarray  # (ports,) bytes carried
    decode_starved_s: float  # instance-seconds: decode idle while requests are in prefill or transfer
    gap_counts: np.ndarray  # (GAP_BINS,) inter-token gaps by length
    gap_sum_s: float
    gap_max_s: float
    preemptions: int
    scalings: int  # instances switched on or drained
