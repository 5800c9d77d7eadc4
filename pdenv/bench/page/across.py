"""All scenarios together: one number a policy, and every policy in every scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdenv.bench.page import tracks, words
from pdenv.bench.page.markup import Html, element, table
from pdenv.bench.page.pieces import (
    Styles,
    head_cell,
    interval_text,
    name_cell,
    note,
    number_cell,
    plot_cell,
)
from pdenv.bench.tables import number

if TYPE_CHECKING:
    from pdenv.bench.results import Comparison, Overall, Standing

#: Ratios of costs, above and below 1, from which on a cell has its darkest tint.
DARKEST = (3.0, 0.6)


def overall(ranking: Sequence[Overall], comparison: Comparison, boards: words.Boards, styles: Styles) -> Html:
    """All scenarios together: one number a policy, and every policy in every scenario."""
    parts: list[Html] = []
    if ranking:
        parts.append(
            note(
                "Interquartile mean over the scenarios of mean cost divided by that of three-part: half of the "
                "scenarios, those in the middle, count. Lower is better; the line is a 95 % interval."
            )
        )
        parts.append(_overall_table(ranking, comparison, styles))
    parts.append(element("h3", "Every policy in every scenario"))
    parts.append(
        note(
            "Mean cost as a multiple of that of the scenario's best heuristic. = marks what is not told apart from it, "
            "after correction for the number of policies."
        )
    )
    parts.append(_scenario_table([row.policy for row in ranking] or comparison.policies, comparison, boards, styles))
    return element("section", element("h2", "All scenarios"), *parts, id="overall")


def _overall_table(ranking: Sequence[Overall], comparison: Comparison, styles: Styles) -> Html:
    entries = {entry.name: entry for entry in comparison.entries}
    scale = tracks.scale_of(v for row in ranking for v in (row.iqm, row.low, row.high))
    rows = []
    for row in ranking:
        style, entry = styles[row.policy], entries[row.policy]
        drawing = tracks.whisker(scale, row.iqm, row.low, row.high, style.colour)
        cells = (
            plot_cell(tracks.track(scale, [drawing], f"{row.policy}: {number(row.iqm)}")),
            number_cell(f"× {number(row.iqm)}", interval_text(row.low, row.high)),
            number_cell(f"× {number(row.worst)}", row.worst_in),
            number_cell(str(row.scenarios)),
        )
        rows.append(element("tr", name_cell(row.policy, style, entry.kind), *cells))
    head = [
        head_cell("policy", number_column=False),
        element("th", "relative cost", tracks.axis(scale), scope="col", class_="plot"),
        head_cell("relative cost"),
        head_cell("worst scenario"),
        head_cell("scenarios"),
    ]
    return table(head, rows, "Policies over all scenarios", class_="chart")


def _scenario_table(policies: Sequence[str], comparison: Comparison, boards: words.Boards, styles: Styles) -> Html:
    entries = {entry.name: entry for entry in comparison.entries}
    order = [*policies, *(name for name in comparison.policies if name not in policies)]
    found = {name: {s.policy: s for s in board} for name, board in boards.items()}
    rows = []
    for policy in order:
        cells = [_ratio_cell(found[scenario].get(policy), scenario) for scenario in boards]
        rows.append(element("tr", name_cell(policy, styles[policy], entries[policy].kind), *cells))
    links = [
        element("th", element("a", name, href=f"#scenario-{k}"), scope="col", class_="n")
        for k, name in enumerate(boards, 1)
    ]
    return table([head_cell("policy", number_column=False), *links], rows, "Relative cost in each scenario")


def _ratio_cell(standing: Standing | None, scenario: str) -> Html:
    if standing is None:
        return element("td", "", class_="n")
    if standing.relative is None:
        return element("td", "failed" if standing.failed else "–", class_="n")
    mid, low, high = standing.relative
    side = "better" if mid < 1 else "worse"
    depth = min((mid - 1) / (DARKEST[mid < 1] - 1), 1.0)
    tie = "= " if standing.tied else ""
    tip = f"{standing.policy} in {scenario}: × {mid:.4g}"
    tip += "" if low is None or high is None else f", 95 % interval {low:.4g} to {high:.4g}"
    shown = f"{mid:.2f}" if mid < 10 else f"{mid:.0f}"
    style = f"--depth:{0.08 + 0.5 * depth:.2f}" if not standing.tied and mid != 1 else None
    return element("td", tie + shown, class_=f"n {side}" + (" best" if mid == 1 else ""), style=style, data_tip=tip)
