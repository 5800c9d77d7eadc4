"""The report of a comparison as one web page that needs nothing else: it opens from disk."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdenv import atomic
from pdenv.bench.page import across, data, frame, scenario, words
from pdenv.bench.page.markup import Html, element, join, listing
from pdenv.bench.plots import policy_styles

if TYPE_CHECKING:
    from pdenv.bench.results import Comparison

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
DOCUMENT = Html(
    "<!DOCTYPE html>\n<!-- Made by pdenv. The numbers are in results.csv and results.json beside this file. -->\n"
)


def write_page(comparison: Comparison, path: str | Path) -> None:
    """Write the report of a comparison into one HTML file.

    Raises:
        InputError: the file cannot be written.
    """
    atomic.write_text(path, page(comparison))


def page(comparison: Comparison) -> Html:
    """The whole document."""
    boards = {name: comparison.leaderboard(name) for name in comparison.scenarios}
    styles = policy_styles(comparison.policies)
    title = _title(comparison)
    drawn = {
        "shares": data.rounded(data.SHARES),
        "scenarios": [data.charts(board, styles) for board in boards.values()],
    }
    several = len(boards) > 1
    body = [
        across.overall(comparison.overall(), comparison, boards, styles) if several else Html(""),
        *(scenario.section(k, name, comparison, board, styles) for k, (name, board) in enumerate(boards.items(), 1)),
        frame.definitions(),
    ]
    head = element(
        "header",
        element("h1", title),
        listing(words.summary_sentences(comparison, boards), class_="says"),
        frame.facts(comparison),
        frame.parameters(comparison),
        frame.troubles(comparison),
        id="summary",
    )
    content = element(
        "body",
        element("a", "Skip to the leaderboards", href="#overall" if several else "#scenario-1", class_="skip"),
        _navigation(comparison.scenarios),
        head,
        element("main", *body),
        element("footer", f"pdenv {comparison.versions.get('pdenv', '')}, {frame.date(comparison.started)}"),
        element("div", id="tip", hidden=True, role="status"),
        element("noscript", element("p", "Without JavaScript the charts of curves and points are not drawn.")),
        _script(data.script_text(drawn), type="application/json", id="data"),
        _script(_asset("charts.js")),
    )
    meta = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", title),
        element("style", Html(_asset("page.css"))),
    ]
    return join(DOCUMENT, element("html", element("head", *meta), content, lang="en"), "\n")


def _title(comparison: Comparison) -> str:
    scenarios = comparison.scenarios
    what = scenarios[0] if len(scenarios) == 1 else words.times(len(scenarios), "scenario")
    if comparison.suite:
        what = f"suite {comparison.suite}, {what}"
    many = words.times(len(comparison.policies), "policy").replace("policys", "policies")
    return f"{what}: {many}, {words.times(comparison.windows, 'window')}"


def _navigation(scenarios: list[str]) -> Html:
    targets = {"summary": "Summary"}
    if len(scenarios) > 1:
        targets["overall"] = "All scenarios"
    targets |= {f"scenario-{k}": name for k, name in enumerate(scenarios, 1)} | {"definitions": "Definitions"}
    items = [element("li", element("a", label, href=f"#{target}")) for target, label in targets.items()]
    return element("nav", element("ul", *items), aria_label="Sections")


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _script(text: str, **attributes: Any) -> Html:
    return element("script", Html(text), **attributes)
