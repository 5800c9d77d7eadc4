"""Numbers of the compiled rules (Header.rule) and scalers (Header.scaler)."""

from __future__ import annotations

(
    NO_RULE,
    RANDOM,
    ROUND_ROBIN,
    POWER_OF_TWO,
    JOIN_IDLE_QUEUE,
    LEAST_REQUESTS,
    LEAST_TOKENS,
    LEAST_WORK,
    KV_AWARE,
    TOPOLOGY_SCORE,
    THREE_PART,
    COLOCATED,
    GREEDY,
    SIZE_INTERVAL,
    CONDITIONAL,
    PULL,
    ADMISSION,
) = range(17)

NO_SCALER, UTILISATION, QUEUE, FORECAST = range(4)
