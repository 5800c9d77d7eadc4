"""What a comparison says, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pdenv.bench.statistics import ROUGH_BELOW, can_tell
from pdenv.bench.tables import number

if TYPE_CHECKING:
    from pdenv.bench.results import Comparison, Standing

KIND_NAMES = {"reference": "reference", "plug-in": "plug-in", "agent": "agent"}  # a heuristic needs no label
NAMED_TIES = 2
MANY_TIMES = 1.5  # from this ratio on a cost is so many times another, below it so many percent more
Boards = dict[str, "list[Standing]"]


def enumerated(words: Iterable[str]) -> str:
    """a, b and c."""
    *rest, last = list(words)
    return f"{', '.join(rest)} and {last}" if rest else last


def times(count: int, noun: str) -> str:
    """1 window, 2 windows."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def best_of(board: Sequence[Standing]) -> Standing | None:
    """The cheapest heuristic, with which the others are compared; the cheapest of all where there is none."""
    known = [s for s in board if s.mean.get("cost") is not None]
    return next((s for s in known if s.kind == "heuristic"), next(iter(known), None))


def best_words(*found: Standing | None) -> str:
    """What the best of some boards are."""
    return "heuristic" if all(s is None or s.kind == "heuristic" for s in found) else "policy"


def ties(board: Sequence[Standing]) -> list[str]:
    """Policies of the best one's kind that are not told apart from it."""
    best = best_of(board)
    return [s.policy for s in board if s.tied and best is not None and s is not best and s.kind == best.kind]


def _ratio(standing: Standing) -> float:
    """Mean cost over that of the best heuristic; 1 where there is none to compare with."""
    return 1.0 if standing.relative is None else standing.relative.mid


def _cost_words(standing: Standing, than: str = "") -> str:
    """How a cost compares with that of the best heuristic."""
    ratio = _ratio(standing)
    if ratio >= MANY_TIMES:
        return f"has {f'{ratio:.2g}' if ratio < 100 else f'{ratio:,.0f}'} times the cost{than and f' of {than}'}"
    side = "more" if ratio >= 1 else "less"
    return f"costs {100 * abs(ratio - 1):.2g} % {side}{than and f' than {than}'}"


def _some(names: Sequence[str]) -> str:
    """The first few names and how many are left."""
    if len(names) <= NAMED_TIES + 1:  # "and 1 other" is no shorter than a name
        return enumerated(names)
    return f"{', '.join(names[:NAMED_TIES])} and {len(names) - NAMED_TIES} others"


def scenario_sentences(board: Sequence[Standing], windows: int) -> list[str]:
    """What one scenario's leaderboard says."""
    best = best_of(board)
    if best is None:
        return ["No policy has a cost here."]
    low, high = best.low.get("cost"), best.high.get("cost")
    interval = "" if low is None or high is None else f" (95 % interval {number(low)} to {number(high)})"
    lines = [
        f"{best.policy} is the cheapest {best_words(best)}, with a mean cost of {number(best.mean['cost'])}{interval}."
    ]
    tied = ties(board)
    if tied and can_tell(windows, len(board)):
        lines.append(f"{_some(tied)} {'is' if len(tied) == 1 else 'are'} not told apart from it.")
    others = [s for s in board if s.kind == "heuristic" and s is not best and s.relative is not None]
    if others and not others[-1].tied:
        lines.append(f"The dearest, {others[-1].policy}, {_cost_words(others[-1])}.")
    lines += [
        f"{s.policy} ({KIND_NAMES[s.kind]}) {_against_best(s, best)}."
        for s in board
        if s.kind != "heuristic" and s is not best and s.relative is not None
    ]
    if windows == 1:
        lines.append("One window gives an order by chance as much as by merit.")
    return lines


def _against_best(standing: Standing, best: Standing) -> str:
    other = f"the best {best_words(best)}"
    return f"is not told apart from {other}" if standing.tied else _cost_words(standing, other)


