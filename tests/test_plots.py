"""Pictures: bars as long as their numbers, a style for a name, nothing cut off and nothing on top of a label."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text

from pdenv.bench import plots
from pdenv.bench.results import METRICS, Run, Standing
from pdenv.sim.rules import RULES


def standing(
    policy: str,
    parts: tuple[float, float, float] | None,
    half: float | None = None,
    shares: dict[str, float | None] | None = None,
) -> Standing:
    """A policy with the given parts of joint TPOT (s), an interval on their sum, and utilisations (shares of 1)."""
    mean: dict[str, Any] = dict.fromkeys(METRICS, 0.5)
    names = ("prefill_part_s", "transfer_part_s", "decode_part_s")
    mean |= dict(zip(names, parts or (None,) * 3, strict=True))
    mean["joint_tpot_s"] = None if parts is None else sum(parts)
    low, high = dict.fromkeys(METRICS), dict.fromkeys(METRICS)
    if half is not None:
        low["joint_tpot_s"], high["joint_tpot_s"] = sum(parts or ()) - half, sum(parts or ()) + half
    use = {"prefill_utilisation": 0.5, "prefill_demanded_utilisation": 0.5, "decode_memory_utilisation": 0.5}
    summary = {
        "sla": {"ttft_s": 8.0, "tpot_s": 0.05},
        "network_utilisation": 0.5,
        "busiest_tier": "nic",
        **use,
        **(shares or {}),
    }
    cdf = np.geomspace(0.01, 10, 201).tolist()
    runs = [Run("toy", policy, window, summary, cdf, cdf) for window in range(1 if half is None else 3)]
    return Standing(policy, "heuristic", mean, low, high, None, None, False, 0, runs)


def bars(figure: Figure) -> dict[int, list[tuple[float, float]]]:
    """(start, length) of the parts of each row of the leaderboard's bars."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for patch in figure.axes[0].patches:
        if isinstance(patch, Rectangle):
            rows.setdefault(round(patch.get_y() + patch.get_height() / 2), []).append(
                (patch.get_x(), patch.get_width())
            )
    return rows


def gaps(figure: Figure) -> list[int]:
    """Rows with a break mark."""
    shapes = [patch for patch in figure.axes[0].patches if isinstance(patch, Polygon)]
    return [round(float(shape.get_xy()[:4, 1].mean())) for shape in shapes]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


# ---- the leaderboard --------------------------------------------------------------------------------------


def test_bars_are_as_long_as_their_parts_and_none_is_cut_below_the_limit():
    longest = plots.LONGEST_BAR
    figure = plots.leaderboard_figure([standing("a", (0.6, 0.3, 0.1)), standing("b", (0.0, longest, 0.0))], "t")
    assert np.array(bars(figure)[0]) == pytest.approx(np.array([(0.0, 0.6), (0.6, 0.3), (0.9, 0.1)]))
    assert bars(figure)[1][1] == (0.0, longest)
    assert gaps(figure) == []
    assert figure.axes[0].get_xlim()[1] > longest
    assert not any("cut" in text for text in texts(figure))


def test_a_cut_bar_keeps_the_proportions_of_its_parts_and_its_number():
    figure = plots.leaderboard_figure([standing("a", (0.6, 0.3, 0.1)), standing("b", (10.0, 29.0, 1.0))], "t")
    lengths = [length for _, length in bars(figure)[1]]
    assert sum(lengths) == pytest.approx(plots.LONGEST_BAR)
    assert np.array(lengths) / sum(lengths) == pytest.approx([0.25, 0.725, 0.025])
    assert gaps(figure) == [1]
    assert "40.00" in texts(figure)
    assert any("cut short" in text for text in texts(figure))


