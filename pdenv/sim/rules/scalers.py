"""Compiled scaling rules: pool deltas at a control tick."""

from __future__ import annotations

from pdenv.sim.layout import kernel
from pdenv.sim.state import header

# Rows of Header.parameter.
PREFILL_HIGH, PREFILL_LOW, DECODE_HIGH, DECODE_LOW, QUIET_TICKS = 3, 4, 5, 6, 7


@kernel
def band(value, low, high):
    """+1 above the band, −1 below it, 0 inside (hysteresis)."""
    if value > high:
        return 1
    return -1 if value < low else 0


@kernel
def scale_by_utilisation(S):
    """Prefill by demanded compute utilisation, decode by memory utilisation, independently.

    After an action both pools rest for QUIET_TICKS ticks, so that its effect is seen before the next one.
    """
    h = header(S)
    if h.scale_quiet <= h.parameter[QUIET_TICKS]:
        return
    up = band(h.tick_prefill_demanded, h.parameter[PREFILL_LOW], h.parameter[PREFILL_HIGH])
    down = band(h.tick_decode_memory, h.parameter[DECODE_LOW], h.parameter[DECODE_HIGH])
    h.act_scale_prefill = up
    h.act_scale_decode = down
