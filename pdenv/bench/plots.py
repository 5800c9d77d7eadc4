"""Pictures of a comparison, and the report folder that holds them."""

from __future__ import annotations

import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pdenv import atomic
from pdenv.bench.results import CDF_SHARES, Comparison, Standing, mean_interval, write_results
from pdenv.bench.tables import LATENCY, RESOURCES, cell, heading, markdown, markdown_definitions, markdown_overall
from pdenv.metrics import DECODE_MEMORY_LIMIT, PREFILL_BUSY_LIMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """How the curve of a policy is drawn. Narrow curves lie above wide ones, which show beside them and in gaps."""

    colour: str
    dashes: str | tuple[int, tuple[float, ...]]
    width: float  # points


#: Okabe and Ito's palette, told apart with every common colour vision; dashes for print and where curves coincide.
STYLES = {
    "three-part": Style("#D55E00", "-", 3.6),
    "kv-aware": Style("#CC79A7", (0, (6.0, 1.5)), 3.1),
    "greedy": Style("#0072B2", "--", 2.6),
    "least-work": Style("#009E73", "-.", 2.2),
    "colocated": Style("#000000", (0, (5.0, 1.5, 1.0, 1.5, 1.0, 1.5)), 2.0),
    "least-requests": Style("#56B4E9", (0, (2.0, 1.5)), 2.0),
    "round-robin": Style("#E69F00", ":", 2.2),
    "random": Style("#999999", (0, (1.0, 3.0)), 2.2),
    # The same colours in other dashes.
    "size-interval": Style("#0072B2", "-", 2.9),
    "pull": Style("#009E73", "--", 2.4),
    "admission": Style("#D55E00", (0, (3.0, 1.0, 1.0, 1.0)), 2.3),
    "conditional": Style("#000000", (0, (1.0, 1.5)), 2.1),
    "topology-score": Style("#CC79A7", "-.", 2.0),
    "least-tokens": Style("#56B4E9", (0, (8.0, 2.0)), 1.9),
    "power-of-two": Style("#E69F00", (0, (4.0, 1.5)), 1.8),
    "join-idle-queue": Style("#999999", (0, (2.0, 3.0)), 1.7),
}
#: For policies of others, chosen by their name: the darker half of Tol's muted palette.
OTHER_STYLES = [
    Style(colour, dashes, width)
    for colour in ("#882255", "#332288", "#117733", "#999933", "#AA4499", "#44AA99")
    for dashes, width in (("-", 3.0), ("--", 2.4), ("-.", 2.0), (":", 1.8))
]

PARTS = (
    ("prefill_part_s", "prefill: queue and compute", "#0072B2"),
    ("transfer_part_s", "exposed transfer and admission", "#E69F00"),
    ("decode_part_s", "decode, per token", "#009E73"),
)
#: Bars longer than this many times the shortest are cut, so that the parts of the others can be seen.
LONGEST_BAR = 8.0

COLUMNS = {column.metric: column for column in LATENCY + RESOURCES}
#: Beside the bars: metric, head, width in units of the narrowest column, whether the interval is shown.
SIDE_COLUMNS = (
    ("joint_tpot_s", "joint\nTPOT, s", 2.5, True),
    ("cost", "cost\n(the order)", 2.5, True),
    ("tpot_s", "standard\nTPOT, ms", 1.15, False),
    ("ttft_p50_s", "TTFT\nP50, s", 1.0, False),
    ("ttft_p99_s", "TTFT\nP99, s", 1.0, False),
    ("slo_attainment", "SLO\nmet, %", 1.0, False),
)


class Use(NamedTuple):
    """A panel of the utilisation picture: a key of the summary, and the line of the operating point."""

    key: str
    label: str
    limit: float | None = None
    condition: str = ""
    demanded: str | None = None  # the same with stalls, drawn as an extension


USES = (
    Use(
        "prefill_utilisation",
        "prefill busy (+ stalled)",
        PREFILL_BUSY_LIMIT,
        "above 80 %",
        "prefill_demanded_utilisation",
    ),
    Use("decode_memory_utilisation", "decode memory", DECODE_MEMORY_LIMIT, "below 70 %"),
    Use("network_utilisation", "links of the busiest tier", 1.0, "at most 100 %"),
)
COLOCATED_USES = (
    Use("colocated_utilisation", "co-located busy"),
    Use("colocated_memory_utilisation", "co-located memory"),
)


