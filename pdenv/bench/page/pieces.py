"""Cells and other small pieces that the sections of the page are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdenv.bench.page import data, words
from pdenv.bench.page.markup import Html, element, join
from pdenv.bench.plots import Style
from pdenv.bench.tables import RELATIVE_TEXT, Column, number
from pdenv.definitions import DEFINITIONS
from pdenv.metrics import percent

if TYPE_CHECKING:
    from pdenv.bench.results import Standing

Styles = dict[str, Style]
GOODPUT = Column("goodput_rps", "goodput", "req/s", "goodput_rps")
MEANING = {**DEFINITIONS, "relative": RELATIVE_TEXT}
SCALES = {"ms": 1e3, "%": 100.0}


def head_cell(label: str, definition: str | None = None, *below: str, number_column: bool = True) -> Html:
    """A column's head; with a definition it links to it."""
    name = element("a", label, href=f"#def-{definition}", data_tip=MEANING[definition]) if definition else label
    return element("th", name, *below, scope="col", class_="n" if number_column else None)


def name_cell(name: str, style: Style, kind: str = "heuristic", tuned: bool = False) -> Html:
    """A policy with its line style and what it is."""
    labels = [words.KIND_NAMES[kind]] if kind in words.KIND_NAMES else []
    labels += ["tuned"] if tuned else []
    badges = [join(" ", element("span", label, class_=f"badge {label}")) for label in labels]
    return element("th", swatch(style), " ", name, *badges, scope="row")


def swatch(style: Style) -> Html:
    """A short piece of the policy's line."""
    line = element(
        "line", x1=1, x2=27, y1=6, y2=6, stroke=style.colour, stroke_width=data.line_width(style),
        stroke_dasharray=data.dashes(style) or None,
    )  # fmt: skip
    return element("svg", line, class_="swatch", viewBox="0 0 28 12", width=28, height=12, aria_hidden="true")


def number_cell(*content: str, **attributes: str | None) -> Html:
    return element("td", *content, class_="n", **attributes)


def plot_cell(drawing: Html) -> Html:
    return element("td", drawing, class_="plot")


def interval_text(low: float | None, high: float | None, scale: float = 1.0) -> Html:
    """[low, high], or nothing for a single window."""
    if low is None or high is None:
        return Html("")
    return join(" ", element("span", f"[{number(low * scale)}, {number(high * scale)}]", class_="interval"))


def mean_with_interval(standing: Standing, column: Column) -> Html:
    """A mean in the column's unit, its interval behind it."""
    value = standing.mean.get(column.metric)
    if value is None:
        return Html("–")
    scale = SCALES.get(column.unit, 1.0)
    shown = percent(value).removesuffix(" %") if column.unit == "%" else number(float(value * scale))
    return join(shown, interval_text(standing.low.get(column.metric), standing.high.get(column.metric), scale))


def plain(standing: Standing, column: Column) -> str:
    """A mean without its interval, which the table of all numbers has."""
    value = standing.mean.get(column.metric)
    if value is None:
        return "–"
    if column.unit == "%":
        return percent(value).removesuffix(" %")
    return number(float(value * SCALES.get(column.unit, 1.0)))


def unit_head(column: Column, definition: bool = True) -> Html:
    label = f"{column.head.lstrip('=+ ')}, {column.unit}" if column.unit else column.head
    return head_cell(label, column.definition if definition else None)


def folded(title: str, *content: str, open_: bool = False) -> Html:
    return element("details", element("summary", title), *content, open=open_)


def note(*content: str) -> Html:
    return element("p", *content, class_="note")
