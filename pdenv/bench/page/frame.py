"""What stands around the leaderboards: how it was made, parameters, failures, definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdenv.bench.page import words
from pdenv.bench.page.markup import Html, element, join, listing, table
from pdenv.bench.page.pieces import (
    GOODPUT,
    MEANING,
    folded,
    head_cell,
    number_cell,
)
from pdenv.bench.tables import LATENCY, RESOURCES, number

if TYPE_CHECKING:
    from pdenv.bench.results import Comparison, Entry

#: Failures beyond so many are folded away.
MOST_OPEN = 5


def facts(comparison: Comparison) -> Html:
    """What was compared, and how to get it again."""
    suite = f"suite {comparison.suite}" if comparison.suite else "no suite"
    seconds = sum(run.seconds or 0.0 for run in comparison.runs)
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    rows = [
        ("Scenarios", f"{words.enumerated(comparison.scenarios)} ({suite})"),
        ("Policies", ", ".join(comparison.policies)),
        ("Windows", f"{comparison.windows} a scenario; every policy sees the same arrivals (seed {comparison.seed})"),
        ("Parameters", _parameter_words(comparison.entries)),
        ("Made", f"{date(comparison.started)}; runs took {seconds:,.0f} s of processor time"),
        ("Versions", versions),
    ]
    command = element("pre", element("code", comparison.command or "(from Python)"), tabindex="0", aria_label="command")
    terms = [join(element("dt", term), element("dd", text)) for term, text in rows if text]
    return element("dl", element("dt", "Command"), element("dd", command), *terms, class_="facts")


def date(started: str) -> str:
    """An ISO date and time as people write it."""
    return started.replace("T", " ").replace("+00:00", " UTC")


def _parameter_words(entries: Sequence[Entry]) -> str:
    tuned = [entry.name for entry in entries if entry.tuned]
    if not tuned:
        return "the defaults, or those of the command"
    return f"tuned on training windows for {', '.join(tuned)}; the defaults for all others"


def parameters(comparison: Comparison) -> Html:
    """Every policy with its parameters and where it comes from."""
    rows = []
    for entry in comparison.entries:
        for scenario, values in _parameter_rows(entry):
            cells = (entry.kind, scenario, _values(values), entry.source or "pdenv")
            rows.append(element("tr", element("th", entry.name, scope="row"), *(element("td", cell) for cell in cells)))
    heads = ("policy", "kind", "parameters", "values", "source")
    shown = table([head_cell(h, number_column=False) for h in heads], rows, "Parameters of the policies")
    return folded("Parameters of the policies", shown)


def _parameter_rows(entry: Entry) -> list[tuple[str, dict[str, float]]]:
    """(where they hold, values): one row a scenario that has tuned ones."""
    tuned = [(f"tuned for {scenario}", values) for scenario, values in entry.tuned_params.items() if values]
    given = [("given", entry.params)] if entry.params else []
    return tuned + given or [("defaults", {})]


def _values(params: dict[str, float]) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in params.items()) or "–"


def troubles(comparison: Comparison) -> Html:
    """Failures and warnings, if there are any."""
    found = []
    failed = [run for run in comparison.runs if run.failure is not None]
    if failed:
        heads = [
            *(head_cell(h, number_column=False) for h in ("scenario", "policy")),
            *(head_cell(h) for h in ("window", "step", "time, s")),
            head_cell("message", number_column=False),
        ]
        rows = [
            element(
                "tr",
                element("td", run.scenario),
                element("td", run.policy),
                number_cell(str(run.window)),
                number_cell(number(run.failure.step)),
                number_cell(number(run.failure.time_s)),
                element("td", run.failure.message),
            )
            for run in failed
            if run.failure is not None
        ]
        title = f"Failures: {words.times(len(failed), 'run')}"
        found.append(folded(title, table(heads, rows, "Runs that failed"), open_=len(failed) <= MOST_OPEN))
    warnings = comparison.warnings()
    if warnings:
        found.append(folded(f"Warnings ({len(warnings)})", listing(warnings)))
    return element("div", *found, class_="troubles") if found else Html("")


def definitions() -> Html:
    """What every number means, those of the leaderboards first."""
    columns = (*LATENCY, *RESOURCES, GOODPUT)
    used = dict.fromkeys(["cost", "relative", *(c.definition for c in columns), "constraints"])
    names = {c.definition: c.head for c in reversed(columns) if not c.head.startswith(("=", "+"))}
    names |= {"ttft_s": "TTFT", "constraints": "operating point", "relative": "of the best, mean ratio"}
    terms = [
        join(element("dt", names.get(key, key), id=f"def-{key}"), element("dd", MEANING[key]))
        for key in [*used, *(key for key in MEANING if key not in used)]
    ]
    return element("section", element("h2", "Definitions"), element("dl", *terms, class_="terms"), id="definitions")
