"""Everything about one scenario: leaderboard, charts, and all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdenv.bench.page import data, tracks, words
from pdenv.bench.page.markup import Html, element, join, listing, table
from pdenv.bench.page.pieces import (
    GOODPUT,
    Styles,
    folded,
    head_cell,
    interval_text,
    mean_with_interval,
    name_cell,
    note,
    number_cell,
    plain,
    plot_cell,
    swatch,
    unit_head,
)
from pdenv.bench.plots import PARTS, Style
from pdenv.bench.statistics import can_tell
from pdenv.bench.tables import LATENCY, RESOURCES, Column, heading, number, operating_point

if TYPE_CHECKING:
    from pdenv.bench.results import Comparison, Standing

#: A bar is cut at this many times the longest of those within reach, so that it is seen to be longer.
CUT_AT = 1.3
#: Ratios beyond these are drawn as arrows at the ends of the strips.
STRIP_ENDS = (1 / 3, 3.0)


def section(k: int, name: str, comparison: Comparison, board: Sequence[Standing], styles: Styles) -> Html:
    """Everything about one scenario."""
    point, *constraints = operating_point(finished(board))
    return element(
        "section",
        element("h2", name),
        note(heading(comparison, name).removeprefix(f"{name}: ")),
        *_said(board, comparison),
        folded(point, listing(constraints), open_=True) if constraints else note(point),
        leaderboard(comparison, board, styles),
        parts(board, styles),
        latency(k, name, board, styles),
        utilisation(k, name, board),
        goodput(k, name, board),
        differences(board, styles),
        everything(board, styles),
        id=f"scenario-{k}",
        data_scenario=str(k - 1),
    )


def _said(board: Sequence[Standing], comparison: Comparison) -> list[Html]:
    """The scenario in a few sentences, unless the head of the page has them."""
    if len(comparison.scenarios) == 1:
        return []
    return [element("p", " ".join(words.scenario_sentences(board, comparison.windows)))]


def finished(board: Sequence[Standing]) -> list[Standing]:
    """The heuristics without failed runs; everything where there are no heuristics."""
    rows = [s for s in board if s.kind == "heuristic"] or board
    kept = [replace(s, runs=[run for run in s.runs if run.summary]) for s in rows]
    return [s for s in kept if s.runs]


def verdict(standing: Standing, best: Standing | None) -> str:
    """How a policy stands against the best heuristic."""
    if standing.mean.get("cost") is None:
        return "failed" if standing.failed else "no cost"
    said = f"{standing.failed} of {len(standing.runs)} failed; " if standing.failed else ""
    if standing is best:
        return said + f"best {words.best_words(best)}"
    if standing.relative is None:
        return said.removesuffix("; ")
    if standing.p_value is None:
        return said + "not tested"
    return said + ("= not told apart" if standing.tied else "cheaper" if standing.relative.mid < 1 else "dearer")


def leaderboard(comparison: Comparison, board: Sequence[Standing], styles: Styles) -> Html:
    """Policies by mean cost, with intervals drawn."""
    name = board[0].runs[0].scenario
    tuned = {entry.name for entry in comparison.entries if entry.tuned_params.get(name)}
    best = words.best_of(board)
    scale = tracks.scale_of(v for s in board for v in (s.mean.get("cost"), s.low.get("cost"), s.high.get("cost")))
    shown = (*(c for c in LATENCY if c.metric in ("tpot_s", "ttft_p99_s")), RESOURCES[0], GOODPUT)
    rows = [_leaderboard_row(s, best, scale, styles[s.policy], s.policy in tuned, shown) for s in board]
    head = [
        head_cell("policy", number_column=False),
        head_cell(f"cost{' (log scale)' if scale.log else ''}", "cost", tracks.axis(scale), number_column=False),
        head_cell("cost", "cost"),
        head_cell("vs best", "relative"),
        head_cell("verdict", number_column=False),
        *(unit_head(column) for column in shown),
    ]
    text = "By mean cost, cheapest first; lower is better, an arrow lies beyond the axis. "
    if comparison.windows > 1:
        text += "Lines and brackets are 95 % intervals of the mean. "
    if can_tell(comparison.windows, len(board)):
        text += (
            "The verdict compares window by window with the best "
            "heuristic, corrected for the number of policies: overlapping lines may still be told apart."
        )
    return join(element("h3", "Leaderboard"), note(text), table(head, rows, "Leaderboard", class_="chart"))


def _leaderboard_row(
    s: Standing, best: Standing | None, scale: tracks.Scale, style: Style, tuned: bool, shown: Sequence[Column]
) -> Html:
    cost = s.mean.get("cost")
    drawing = [] if cost is None else [tracks.whisker(scale, cost, s.low.get("cost"), s.high.get("cost"), style.colour)]
    ratio = "–" if s.relative is None else f"× {s.relative[0]:.3f}"
    return element(
        "tr",
        name_cell(s.policy, style, s.kind, tuned),
        plot_cell(tracks.track(scale, drawing, f"{s.policy}: cost {number(cost)}")),
        number_cell(number(cost), interval_text(s.low.get("cost"), s.high.get("cost"))),
        number_cell(ratio),
        element("td", verdict(s, best), class_="verdict"),
        *(number_cell(plain(s, column)) for column in shown),
        class_="winner" if s is best else None,
    )


def parts(board: Sequence[Standing], styles: Styles) -> Html:
    """Joint TPOT as stacked bars."""
    total = [s.mean.get("joint_tpot_s") for s in board]
    known = [value for value in total if value is not None]
    within = tracks.reach(known or [1.0]) or 1.0
    longest = min(max(known, default=1.0) or 1.0, CUT_AT * within)
    scale = tracks.Scale(0.0, longest * 1.02)
    rows = []
    for s, value in zip(board, total, strict=True):
        lengths = [s.mean.get(metric) or 0.0 for metric, *_ in PARTS]
        pieces = [(label, length, colour) for (_, label, colour), length in zip(PARTS, lengths, strict=True)]
        drawing = [] if value is None else [tracks.stacked(scale, pieces, longest)]
        joint = mean_with_interval(s, LATENCY[1])
        cells = [number_cell("–" if value is None else number(length)) for length in lengths]
        drawn = plot_cell(tracks.track(scale, drawing))
        rows.append(element("tr", name_cell(s.policy, styles[s.policy], s.kind), drawn, number_cell(joint), *cells))
    head = [
        head_cell("policy", number_column=False),
        head_cell("joint TPOT, s", "joint_tpot_s", tracks.axis(scale), number_column=False),
        head_cell("joint TPOT, s", "joint_tpot_s"),
        *(element("th", _key(colour), f" {part}, s", scope="col", class_="n") for _, part, colour in PARTS),
    ]
    cut = " A bar with a gap is cut short; its parts keep their proportions." if max(known, default=0) > longest else ""
    return join(
        element("h3", "Where the time goes"),
        note(f"Joint TPOT in its three parts, in the order of cost.{cut}"),
        element("p", *(element("span", _key(colour), f" {part}") for _, part, colour in PARTS), class_="keys"),
        table(head, rows, "Parts of joint TPOT", class_="chart"),
    )


def _key(colour: str) -> Html:
    return element("i", class_="key", style=f"background:{colour}")


def chart(kind: str, scenario_number: int, field: str, title: str, alternative: str) -> Html:
    """A place for a chart that the script draws at the width there is."""
    return element(
        "figure",
        element("figcaption", title),
        element("div", class_="canvas", tabindex="0", role="img", aria_label=alternative),
        class_="chart",
        data_kind=kind,
        data_field=field,
        data_scenario=str(scenario_number - 1),
    )


def chips(board: Sequence[Standing], styles: Styles) -> Html:
    """A legend whose entries switch curves."""
    shown = data.shown_first(board)
    buttons = [
        element(
            "button", swatch(styles[s.policy]), " ", s.policy,
            type="button", class_="chip", data_policy=str(i), aria_pressed="true" if i in shown else "false",
        )
        for i, s in enumerate(board)
    ]  # fmt: skip
    every = element("button", "all", type="button", class_="chip every")
    none = element("button", "none", type="button", class_="chip none")
    label = "Policies shown in the charts of this scenario"
    return element("div", *buttons, every, none, class_="chips", role="group", aria_label=label)


def latency(k: int, name: str, board: Sequence[Standing], styles: Styles) -> Html:
    """Distributions of TTFT and standard TPOT."""
    pictures = [
        chart(
            "cdf", k, field, title,
            f"{title} in {name}: the share of requests at or below each time, a curve a policy. "
            "The leaderboard has the median and the 99th percentile, or the mean.",
        )
        for field, title in (("ttft", "TTFT, s"), ("tpot", "Standard TPOT, s"))
    ]  # fmt: skip
    return join(
        element("h3", "Latency distributions"),
        note(
            "Share of requests at or below a time, all windows together; further left is better, the dotted line is "
            "the limit. Choose policies here for all charts of this scenario; the others stay as faint lines."
        ),
        chips(board, styles),
        element("div", *pictures, class_="two"),
    )


def utilisation(k: int, name: str, board: Sequence[Standing]) -> Html:
    """Prefill, decode memory and network over the window."""
    pictures = [
        chart("time", k, field, title, f"{title} in {name} over time, in percent, a curve a policy; means are below.")
        for field, title in data.PANELS
    ]
    averages = "Averages over the window are in the table of all numbers."
    return join(
        element("h3", "Utilisation over time"),
        note(
            "Mean over the windows, in % of what is there; the band of the curve under the pointer, or of all where at "
            f"most three are shown, holds 80 % of the windows. Links are in % of their achievable rate. {averages}"
        ),
        element("div", *pictures, class_="three"),
    )


def goodput(k: int, name: str, board: Sequence[Standing]) -> Html:
    """Goodput against cost."""
    text = f"Goodput against mean cost in {name}, a point a policy with its intervals; the leaderboard has the numbers."
    return join(
        element("h3", "Goodput against cost"),
        note("Up and left is better: more requests within both limits at less cost. Lines are 95 % intervals."),
        chart("scatter", k, "points", "Goodput, requests/s, against mean cost", text),
    )


def ratios(standing: Standing, best: Standing) -> list[tuple[int, float]]:
    """(window, cost / cost of the best heuristic) of windows that both finished."""
    own = {run.window: run.summary["cost"]["mean"] for run in standing.runs if run.summary}
    other = {run.window: run.summary["cost"]["mean"] for run in best.runs if run.summary}
    return [(w, own[w] / other[w]) for w in sorted(own) if own[w] is not None and other.get(w)]


def differences(board: Sequence[Standing], styles: Styles) -> Html:
    """Window by window against the best heuristic."""
    best = words.best_of(board)
    if best is None or len(best.runs) < 2:
        return Html("")
    pairs = {s.policy: ratios(s, best) for s in board if s is not best}
    values = [ratio for row in pairs.values() for _, ratio in row]
    lowest, highest = STRIP_ENDS
    inner = [min(max(value, lowest), highest) for value in values]
    low, high = min([*inner, 0.97]), max([*inner, 1.03])
    room = (high / low) ** 0.03
    scale = tracks.Scale(low / room, high * room, True)
    rows = [_difference_row(s, pairs[s.policy], scale, styles[s.policy]) for s in board if s is not best]
    head = [
        head_cell("policy", number_column=False),
        element("th", f"cost / cost of {best.policy}", tracks.axis(scale), scope="col", class_="plot"),
        head_cell("mean ratio", "relative"),
        head_cell("cheaper in"),
        head_cell("p, corrected"),
    ]
    text = (
        "Small dots: windows; all policies see the same arrivals. Large dot and line: ratio of the mean costs with "
        f"its 95 % interval. Left of 1 is cheaper than {best.policy}; arrows are windows beyond the axis (log scale)."
    )
    return join(
        element("h3", f"Window by window against {best.policy}"),
        note(text),
        table(head, rows, "Paired differences", class_="chart"),
    )


def _difference_row(s: Standing, pairs: list[tuple[int, float]], scale: tracks.Scale, style: Style) -> Html:
    drawing = [tracks.mark("unit", scale.place(1.0)), tracks.strip(scale, pairs, style.colour)]
    if s.relative is not None:
        drawing.append(tracks.whisker(scale, *s.relative, style.colour))
    ratio = "–" if s.relative is None else f"× {s.relative[0]:.3f}"
    cheaper = sum(value < 1 for _, value in pairs)
    return element(
        "tr",
        name_cell(s.policy, style, s.kind),
        plot_cell(tracks.track(scale, drawing)),
        number_cell(ratio, Html("") if s.relative is None else interval_text(*s.relative[1:])),
        number_cell(f"{cheaper} of {len(pairs)}" if pairs else "–"),
        number_cell("–" if s.p_value is None else "< 0.001" if s.p_value < 0.001 else f"{s.p_value:.3f}"),
    )


def everything(board: Sequence[Standing], styles: Styles) -> Html:
    """All numbers with their intervals, in one table."""
    columns = (*LATENCY, *RESOURCES, GOODPUT)
    rows = [
        element(
            "tr",
            name_cell(s.policy, styles[s.policy], s.kind),
            *(number_cell(mean_with_interval(s, c)) for c in columns),
        )
        for s in board
    ]
    head = [head_cell("policy", number_column=False), *(unit_head(c) for c in columns)]
    return folded("All numbers with their intervals", table(head, rows, "All numbers"))
