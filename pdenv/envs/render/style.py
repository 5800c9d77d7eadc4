"""Colours and numbers as the pictures and the text show them."""

from __future__ import annotations

import math

# Okabe and Ito's palette for what has a meaning, told apart with every common colour vision; greys for the rest.
PAGE, PANEL, RULE, GROUND = "#f3f5f7", "#ffffff", "#d9dfe5", "#e6eaee"
INK, MUTED, FAINT = "#17212b", "#56626e", "#9aa5b0"
PREFILL, PREFILL_LIGHT, PREFILL_PALE = "#0072B2", "#7db4d6", "#eaf3f9"
TRANSFER = "#E69F00"
DECODE, DECODE_LIGHT, DECODE_PALE = "#009E73", "#8ed1bb", "#e8f5f1"
MIXED_PALE = "#f1f1f8"
ALERT, CAUTION = "#D55E00", "#946200"

#: Of KV on the wire; they differ in lightness too.
WIRE = {"bf16": "#332288", "fp8": "#C4588F", "int4": "#56B4E9", "nvfp4": "#999933"}

#: A port this full limits its flows.
FULL = 0.985

NONE = "–"


def bytes_text(value: float) -> str:
    """Bytes with a decimal prefix, e.g. `34.2 GB`."""
    return _scaled(value, "B")


def rate_text(value: float) -> str:
    """Bytes/s with a decimal prefix, e.g. `12.3 GB/s`."""
    return _scaled(value, "B/s")


def of_text(used: float, capacity: float) -> str:
    """Bytes of what there is, e.g. `34.2 / 209 GB`, or `7.2 GB / 1.2 TB` where they need different prefixes."""
    if used == 0.0 or _power(used) == _power(capacity):
        return f"{significant(used / 10.0 ** _power(capacity))} / {bytes_text(capacity)}"
    return f"{bytes_text(used)} / {bytes_text(capacity)}"


def of_rate_text(rate: float, capacity: float) -> str:
    """Bytes/s of what a link can carry, both with the decimals of the capacity, e.g. `0.4 / 22.5 GB/s`."""
    whole = rate_text(capacity)
    decimals = len(whole.split()[0].partition(".")[2])
    return f"{rate / 10.0 ** _power(capacity):,.{decimals}f} / {whole}" if rate > 0.0 else f"0 / {whole}"


def seconds_text(value: float | None, digits: int = 3) -> str:
    """Seconds, or milliseconds below 0.1 s."""
    if value is None:
        return NONE
    return f"{significant(1e3 * value, digits)} ms" if 0.0 < abs(value) < 0.1 else f"{significant(value, digits)} s"


def limit_text(value: float) -> str:
    """A given number of seconds, without more digits than it has."""
    return f"{1e3 * value:g} ms" if value < 1.0 else f"{value:g} s"


def percent_text(share: float | None) -> str:
    """A percentage that says 100 only for all, and 0 only for nothing."""
    if share is None:
        return NONE
    rounded = round(100.0 * share)
    if (rounded >= 100 and share < 1.0) or (rounded == 0 and share > 0.0):
        return f"{100.0 * share:.1f} %" if 0.0005 <= share < 0.9995 else ("> 99.9 %" if share > 0.5 else "< 0.1 %")
    return f"{rounded} %"


def tokens_text(value: float) -> str:
    """Tokens: thousands from 10,000 on, e.g. `33 k`."""
    return f"{value / 1e3:,.0f} k" if value >= 10_000 else f"{value:,.0f}"


def number_text(value: float) -> str:
    """A signed number with a true minus, at most one decimal from 100 on."""
    text = f"{abs(value):,.0f}" if abs(value) >= 1e4 else f"{abs(value):,.1f}" if abs(value) >= 100 else ""
    text = text or f"{abs(value):.3g}"
    return f"−{text}" if value < 0 else text


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without an exponent."""
    if value == 0.0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{min(decimals, digits)}f}"


_PREFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


def _power(value: float) -> int:
    if value <= 0.0:
        return 0
    return min(max(3 * math.floor(math.log10(value) / 3 + 1e-12), 0), 15)


def _scaled(value: float, unit: str) -> str:
    power = _power(value)
    return f"{significant(value / 10.0**power)} {_PREFIXES[power]}{unit}"
