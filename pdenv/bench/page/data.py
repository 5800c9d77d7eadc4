"""The numbers that the page's charts draw, rounded to what can be seen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pdenv.bench.plots import Style

if TYPE_CHECKING:
    from pdenv.bench.results import Run, Standing

#: Cumulative shares at which distributions are drawn.
SHARES = np.array([*np.arange(0.0, 1.0, 0.01), 0.995, 1.0])
#: Points in time of the utilisation charts.
POINTS = 60
#: Policies whose curves are shown before the reader chooses.
SHOWN = 6
#: The three panels of utilisation: field of Series, title.
PANELS = (
    ("prefill_busy", "Prefill busy"),
    ("decode_memory", "Decode memory in use"),
    ("network", "Busiest links"),
)
_DASHES = {"-": (), "--": (3.7, 1.6), "-.": (6.4, 1.6, 1.0, 1.6), ":": (1.0, 1.65)}


def rounded(values: Any) -> Any:
    """Four significant digits all the way down; None where a number does not exist."""
    if isinstance(values, np.ndarray | list | tuple):
        return [rounded(value) for value in values]
    if values is None or not math.isfinite(values):
        return None
    short = float(f"{values:.4g}")
    return int(short) if short == int(short) else short


def dashes(style: Style) -> str:
    """Matplotlib's dashes as those of SVG: lengths grow with the line's width."""
    lengths = _DASHES[style.dashes] if isinstance(style.dashes, str) else style.dashes[1]
    return " ".join(f"{length * line_width(style):.3g}" for length in lengths)


def line_width(style: Style) -> float:
    """Points of a picture as pixels of the page, where lines are shorter."""
    return 0.75 * style.width


def distribution(runs: Sequence[Run], name: str) -> list[float] | None:
    """Times (s) at SHARES of the requests of all windows together; None without a sample."""
    samples = [np.array(getattr(run, name), dtype=np.float64) for run in runs]
    pooled = np.concatenate([sample for sample in samples if sample.size] or [np.empty(0)])
    return rounded(np.quantile(pooled, SHARES)) if pooled.size else None


def time_grid(standings: Sequence[Standing]) -> np.ndarray:
    """(POINTS,) seconds from 0 to the end of the longest run that has a series."""
    ends = [run.series.time_s[-1] for s in standings for run in s.runs if run.series and run.series.time_s]
    return np.linspace(0.0, max(ends, default=1.0), POINTS)


def over_time(runs: Sequence[Run], field: str, grid: np.ndarray) -> dict[str, Any] | None:
    """Mean over the windows and its band (10th to 90th percentile) at each time, %.

    A time counts while at least half of the windows last.
    """
    series = [run.series for run in runs if run.series]
    rows = [_at(grid, one.time_s, getattr(one, field)) for one in series if getattr(one, field)]
    if not rows or np.isnan(rows).all():
        return None
    table = np.array(rows)  # (windows, POINTS) %
    enough = (~np.isnan(table)).sum(axis=0) * 2 >= len(rows)
    seen = table[:, enough]
    curve = {"mean": rounded(np.nanmean(seen, axis=0))}
    if len(rows) > 1:
        low, high = np.nanquantile(seen, (0.1, 0.9), axis=0)
        curve |= {"low": rounded(low), "high": rounded(high)}
    return curve


def _at(grid: np.ndarray, ends_s: Sequence[float], shares: Sequence[float | None]) -> np.ndarray:
    """Values at the middle of their intervals (which end at `ends_s`) brought onto a grid, %; NaN after the end."""
    edges = np.array([0.0, *ends_s])
    middle = (edges[:-1] + edges[1:]) / 2
    percent = 100 * np.array(shares, dtype=np.float64)
    times, values = [0.0, *middle, edges[-1]], [percent[0], *percent, percent[-1]]
    return np.interp(grid, times, values, right=np.nan)


def shown_first(standings: Sequence[Standing]) -> list[int]:
    """Rows whose curves are shown at first: those not heuristics, three-part, and the cheapest others."""
    ranked = range(len(standings))
    wanted = [i for i in ranked if standings[i].kind != "heuristic" or standings[i].policy == "three-part"]
    wanted = [i for i in ranked if standings[i].kind == "heuristic"][:1] + wanted
    return sorted(list(dict.fromkeys([*wanted, *ranked]))[:SHOWN])


def point(standing: Standing) -> list[float | None]:
    """Cost and goodput with the ends of their intervals: what the scatter chart draws."""
    ends = (standing.mean, standing.low, standing.high)
    return rounded([values[name] for name in ("cost", "goodput_rps") for values in ends])


def charts(standings: Sequence[Standing], styles: dict[str, Style]) -> dict[str, Any]:
    """Everything that the charts of one scenario draw."""
    summaries = (run.summary for s in standings for run in s.runs if run.summary)
    sla = next((summary["sla"] for summary in summaries), {"ttft_s": None, "tpot_s": None})
    grid = time_grid(standings)
    return {
        "policies": [
            {
                "name": s.policy,
                "colour": styles[s.policy].colour,
                "dashes": dashes(styles[s.policy]),
                "width": line_width(styles[s.policy]),
            }
            for s in standings
        ],
        "shown": shown_first(standings),
        "ttft": {"limit": sla["ttft_s"], "curves": [distribution(s.runs, "ttft_cdf_s") for s in standings]},
        "tpot": {"limit": sla["tpot_s"], "curves": [distribution(s.runs, "tpot_cdf_s") for s in standings]},
        "time": rounded(grid),
        **{field: [over_time(s.runs, field, grid) for s in standings] for field, _ in PANELS},
        "points": [point(s) for s in standings],
    }


def script_text(data: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
