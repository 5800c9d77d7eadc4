"""Leaderboards and summaries as Rich tables and Markdown, with the definition beside every number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdenv.bench.results import BASE, Comparison, Failure, Overall, Standing
from pdenv.bench.statistics import ROUGH_BELOW, can_tell, fewest_to_tell
from pdenv.definitions import DEFINITIONS
from pdenv.metrics import percent

ONE_TABLE_WIDTH = 140  # columns from which the leaderboard is one table


@dataclass(frozen=True)
class Column:
    """One column of the leaderboard."""

    metric: str  # key of compare.METRICS
    head: str
    unit: str  # s, ms, % or nothing
    definition: str  # key of DEFINITIONS
    interval: bool = False  # shown where there is little room, too


LATENCY = (
    Column("cost", "cost", "", "cost", interval=True),
    Column("joint_tpot_s", "joint TPOT", "s", "joint_tpot_s", interval=True),
    Column("prefill_part_s", "= prefill", "s", "joint_tpot_s"),
    Column("transfer_part_s", "+ transfer", "s", "joint_tpot_s"),
    Column("decode_part_s", "+ decode", "s", "joint_tpot_s"),
    Column("tpot_s", "standard TPOT", "ms", "tpot_s"),
    Column("ttft_p50_s", "TTFT P50", "s", "ttft_s"),
    Column("ttft_p99_s", "TTFT P99", "s", "ttft_s"),
)
RESOURCES = (
    Column("slo_attainment", "SLO met", "%", "slo_attainment"),
    Column("prefill_utilisation", "prefill busy", "%", "prefill_utilisation"),
    Column("prefill_demanded_utilisation", "prefill demanded", "%", "prefill_demanded_utilisation"),
    Column("decode_memory_utilisation", "decode memory", "%", "decode_memory_utilisation"),
    Column("network_utilisation", "busiest links", "%", "network_utilisation"),
    Column("compressed_share", "KV compressed", "%", "compressed_share"),
)
#: Beside the cost: relative to the best heuristic.
RELATIVE = Column("relative", "vs best", "", "relative", interval=True)
COLUMNS = (LATENCY[0], RELATIVE, *LATENCY[1:], *RESOURCES)
RELATIVE_TEXT = (
    "ratio of mean cost to that of the best heuristic (intervals draw windows in pairs); = marks a tie: no difference "
    "at 5 % (exchanging the two policies in each window, Holm's correction for the number of policies)"
)
_SCALE = {"ms": 1e3, "%": 100.0}


def _decimals(value: float) -> int:
    size = abs(value)
    return 3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0


def number(value: float | None) -> str:
    """About three significant digits; a dash for what does not exist."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 0.001 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.{_decimals(value)}f}" if value else "0"


def cell(standing: Standing, column: Column, every: bool = False) -> str:
    """Mean, with its interval where there are several windows.

    Args:
        every: also in columns that leave their interval out where there is little room.
    """
    if column is RELATIVE:
        return relative_cell(standing)
    name = column.metric
    value, low, high = standing.mean[name], standing.low[name], standing.high[name]
    if value is None:
        return "–"
    shown = _shown(value, column.unit)
    if low is not None and high is not None and (every or column.interval):
        shown += f" [{_shown(low, column.unit)}, {_shown(high, column.unit)}]"
    return f"{shown} {_busiest_links(standing)}" if name == "network_utilisation" else shown


def _shown(value: float, unit: str) -> str:
    if unit == "%":
        return percent(value).removesuffix(" %")
    return number(float(value * _SCALE.get(unit, 1.0)))


def relative_cell(standing: Standing) -> str:
    """Mean cost over that of the best heuristic, with its interval; "=" marks a tie with it."""
    if standing.relative is None:
        return "–"
    mid, low, high = standing.relative
    tie = "= " if standing.tied else ""
    return f"{tie}{mid:.3f}" + ("" if low is None or high is None or low == high else f" [{low:.3f}, {high:.3f}]")


def _name(standing: Standing) -> str:
    """The policy, with what it is if it is no heuristic, and in how many windows it failed."""
    name = standing.policy if standing.kind == "heuristic" else f"{standing.policy} ({standing.kind})"
    return f"{name} FAILED {standing.failed}/{len(standing.runs)}" if standing.failed else name


