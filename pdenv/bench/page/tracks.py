"""Charts that are rows of a table: whiskers, stacked bars and strips, placed in percent of their cell's width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pdenv.bench.page.markup import Html, element, join
from pdenv.bench.tables import number

#: From this ratio of the largest to the smallest value on, an axis is logarithmic.
LOG_FROM = 5.0
#: An axis ends at this many medians; what lies beyond becomes an arrow, so that the others can be told apart.
REACH = 6.0
#: Tick labels are at least this far apart, % of the cell.
TICK_GAP = 15.0


@dataclass(frozen=True)
class Scale:
    """An axis over the width of a cell."""

    low: float
    high: float
    log: bool = False
    unit: str = ""

    def place(self, value: float) -> float:
        """Position of a value in % of the width, at an end where it lies beyond."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return round(100 * (at - low) / (high - low), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """(value, label) of round values, far enough apart to be read."""
        candidates = log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)
        kept: list[float] = []
        for value in candidates:
            if not kept or self.place(value) - self.place(kept[-1]) >= TICK_GAP:
                kept.append(value)
        return [(value, f"{value:.4g}{self.unit}") for value in kept]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten with 2 and 5 between them; on less than a factor of 5 also what lies between those."""
    steps = (1, 2, 5) if high / low > LOG_FROM else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [value for value in values if low <= value <= high]


def linear_ticks(low: float, high: float) -> list[float]:
    """Up to seven values in steps of 1, 2 or 5."""
    rough = (high - low) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def scale_of(values: Iterable[float | None], unit: str = "") -> Scale:
    """An axis that holds all values within reach, with a little room at both ends."""
    known = [value for value in values if value is not None and math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), reach(known)
    if low > 0 and high > LOG_FROM * low:
        room = (high / low) ** 0.04
        return Scale(low / room, high * room, True, unit)
    room = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    return Scale(low - room, high + room, False, unit)


def reach(values: Sequence[float]) -> float:
    """The largest value that is at most REACH medians; the median and the smallest always are, for values above 0."""
    end = REACH * median(values)
    return max((value for value in values if value <= end), default=max(values))


def mark(kind: str, left: float, width: float | None = None, colour: str | None = None, tip: str | None = None) -> Html:
    """One drawn thing of a track: `left` and `width` in %."""
    style = f"left:{left:g}%" + ("" if width is None else f";width:{width:g}%")
    return element("i", class_=kind, style=style + (f";background:{colour}" if colour else ""), data_tip=tip)


def track(scale: Scale, marks: Sequence[Html], tip: str | None = None) -> Html:
    """A cell's drawing over faint lines at the axis' ticks."""
    lines = [mark("tick", scale.place(value)) for value, _ in scale.ticks()]
    return element("div", *lines, *marks, class_="track", data_tip=tip, aria_hidden="true")


def axis(scale: Scale) -> Html:
    """Labels of the ticks, for the head of the column."""
    labels = [element("span", label, style=f"left:{scale.place(value):g}%") for value, label in scale.ticks()]
    return element("span", *labels, class_="axis", aria_hidden="true")


def whisker(scale: Scale, mid: float, low: float | None, high: float | None, colour: str) -> Html:
    """A dot at the mean over a line from low to high; an arrow at the end where the mean lies beyond the axis."""
    if mid > scale.high:
        return mark("beyond", 100.0)
    dot = mark("dot", scale.place(mid), colour=colour)
    if low is None or high is None:
        return dot
    start, end = scale.place(low), scale.place(high)
    return join(mark("whisker", start, round(end - start, 2), colour), dot)


def stacked(scale: Scale, parts: Sequence[tuple[str, float, str]], longest: float) -> Html:
    """Parts (label, length, colour) end to end. A sum above `longest` is cut to it, its parts in proportion."""
    total = sum(length for _, length, _ in parts)
    shrink = longest / total if total > longest * (1 + 1e-6) else 1.0
    drawn, start = [], 0.0
    for label, length, colour in parts:
        left, right = scale.place(start), scale.place(start + length * shrink)
        drawn.append(mark("bar", left, round(right - left, 2), colour, f"{label}: {number(length)} s"))
        start += length * shrink
    if shrink < 1:
        drawn.append(mark("cut", scale.place(0.93 * longest), tip=f"cut short: {number(total)} s in all"))
    return join(*drawn)


def strip(scale: Scale, ratios: Sequence[tuple[int, float]], colour: str) -> Html:
    """A small dot a (window, ratio); an arrow at the end for those beyond the axis."""
    drawn = []
    for window, ratio in ratios:
        kind = "beyond" if ratio > scale.high else "before" if ratio < scale.low else "grain"
        tint = colour if kind == "grain" else None
        drawn.append(mark(kind, scale.place(ratio), colour=tint, tip=f"window {window}: × {ratio:.3g}"))
    return join(*drawn)