def policy_styles(policies: list[str]) -> dict[str, Style]:
    """A style for each policy. It depends on the name alone, unless two names of others meet in one style."""
    styles: dict[str, Style] = {}
    for name in policies:
        if name in STYLES:
            styles[name] = STYLES[name]
            continue
        k = zlib.crc32(name.encode())
        order = [OTHER_STYLES[(k + i) % len(OTHER_STYLES)] for i in range(len(OTHER_STYLES))]
        styles[name] = next((style for style in order if style not in styles.values()), order[0])
    return styles


def _figure(width: float, height: float, title: str, note: str) -> Figure:
    """A figure with a title and a smaller note of up to two lines in its top left corner, sizes in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    top = 0.42 + 0.17 * len(note.splitlines())
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - top / height))
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    figure.text(0.1 / width, 1 - 0.08 / height, title, fontsize=11, va="top")
    figure.text(0.1 / width, 1 - 0.33 / height, note, fontsize=8.5, va="top", color="0.35")
    return figure


def _intervals(standings: list[Standing]) -> str:
    windows = len(standings[0].runs)
    return f"; whiskers: 95 % interval of the mean over {windows} windows" if windows > 1 else ""


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _policy_rows(axes: Axes, standings: list[Standing]) -> np.ndarray:
    """Policies from the top down, best first; their y positions."""
    y = np.arange(len(standings))
    axes.set_yticks(y, [s.policy for s in standings])
    axes.set_ylim(len(standings) - 0.4, -0.6)
    return y


def _array(values: list[float | None]) -> np.ndarray:
    """NaN where there is none."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _whisker(axes: Axes, y: float, low: float, high: float) -> None:
    """A 95 % interval; what is measured is not below 0. An arrow where it leaves the axis."""
    if not high > low:
        return
    low, end = max(low, 0.0), axes.get_xlim()[1]
    axes.plot([low, min(high, end)], [y, y], color="0.15", lw=1.1, solid_capstyle="butt")
    axes.plot([low], [y], "|", color="0.15", ms=6)
    axes.plot([min(high, end)], [y], "|" if high <= end else ">", color="0.15", ms=6 if high <= end else 4)