def _busiest_links(standing: Standing) -> str:
    """The links that are the busiest in most windows."""
    return Counter(run.summary["busiest_tier"] for run in standing.runs if run.summary).most_common(1)[0][0]


def _head(column: Column) -> str:
    """The parts of joint TPOT keep their sign on one line, other heads break at every space."""
    return column.head if column.head.startswith(("=", "+")) else column.head.replace(" ", "\n")


def _fitting(columns: tuple[Column, ...], standings: list[Standing], width: int) -> list[list[Column]]:
    """Columns in their order, broken into tables that fit the width."""
    free = width - max(len("policy"), *(len(_name(s)) for s in standings)) - 3
    groups: list[list[Column]] = [[]]
    used = 0
    for column in columns:
        lines = [*_head(column).splitlines(), column.unit, *(cell(s, column) for s in standings)]
        needed = max(len(line) for line in lines) + 3
        if groups[-1] and used + needed > free:
            groups.append([])
            used = 0
        groups[-1].append(column)
        used += needed
    return groups


def _table(columns: list[Column], standings: list[Standing]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(f"{_head(column)}\n{column.unit}".rstrip(), justify="right", no_wrap=True, vertical="bottom")
    for rank, standing in enumerate(standings):
        style = "bold" if rank == 0 else ""
        table.add_row(_name(standing), *(cell(standing, c) for c in columns), style=style)
    return table


def heading(comparison: Comparison, scenario: str) -> str:
    """Scenario, workload, number of requests and windows in one line."""
    found = [run.summary for run in comparison.runs if run.scenario == scenario and run.summary]
    if not found:
        return f"{scenario}: every policy failed"
    summary = found[0]
    scale = "" if summary["rate_scale"] == 1.0 else f", arrivals × {summary['rate_scale']:.3g}"
    windows = "" if comparison.windows == 1 else f", {comparison.windows} windows (mean [95 % interval])"
    return f"{scenario}: {summary['workload']}, {summary['requests']:,} requests measured{scale}{windows}"


def caveats(comparison: Comparison) -> list[str]:
    """What intervals and ties of so many windows are worth, and what parameters policies ran with."""
    lines = []
    if comparison.windows == 1:
        lines.append("One window: no intervals, and no telling of chance; compare at least 10 windows")
    elif comparison.windows == 2:
        lines.append("Intervals of two windows are just their range; compare at least 10")
    elif comparison.windows < ROUGH_BELOW:
        lines.append("Intervals of fewer than 10 windows are rough")
    most = max(len(comparison.leaderboard(name)) for name in comparison.scenarios)
    if comparison.windows > 1 and most > 1 and not can_tell(comparison.windows, most):
        lines.append(
            f"Too few windows to tell {most - 1} other{'s' * (most > 2)} from the best policy: ties are marked "
            f"from {fewest_to_tell(most)} windows on"
        )
    if comparison.suite is not None:
        tuned = [entry.name for entry in comparison.entries if entry.tuned]
        which = f"tuned parameters for {', '.join(tuned)}" if tuned else "default parameters"
        lines.append(f"Suite {comparison.suite}: {which}")
    return lines


def _state(met: bool | None) -> str:
    return "unknown" if met is None else "met" if met else "NOT met"


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1e9:,.0f} GB/s" if value >= 1e12 else f"{value / 1e9:.3g} GB/s"


def constraint_lines(constraints: dict[str, Any]) -> list[str]:
    """The three constraints, each with its value, its limit and whether it is met; then the conflict."""
    busy, memory, network = (constraints[k] for k in ("prefill_busy", "decode_memory", "network"))
    conflict = "yes" if constraints["conflict"] else "near" if constraints["near_conflict"] else "no"
    rates = (
        f"{_rate(network['line_bytes_per_s'])} line ≤ {_rate(network['limit'])}, "
        f"{_rate(network['offered_bytes_per_s'])} offered < {_rate(network['achievable_bytes_per_s'])} achievable"
    )
    return [
        f"prefill busy {percent(busy['value'])} > {100 * busy['limit']:.0f} %: {_state(busy['met'])}",
        f"decode memory {percent(memory['value'])} < {100 * memory['limit']:.0f} %: {_state(memory['met'])}",
        f"network {rates}: {_state(network['met'])}",
        f"constraint conflict (prefill demanded > {100 * busy['limit']:.0f} % and offered KV ≥ achievable): {conflict}",
    ]


