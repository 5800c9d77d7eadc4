"""Rows of Header.parameter: the tunable numbers of the compiled rules."""

from __future__ import annotations

from pdenv.sim.state import N_PARAMETERS

(
    PREFILL_WEIGHT,  # of the predicted cost, where a rule predicts it
    TRANSFER_WEIGHT,
    DECODE_WEIGHT,
    LONG_TOKENS,  # kv-aware, three-part: from this prompt length on the link decides
    RECEIVE_LIMIT,  # three-part: hold while every decode instance has so many requests in its receive queue
    COMPRESS_ABOVE_S,  # three-part: compress a transfer that would take longer
    CUT_TOKENS,  # size-interval: prompts from this length on are long
    SHORT_SHARE,  # size-interval: share of the prefill instances that are closed to long prompts
    SPILL_S,  # size-interval: seconds of work less that open one of them
    LINK_WEIGHT,  # topology-score: a second of transfer
    ROOM_WEIGHT_S,  # topology-score: a full memory
    LOCAL_TOKENS,  # conditional: shorter prompts stay on one instance
    QUEUE_S,  # conditional: so do all while every prefill instance has more work
    LOCAL_QUEUE_S,  # conditional: unless the co-located instances have as much
    PULL_BELOW_S,  # pull: work up to which a prefill instance takes another request
    ADMIT_FACTOR,  # admission: of the TTFT limit
    # Scalers.
    PREFILL_HIGH,
    PREFILL_LOW,
    DECODE_HIGH,
    DECODE_LOW,
    QUIET_TICKS,
    BACKLOG_HIGH_TOKENS,  # queue: an instance
    BACKLOG_LOW_TOKENS,
    BUSY_AFTER,  # queue: utilisation that a smaller pool may be left with
    MEMORY_AFTER,  # queue: the same for promised decode memory
    LEVEL_WEIGHT,  # forecast: of the last interval in the level
    TREND_WEIGHT,
    PREFILL_TARGET,  # forecast: utilisation to provide for
    DECODE_TARGET,
    SHRINK_BELOW,  # forecast: share of the target that a smaller pool may be left with
) = range(30)

#: Rows of 1 unless the rule says otherwise, so that `pair_cost` is the cost in the scenario's own weights.
WEIGHTS = (PREFILL_WEIGHT, TRANSFER_WEIGHT, DECODE_WEIGHT)

assert SHRINK_BELOW < N_PARAMETERS
