"""Pictures of a comparison, and the report folder that holds them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pdenv import atomic
from pdenv.bench.compare import CDF_SHARES, Comparison, Standing
from pdenv.bench.tables import heading, markdown, markdown_definitions, number
from pdenv.metrics import DECODE_MEMORY_LIMIT, PREFILL_BUSY_LIMIT, to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with every common colour vision; dashes help in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
PARTS = (
    ("prefill_part_s", "prefill: queue and compute", "#0072B2"),
    ("transfer_part_s", "exposed transfer and admission", "#E69F00"),
    ("decode_part_s", "decode, per token", "#009E73"),
)
#: Bars longer than this many times the best one are cut, so that the others can be read.
LONGEST_BAR = 6.0

SIDE_COLUMNS = (
    ("cost", "cost", 1.0, ""),
    ("tpot_s", "standard\nTPOT, ms", 1e3, ""),
    ("ttft_p50_s", "TTFT\nP50, s", 1.0, ""),
    ("ttft_p99_s", "TTFT\nP99, s", 1.0, ""),
    ("slo_attainment", "SLO\nmet", 100.0, " %"),
)
USES = (
    ("prefill_utilisation", "prefill busy", PREFILL_BUSY_LIMIT, "above 80 %"),
    ("prefill_demanded_utilisation", "prefill demanded", PREFILL_BUSY_LIMIT, "conflict if above 80 %"),
    ("decode_memory_utilisation", "decode memory", DECODE_MEMORY_LIMIT, "below 70 %"),
    ("network_utilisation", "network use of the\nachievable min-cut", 1.0, "at most 100 %"),
)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


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


def _values(standings: list[Standing], metric: str) -> np.ndarray:
    """`(policies,)` means, NaN where there is none."""
    return np.array([np.nan if (v := s.mean[metric]) is None else v for s in standings], dtype=np.float64)


def leaderboard_figure(standings: list[Standing], title: str) -> Figure:
    """Joint TPOT as stacked parts, the other headline numbers beside it."""
    figure = _figure(10.5, 1.9 + 0.42 * len(standings))
    axes, side = figure.subplots(1, 2, width_ratios=(1.5, 1))
    y = _policy_rows(axes, standings)
    total = _values(standings, "joint_tpot_s")
    left = np.zeros(len(standings))
    for metric, label, colour in PARTS:
        part = np.nan_to_num(_values(standings, metric))
        axes.barh(y, part, left=left, height=0.62, color=colour, label=label)
        left += part
    known = total[~np.isnan(total)]
    limit = 1.0 if known.size == 0 or known.max() == 0 else min(known.max(), LONGEST_BAR * max(known.min(), 1e-9))
    axes.set_xlim(0, 1.22 * limit)
    for k, value in enumerate(total):
        if np.isnan(value):
            axes.text(0, k, " no completed request", va="center", fontsize=9)
        else:
            cut = value > 1.001 * limit
            label = f"{number(float(value))} s" + (" (bar cut)" if cut else "")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if cut else None
            x, align = (1.21 * limit, "right") if cut else (value + 0.012 * limit, "left")
            axes.text(x, k, label, va="center", ha=align, fontsize=9, bbox=box)
    axes.set_xlabel("joint TPOT, s (mean)")
    _plain(axes)
    _side_table(side, standings)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure


def _side_table(axes: Axes, standings: list[Standing]) -> None:
    axes.set_ylim(len(standings) - 0.4, -0.6)
    axes.set_xlim(0, len(SIDE_COLUMNS))
    axes.axis("off")
    for i, (metric, head, scale, unit) in enumerate(SIDE_COLUMNS):
        axes.text(i + 0.95, -0.62, head, ha="right", va="bottom", fontsize=8.5, color="0.35")
        for k, standing in enumerate(standings):
            value = standing.mean[metric]
            shown = number(None) if value is None else number(float(value * scale)) + unit
            if unit and value is not None:
                shown = f"{value * scale:.1f}{unit}"
            axes.text(i + 0.95, k, shown, ha="right", va="center", fontsize=9, weight="bold" if k == 0 else "normal")


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


def latency_figure(standings: list[Standing], title: str, policies: list[str]) -> Figure:
    """Distribution of TTFT and standard TPOT, a curve a policy, with the limits.

    A policy keeps the colour of its place in `policies` in all pictures of a report.
    """
    figure = _figure(10.5, 4.6)
    sla = standings[0].runs[0].summary["sla"]
    panels = (("ttft_cdf_s", "TTFT, s", sla["ttft_s"]), ("tpot_cdf_s", "standard TPOT, s", sla["tpot_s"]))
    axes_row = figure.subplots(1, 2, sharey=True)
    for axes, (name, label, limit) in zip(axes_row, panels, strict=True):
        for standing in standings:
            k = policies.index(standing.policy)
            sample = _pooled(standing, name)
            if sample.size:
                shares = np.linspace(0, 1, sample.size) if len(standing.runs) > 1 else CDF_SHARES
                style = DASHES[k % len(DASHES)]
                colour = COLOURS[k % len(COLOURS)]
                axes.plot(sample, 100 * shares, style, color=colour, lw=1.8, label=standing.policy)
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
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    handles, labels = axes_row[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False, fontsize=9)
    return figure


def utilisation_figure(standings: list[Standing], title: str) -> Figure:
    """The pools and the network, a panel each, with the line that the operating point draws."""
    figure = _figure(10.5, 1.9 + 0.36 * len(standings))
    row = figure.subplots(1, len(USES), sharey=True)
    for axes, (metric, label, limit, condition) in zip(row, USES, strict=True):
        y = _policy_rows(axes, standings)
        values = 100 * _values(standings, metric)
        axes.barh(y, np.nan_to_num(values), height=0.62, color="#56B4E9")
        for k, value in enumerate(values):
            axes.text(2, k, "–" if np.isnan(value) else f"{value:.1f} %", va="center", fontsize=9)
        axes.axvline(100 * limit, color="#D55E00", lw=1.5, ls="--")
        axes.set_xlim(0, 108)
        axes.set_title(label, fontsize=9.5)
        axes.set_xlabel(f"dashed: {condition}", fontsize=8.5, color="0.35")
        axes.xaxis.set_major_formatter("{x:.0f} %")
        axes.tick_params(axis="x", labelsize=8.5)
        _plain(axes)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def file_stem(scenario: str) -> str:
    """A scenario's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", scenario).strip("-.") or "scenario"


def write_report(comparison: Comparison, path: str | Path) -> None:
    """Write `leaderboard.md`, `results.json` and three pictures a scenario into a folder, each file whole.

    Raises:
        InputError: the folder cannot be written.
    """
    sections = []
    with atomic.directory(path) as folder:
        for i, scenario in enumerate(comparison.scenarios):
            standings = comparison.leaderboard(scenario)
            stem = file_stem(scenario)
            if stem in [file_stem(other) for other in comparison.scenarios[:i]]:
                stem = f"{stem}-{i + 1}"
            title = heading(comparison, scenario)
            leaderboard_figure(standings, title).savefig(folder / f"{stem}-leaderboard.png")
            latency_figure(standings, title, comparison.policies).savefig(folder / f"{stem}-latency.png")
            utilisation_figure(standings, title).savefig(folder / f"{stem}-utilisation.png")
            sections.append(markdown(comparison, scenario, f"{stem}-leaderboard.png"))
        text = "# Leaderboard\n\n" + "\n".join(sections) + "\n## Definitions\n\n" + markdown_definitions()
        (folder / "leaderboard.md").write_text(text, encoding="utf-8")
        (folder / "results.json").write_text(to_json(comparison.to_dict()), encoding="utf-8")