#: The preset that is made to meet the three constraints.
AIMED_AT = "operating-point"


def operating_point(standings: list[Standing]) -> list[str]:
    """The operating point under the cheapest policy that disaggregates, a heuristic if any, and who is in conflict."""
    whole = [s for s in standings if not s.failed]
    split = [s for s in whole if s.runs[0].summary["constraints"]["prefill_busy"]["value"] is not None]
    if not split:
        return ["Operating point: no policy here uses separate pools"]
    split.sort(key=lambda s: s.kind != "heuristic")
    window = " (window 0)" if len(split[0].runs) > 1 else ""
    aim = "" if split[0].runs[0].scenario == AIMED_AT else f"; scenario {AIMED_AT} aims at it, others need not"
    lines = [f"Operating point under {split[0].policy}{window}{aim}"]
    lines += constraint_lines(split[0].runs[0].summary["constraints"])
    others = [s.policy for s in split[1:] if any(r.summary["constraints"]["conflict"] for r in s.runs)]
    if others:
        lines[-1] += f" (yes under {', '.join(others)})"
    return lines


def _definitions(keys: list[str], heads: dict[str, str]) -> Text:
    text = Text(style="dim")
    for key in dict.fromkeys(keys):
        text.append(heads.get(key, key), style="bold").append(f": {_defined(key)}\n")
    return text


def _defined(key: str) -> str:
    return RELATIVE_TEXT if key == RELATIVE.definition else DEFINITIONS[key]


_HEADS = {
    "cost": "cost",
    "relative": "vs best",
    "joint_tpot_s": "joint TPOT",
    "tpot_s": "standard TPOT",
    "ttft_s": "TTFT",
    "slo_attainment": "SLO met",
    "prefill_utilisation": "prefill busy",
    "prefill_demanded_utilisation": "prefill demanded",
    "decode_memory_utilisation": "decode memory",
    "network_utilisation": "busiest links",
    "compressed_share": "KV compressed",
    "constraints": "operating point",
}


def leaderboard(comparison: Comparison, scenario: str, width: int) -> RenderableType:
    """The leaderboard of one scenario, its operating-point line below; stacked tables where it is narrow."""
    standings = comparison.leaderboard(scenario)
    split = len(COLUMNS) - len(RESOURCES)
    halves = [COLUMNS] if width >= ONE_TABLE_WIDTH else [COLUMNS[:split], RESOURCES]
    groups = [group for half in halves for group in _fitting(half, standings, width)]
    title = heading(comparison, scenario)
    tables = [_table(group, standings) for group in groups]
    lines = operating_point(standings)
    one_line = f"{lines[0]}: {'; '.join(lines[1:])}" if lines[1:] else lines[0]
    point = one_line if len(one_line) <= width else "\n  ".join(lines)
    failed = [Text(line, style="red") for line in failure_lines(comparison, scenario)]
    return Group(Text(title, style="bold"), *tables, *failed, Text(point), Text(""))


def failure_lines(comparison: Comparison, scenario: str) -> list[str]:
    """A line a policy that failed: where first, and in how many windows."""
    first: dict[str, Failure] = {}
    for where, failure in comparison.failures:
        if where == scenario:
            first.setdefault(failure.policy, failure)
    counts = {s.policy: f"{s.failed} of {len(s.runs)} windows" for s in comparison.leaderboard(scenario)}
    return [f"FAILED in {counts[name]}: {failure}" for name, failure in first.items()]


def overall_cell(row: Overall) -> str:
    """Interquartile mean with its interval."""
    return f"{row.iqm:.3f}" + ("" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]")


def worst_cell(row: Overall) -> str:
    """Relative cost in the scenario where it is highest."""
    return f"{number(row.worst)} ({row.worst_in})"


def _overall_title(comparison: Comparison) -> str:
    return f"Across {len(comparison.scenarios)} scenarios: cost relative to {BASE}, mean of the middle half"