def _bar_limits(total: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """Length at which bars are cut, and the end of the axis with room for the intervals of the others."""
    known = total[~np.isnan(total)]
    if known.size == 0 or known.max() == 0:
        return 1.0, 1.0
    cut = min(known.max(), LONGEST_BAR * max(known.min(), 1e-9))
    ends = np.fmax(total, high)[total <= cut * (1 + 1e-9)]
    return float(cut), float(1.03 * min(max(ends.max(), cut), 1.6 * cut))


def _break_mark(axes: Axes, x: float, y: float, width: float) -> None:
    """A slanted gap through a bar."""
    for side in (-1, 1):
        edge = x + side * width / 2
        axes.plot([edge - width / 2, edge + width / 2], [y + 0.37, y - 0.37], color="0.15", lw=1, zorder=4)
    corners = [(x - width, y + 0.37), (x, y + 0.37), (x + width, y - 0.37), (x, y - 0.37)]
    axes.fill(*zip(*corners, strict=True), color="white", zorder=3)


def leaderboard_figure(standings: list[Standing], title: str) -> Figure:
    """Joint TPOT as stacked parts in the order of cost, the headline numbers beside it.

    A bar that is cut keeps the proportions of its parts, and a gap through its longest part says that it is cut.
    """
    total = _array([s.mean["joint_tpot_s"] for s in standings])
    low = _array([s.low["joint_tpot_s"] for s in standings])
    high = _array([s.high["joint_tpot_s"] for s in standings])
    cut, end = _bar_limits(total, high)
    note = "Rows: by mean cost (joint TPOT and penalties for missed limits), cheapest first. "
    note += f"Bars: mean joint TPOT in its three parts{_intervals(standings)}."
    is_cut = total > cut * (1 + 1e-9)
    if is_cut.any():
        note += "\nA bar with a slanted gap is cut short: its parts keep their proportions, the table has its length."
    figure = _figure(11.0, 1.95 + 0.42 * len(standings) + 0.17 * note.count("\n"), title, note)
    axes, side = figure.subplots(1, 2, width_ratios=(1, 1.4))
    y = _policy_rows(axes, standings)
    axes.set_xlim(0, end)
    parts = np.array([np.nan_to_num(_array([s.mean[metric] for s in standings])) for metric, *_ in PARTS])
    parts *= np.where(is_cut, cut / np.where(total > 0, total, 1.0), 1.0)  # (parts, policies)
    starts = np.cumsum(parts, axis=0) - parts
    for (_, label, colour), length, start in zip(PARTS, parts, starts, strict=True):
        axes.barh(y, length, left=start, height=0.62, color=colour, label=label)
    for k, value in enumerate(total):
        if np.isnan(value):
            axes.text(0, k, " no completed request", va="center", fontsize=9)
        elif is_cut[k]:
            longest = int(parts[:, k].argmax())
            _break_mark(axes, starts[longest, k] + parts[longest, k] / 2, k, 0.012 * end)
        else:
            _whisker(axes, k + 0.4, low[k], high[k])  # below the bar: a part may be narrower than the line
    axes.set_xlabel("joint TPOT, s")
    _plain(axes)
    _side_table(side, standings)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure


def _side_table(axes: Axes, standings: list[Standing]) -> None:
    axes.set_ylim(len(standings) - 0.4, -0.6)
    axes.set_xlim(0, sum(width for _, _, width, _ in SIDE_COLUMNS))
    axes.axis("off")
    right = 0.0
    for metric, head, width, interval in SIDE_COLUMNS:
        right += width
        axes.text(right, -0.62, head, ha="right", va="bottom", fontsize=8.5, color="0.35")
        for k, standing in enumerate(standings):
            shown = cell(standing, COLUMNS[metric])
            shown = shown if interval else shown.partition(" [")[0]
            axes.text(right, k, shown, ha="right", va="center", fontsize=8.5)


def _pooled(standing: Standing, name: str) -> np.ndarray:
    """The sample quantiles of all windows together, sorted, s."""
    return np.sort(np.concatenate([np.array(getattr(run, name), dtype=np.float64) for run in standing.runs]))


def _log_seconds(axes: Axes) -> None:
    """A logarithmic axis labelled 0.1, 0.2, 0.5, 1, …"""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.tick_params(axis="x", which="both", labelsize=8.5)


def latency_figure(standings: list[Standing], title: str) -> Figure:
    """Distribution of TTFT and standard TPOT, a curve a policy, with the limits."""
    windows = len(standings[0].runs)
    note = "Share of requests at or below a time" + (f", {windows} windows together" if windows > 1 else "")
    figure = _figure(11.0, 4.9, title, f"{note}. Legend: by mean cost, cheapest first.")
    sla = standings[0].runs[0].summary["sla"]
    styles = policy_styles([s.policy for s in standings])
    panels = (("ttft_cdf_s", "TTFT, s", sla["ttft_s"]), ("tpot_cdf_s", "standard TPOT, s", sla["tpot_s"]))
    axes_row = figure.subplots(1, 2, sharey=True)
    for axes, (name, label, limit) in zip(axes_row, panels, strict=True):
        for standing in standings:
            sample, style = _pooled(standing, name), styles[standing.policy]
            if sample.size:
                shares = np.linspace(0, 1, sample.size) if len(standing.runs) > 1 else CDF_SHARES
                (line,) = axes.plot(sample, 100 * shares, color=style.colour, lw=style.width, label=standing.policy)
                line.set(linestyle=style.dashes, zorder=3 - style.width / 10)
        axes.axvline(limit, color="0.4", lw=1)
        axes.annotate(
            f"limit {limit:g} s", (limit, 2), xytext=(-3, 0), textcoords="offset points",
            rotation=90, ha="right", va="bottom", fontsize=8.5, color="0.35",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )  # fmt: skip
        _log_seconds(axes)
        axes.set_xlabel(label)
        axes.set_ylim(0, 101)
        _plain(axes)
    axes_row[0].set_ylabel("requests at or below, %")
    handles, labels = axes_row[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 5),
            frameon=False, fontsize=9.5, handlelength=4.5,
        )  # fmt: skip
    return figure


def _use(standing: Standing, key: str) -> tuple[float, float]:
    """Mean over the windows and half width of its 95 % interval, %; NaN where there is none."""
    mean, half = mean_interval([run.summary.get(key) for run in standing.runs])
    return float(100 * _array([mean])[0]), float(100 * _array([half])[0])