def summary_sentences(comparison: Comparison, boards: Boards) -> list[str]:
    """What the comparison says, the most important first."""
    if len(boards) == 1:
        lines = scenario_sentences(next(iter(boards.values())), comparison.windows)
    else:
        lines = _winners(boards)
        lines += _tied_scenarios(boards) if can_tell(comparison.windows, len(comparison.policies)) else []
        lines += [*_colocated(boards), *_others(boards)]
        if comparison.windows == 1:
            lines.append("One window a scenario gives an order by chance as much as by merit.")
    lines += _few(comparison.windows, max(len(board) for board in boards.values()))
    failed = sum(run.failure is not None for run in comparison.runs)
    if failed:
        lines.append(f"{times(failed, 'run')} of {len(comparison.runs):,} failed; see below.")
    return lines


def _few(windows: int, policies: int) -> list[str]:
    """Whether the windows are too few for intervals, or for telling differences."""
    if windows == 1:
        return []
    said = ["the intervals are rough"] if windows < ROUGH_BELOW else []
    if not can_tell(windows, policies):
        said.append("no difference can be told from chance")
    return [f"With {windows} windows {enumerated(said)}; take more."] if said else []


def _winners(boards: Boards) -> list[str]:
    wins: dict[str, list[str]] = {}
    noun = best_words(*(best_of(board) for board in boards.values()))
    for scenario, board in boards.items():
        best = best_of(board)
        if best is not None:
            wins.setdefault(best.policy, []).append(scenario)
    ranked = sorted(wins.items(), key=lambda item: -len(item[1]))
    lines = [
        f"{policy} is the cheapest {noun} in {len(won)} of {times(len(boards), 'scenario')}: {enumerated(won)}."
        for policy, won in ranked
        if len(won) > 1
    ]
    single = [f"{policy} in {won[0]}" for policy, won in ranked if len(won) == 1]
    if single:
        lines.append(f"Cheapest in one scenario: {enumerated(single)}.")
    return lines


def _tied_scenarios(boards: Boards) -> list[str]:
    tied = {scenario: ties(board) for scenario, board in boards.items() if ties(board)}
    if not tied:
        return []
    named = "; ".join(f"{scenario}: {_some(names)}" for scenario, names in tied.items())
    return [f"Not told apart from the cheapest in {times(len(tied), 'scenario')}: {named}."]


def _colocated(boards: Boards) -> list[str]:
    wins, close, compared = [], [], 0
    for scenario, board in boards.items():
        standing = next((s for s in board if s.policy == "colocated"), None)
        if standing is None or best_of(board) is None:
            continue
        compared += 1
        if standing is best_of(board):
            wins.append(scenario)
        elif standing.tied:
            close.append(scenario)
    if not compared:
        return []
    if not wins and not close:
        return [f"Co-located serving wins in none of {times(compared, 'scenario')}."]
    said = [f"wins in {enumerated(wins)}"] if wins else []
    said += [f"is not told apart from the best in {enumerated(close)}"] if close else []
    return [f"Co-located serving {' and '.join(said)}."]


def _others(boards: Boards) -> list[str]:
    """References, plug-ins and agents against the best of each scenario."""
    bests = [best_of(board) for board in boards.values()]
    rows: dict[tuple[str, str], list[Standing]] = {}
    for board in boards.values():
        for s in board:
            if s.kind != "heuristic" and s.relative is not None and all(s is not best for best in bests):
                rows.setdefault((s.policy, s.kind), []).append(s)
    other = f"the best {best_words(*bests)} of each scenario"
    return [f"{policy} ({KIND_NAMES[kind]}) against {other}: {_tally(own)}." for (policy, kind), own in rows.items()]


def _tally(rows: Sequence[Standing]) -> str:
    """How often cheaper, tied and dearer, and from which to which multiple of the best cost."""
    verdicts = Counter("not told apart" if s.tied else "cheaper" if _ratio(s) < 1 else "dearer" for s in rows)
    said = [f"{verdicts[v]} {v}" for v in ("cheaper", "not told apart", "dearer") if verdicts[v]]
    low, high = min(map(_ratio, rows)), max(map(_ratio, rows))
    return f"{', '.join(said)}; cost × {low:.3g}" + (f" to × {high:.3g}" if len(rows) > 1 else "")