def _overall_table(comparison: Comparison) -> RenderableType | None:
    rows = comparison.overall()
    if not rows:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for head in (f"cost / {BASE}", "worst", "scenarios"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        name = row.policy if row.kind == "heuristic" else f"{row.policy} ({row.kind})"
        table.add_row(name, overall_cell(row), worst_cell(row), str(row.scenarios))
    return Group(Text(_overall_title(comparison), style="bold"), table)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Every leaderboard, all scenarios together, then what the columns mean."""
    for scenario in comparison.scenarios:
        console.print(leaderboard(comparison, scenario, console.width))
    overall = _overall_table(comparison)
    if overall is not None:
        console.print(overall)
    for line in caveats(comparison):
        console.print(Text(line))
    console.print(_definitions([c.definition for c in COLUMNS] + ["constraints"], _HEADS))


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """One run: distributions, single numbers and constraints, each with its definition."""
    scale = "" if summary["rate_scale"] == 1.0 else f", arrivals × {summary['rate_scale']:.3g}"
    title = f"{summary['policy']} on {summary['scenario']}: {summary['workload']}{scale}, seed {summary['seed']}"
    console.print(Text(title, style="bold"))
    spread = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    single = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("mean", "p50", "p90", "p99", "max")
    for name in ("", *columns):
        spread.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in ("", "value"):
        single.add_column(name, justify="right" if name else "left", no_wrap=True)
    for table in (spread, single):
        table.add_column("definition", style="dim", overflow="fold", min_width=30)
    for key in summary["definitions"]:
        value = summary[key]
        if key == "constraints":
            continue  # lines of their own, below
        if key in ("cost", "link_utilisation", "wire_precision_share"):
            _add_parts(single, key, value)
        elif isinstance(value, dict):
            spread.add_row(key, *(number(value[c]) for c in columns), DEFINITIONS[key])
            for part in (k for k in value if k not in columns):
                spread.add_row(f"  {part}", number(value[part]))
        else:
            single.add_row(key, value if isinstance(value, str) else number(value), DEFINITIONS[key])
    console.print(spread, single)
    for line in constraint_lines(summary["constraints"]):
        console.print(Text(line))
    console.print(Text(DEFINITIONS["constraints"], style="dim"))


def _add_parts(table: Table, key: str, value: dict[str, Any]) -> None:
    """A number with parts: the terms of the cost, link utilisation a tier each, shares of wire precisions."""
    if key == "cost":
        table.add_row(f"cost ({value['mode']})", number(value["mean"]), DEFINITIONS[key])
        parts = {**value["terms"], **{f"in mode {mode}": mean for mode, mean in value["by_mode"].items()}}
    else:
        table.add_row(key, "", DEFINITIONS[key])
        parts = value
    for name, part in parts.items():
        table.add_row(f"  {name}", number(part))


def markdown(comparison: Comparison, scenario: str, picture: str | None = None) -> str:
    """The leaderboard of one scenario as a Markdown section."""
    standings = comparison.leaderboard(scenario)
    heads = ["policy", *(f"{c.head.lstrip('=+ ')} ({c.unit})" if c.unit else c.head for c in COLUMNS)]
    lines = [f"## {heading(comparison, scenario)}", ""]
    if picture:
        lines += [f"![Leaderboard of {scenario}]({picture})", ""]
    lines += ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    rows = [[_name(s), *(cell(s, c, every=True) for c in COLUMNS)] for s in standings]
    lines += ["| " + " | ".join(part.replace("|", "\\|") for part in row) + " |" for row in rows]
    point, *constraints = operating_point(standings)
    notes = [*constraints, *failure_lines(comparison, scenario), *caveats(comparison)]
    return _no_html("\n".join([*lines, "", point, *([""] if notes else []), *(f"- {line}" for line in notes), ""]))


def markdown_overall(comparison: Comparison) -> str:
    """Policies across scenarios as a Markdown section; empty for one scenario."""
    rows = comparison.overall()
    if not rows:
        return ""
    lines = [f"## {_overall_title(comparison)}", "", f"| policy | cost / {BASE} | worst | scenarios |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    lines += [f"| {row.policy} | {overall_cell(row)} | {worst_cell(row)} | {row.scenarios} |" for row in rows]
    return _no_html("\n".join([*lines, ""]))


def _no_html(text: str) -> str:
    """Names and messages are other people's words: none of them becomes markup."""
    return text.replace("<", "&lt;")


def markdown_definitions() -> str:
    """What the columns mean, as a Markdown list."""
    keys = dict.fromkeys(c.definition for c in COLUMNS)
    return "\n".join(f"- **{_HEADS[key]}**: {_defined(key)}" for key in [*keys, "constraints"]) + "\n"