def test_whiskers_are_the_interval_and_stop_at_zero():
    figure = plots.leaderboard_figure([standing("a", (1.0, 0.5, 0.5), 0.5), standing("b", (2.0, 1.0, 0.0), 4.0)], "t")
    spans = [tuple(line.get_xdata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    end = figure.axes[0].get_xlim()[1]
    assert spans[0] == (1.5, 2.5)
    assert spans[1] == (0.0, min(7.0, end))
    assert [line.get_marker() for line in figure.axes[0].lines].count(">") == (end < 7.0)
    assert any("95 % interval" in text for text in texts(figure))
    assert "2.000 [1.500, 2.500]" in texts(figure)


def test_one_window_has_no_whiskers():
    figure = plots.leaderboard_figure([standing("a", (1.0, 0.5, 0.5))], "t")
    assert not figure.axes[0].lines
    assert not any("95 %" in text for text in texts(figure))


def test_the_order_is_said_and_a_policy_without_requests_too():
    shown = texts(plots.leaderboard_figure([standing("a", (1.0, 0.5, 0.5)), standing("b", None)], "t"))
    assert any("Rows: by mean cost" in text for text in shown)
    assert " no completed request" in shown


# ---- styles -----------------------------------------------------------------------------------------------


def test_a_policy_looks_the_same_in_every_report():
    few, many = plots.policy_styles(["greedy", "mine"]), plots.policy_styles(["mine", "random", "greedy"])
    assert few["greedy"] == many["greedy"] == plots.STYLES["greedy"]
    assert few["mine"] == many["mine"]


def test_every_rule_has_a_style_and_none_has_that_of_another():
    assert set(plots.STYLES) == set(RULES)
    others = [f"mine-{i}" for i in range(len(plots.OTHER_STYLES))]
    styles = plots.policy_styles([*RULES, *others]).values()
    assert len(set(styles)) == len(styles)
    assert len({(s.dashes, s.width) for s in plots.STYLES.values()}) == len(plots.STYLES)  # also without colour


def test_curves_of_one_policy_share_a_style_and_the_wide_ones_lie_below():
    figure = plots.latency_figure([standing("greedy", (1, 0, 0)), standing("three-part", (2, 0, 0))], "t")
    for axes in figure.axes:
        greedy, three_part = axes.lines[:2]
        assert greedy.get_color() == plots.STYLES["greedy"].colour
        assert greedy.get_linewidth() < three_part.get_linewidth()
        assert greedy.get_zorder() > three_part.get_zorder()


# ---- utilisation ------------------------------------------------------------------------------------------


def test_stalled_prefill_extends_the_busy_bar_hatched():
    shares = {"prefill_utilisation": 0.6, "prefill_demanded_utilisation": 0.85}
    figure = plots.utilisation_figure([standing("a", (1, 0, 0), shares=shares), standing("b", (1, 0, 0))], "t")
    panel = figure.axes[0]
    assert [(p.get_x(), p.get_width(), p.get_hatch()) for p in panel.patches] == [
        (0.0, 60.0, None),
        (60.0, pytest.approx(25.0), "////"),
        (0.0, 50.0, None),
    ]
    assert "60.0 % + 25.0 %" in texts(figure)
    assert "50.0 % nic" in texts(figure)
    assert len(figure.axes) == 3


def test_colocated_instances_have_panels_of_their_own_where_there_are_any():
    none = (*(use.key for use in plots.USES), "prefill_demanded_utilisation")
    shares: dict[str, float | None] = dict.fromkeys(none)
    own = {"colocated_utilisation": 0.9, "colocated_memory_utilisation": 0.2}
    rows = [standing("a", (1, 0, 0)), standing("colocated", (1, 0, 0), shares={**shares, **own})]
    panels = plots.utilisation_figure(rows, "t").axes
    assert [[p.get_width() for p in panel.patches] for panel in panels] == [[50.0]] * 3 + [[90.0], [20.0]]


# ---- legible ----------------------------------------------------------------------------------------------

CROWD = [
    standing(policy, (0.5 * 1.7**k, 0.2 * k, 0.01), 0.1 * 2.2**k, {"prefill_demanded_utilisation": 0.5 + 0.05 * k})
    for k, policy in enumerate([*RULES, "a-rather-long-policy-name"])
]


def labels_past_the_ends(axes: Axes) -> list[Text]:
    """Of ticks that exist but lie beyond the axis, so that they are not drawn."""
    labels = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            labels += [] if low <= tick.get_loc() <= high else [tick.label1]
    return labels


@pytest.mark.parametrize("draw", [plots.leaderboard_figure, plots.latency_figure, plots.utilisation_figure])
@pytest.mark.parametrize("rows", [CROWD[:1], CROWD], ids=["one", "many"])
def test_no_text_is_cut_off_or_on_top_of_another(draw, rows):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw(rows, "operating-point: poisson 14.5/s, mooncake-conversation, 4,000 requests measured, 3 windows")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    undrawn = {id(label) for axes in figure.axes for label in labels_past_the_ends(axes)}
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in undrawn
    ]
    assert len(boxes) > 5
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), (one, other)