def utilisation_figure(standings: list[Standing], title: str) -> Figure:
    """Pools and network, a panel each, with the line that the operating point draws."""
    hybrid = any(run.summary.get("colocated_utilisation") is not None for s in standings for run in s.runs)
    uses = USES + COLOCATED_USES if hybrid else USES
    note = "Rows: by mean cost, cheapest first. Bars: mean over the window"
    note += f"{_intervals(standings)}.\nHatched: prefill stalled for staging memory; it counts as demanded. "
    note += "Dashed: the operating point."
    figure = _figure(11.0, 2.1 + 0.36 * len(standings), title, note)
    for axes, use in zip(figure.subplots(1, len(uses), sharey=True), uses, strict=True):
        _use_panel(axes, standings, use)
    return figure


def _use_panel(axes: Axes, standings: list[Standing], use: Use) -> None:
    _policy_rows(axes, standings)
    axes.set_xlim(0, 108)
    for k, standing in enumerate(standings):
        value, half = _use(standing, use.key)
        if np.isnan(value):
            axes.text(2, k, "–", va="center", fontsize=9)
            continue
        axes.barh(k, value, height=0.62, color="#8CCBEF")
        label, end = f"{value:.1f} %", value
        if use.demanded is not None:
            stalled = _use(standing, use.demanded)[0] - value
            if stalled >= 0.05:
                axes.barh(
                    k, stalled, left=value, height=0.62,
                    facecolor="#FBE3B5", edgecolor="#B06F00", hatch="////", lw=0.5,
                )  # fmt: skip
                label, end = f"{label} + {stalled:.1f} %", value + stalled
        if use.key == "network_utilisation":
            label += " " + Counter(run.summary["busiest_tier"] for run in standing.runs).most_common(1)[0][0]
        _whisker(axes, k, value - half, value + half)
        end = max(end, value + np.nan_to_num(half))
        axes.text(2 if end > 45 else end + 2, k, label, va="center", fontsize=8.5)
    if use.limit is not None:
        axes.axvline(100 * use.limit, color="#D55E00", lw=1.5, ls="--")
    axes.set_title(use.label, fontsize=9)
    axes.set_xlabel(use.condition and f"dashed: {use.condition}", fontsize=8.5, color="0.35")
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.tick_params(axis="x", labelsize=8)
    _plain(axes)


def file_stem(scenario: str) -> str:
    """A scenario's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", scenario).strip("-.") or "scenario"


def write_report(comparison: Comparison, path: str | Path) -> None:
    """Write the report of a comparison into a folder, each file whole.

    `index.html` is the page, `leaderboard.md` the same in Markdown with three pictures a scenario, `results.csv` has a
    row a run, `results.json` everything.

    Raises:
        InputError: the folder cannot be written.
    """
    from pdenv.bench.page import write_page  # which takes its styles from here

    with atomic.directory(path) as folder:
        sections = [_pictures(comparison, scenario, folder) for scenario in comparison.scenarios]
        text = (
            "# Leaderboard\n\n"
            + "\n".join([markdown_overall(comparison), *sections])
            + "\n## Definitions\n\n"
            + markdown_definitions()
        )
        (folder / "leaderboard.md").write_text(text, encoding="utf-8")
        write_results(comparison, folder)
        write_page(comparison, folder / "index.html")


def _pictures(comparison: Comparison, scenario: str, folder: Path) -> str:
    """Draw the pictures of a scenario into the folder; its section of the Markdown leaderboard."""
    standings = comparison.leaderboard(scenario)
    earlier = [file_stem(other) for other in comparison.scenarios[: comparison.scenarios.index(scenario)]]
    stem = file_stem(scenario)
    if stem in earlier:
        stem = f"{stem}-{len(earlier) + 1}"
    finished = [s for s in standings if not s.failed]
    if not finished:
        return markdown(comparison, scenario)
    failed = ", ".join(s.policy for s in standings if s.failed)
    title = heading(comparison, scenario) + (f"; failed: {failed}" if failed else "")
    figures = {"leaderboard": leaderboard_figure, "latency": latency_figure, "utilisation": utilisation_figure}
    with _any_name():
        for kind, drawn in figures.items():
            drawn(finished, title).savefig(folder / f"{stem}-{kind}.png")
    return markdown(comparison, scenario, f"{stem}-leaderboard.png")


@contextmanager
def _any_name() -> Iterator[None]:
    """Names are drawn as they are, a box for what the font lacks."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")
        yield
