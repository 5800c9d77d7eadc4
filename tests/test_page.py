"""The report page: it says what the numbers say, lets nothing in, and works in a browser, from disk, on any width."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import pdenv
from pdenv.bench.page import data, page, tracks, words, write_page
from pdenv.bench.plots import write_report
from pdenv.bench.results import Comparison, Entry, Failure, Run
from pdenv.errors import InputError
from pdenv.run import Series
from pdenv.sim.rules import RULES

COMMAND = "pdenv compare --suite v1 --policies all --windows 12"
EVIL = "</script><script>document.title='in'</script><b title=\"x\">&amp;"
Costs = dict[str, dict[str, list[float | None]]]  # scenario -> policy -> cost of each window; None: it failed


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    """Of a real run."""
    return pdenv.simulate("toy", policy="greedy").summary


def made(summary: dict[str, Any], costs: Costs, kinds: dict[str, str] | None = None, **fields: Any) -> Comparison:
    """A comparison with the given costs; everything else follows from them or is as in a real run."""
    policies = list(dict.fromkeys(policy for row in costs.values() for policy in row))
    entries = [Entry(name, (kinds or {}).get(name, "heuristic")) for name in policies]
    runs = [
        run_of(summary, scenario, policy, window, cost)
        for scenario, row in costs.items()
        for policy, own in row.items()
        for window, cost in enumerate(own)
    ]
    windows = len(next(iter(next(iter(costs.values())).values())))
    known = {"command": COMMAND, "versions": {"pdenv": "0.1.0", "numpy": "2.3.4"}, "started": "2026-11-30T01:02:03"}
    return Comparison(list(costs), entries, windows, 7, runs, **{**known, **fields})


def run_of(summary: dict[str, Any], scenario: str, policy: str, window: int, cost: float | None) -> Run:
    if cost is None:
        failure = Failure(policy, window, 17, 2.5, "answered 'left' <b>")
        return Run(scenario, policy, window, {}, [], [], failure=failure)
    own = copy.deepcopy(summary)
    own["cost"]["mean"] = cost
    own["goodput_rps"] = 10.0 / (1.0 + cost)
    own["joint_tpot_s"] |= {
        "mean": cost,
        "prefill_mean": 0.6 * cost,
        "transfer_mean": 0.3 * cost,
        "decode_mean": 0.1 * cost,
    }
    shares = np.linspace(0.0, 1.0, 201)
    waves = [(0.5 + 0.3 * np.sin(k + shares[:60] * 20)).tolist() for k in range(4)]
    series = Series(np.arange(1.0, 61.0).tolist(), *waves)
    ttft, tpot = cost * np.exp(3 * shares - 2), 0.02 * (1 + cost * shares)
    return Run(scenario, policy, window, own, ttft.tolist(), tpot.tolist(), series)


def spread(middle: float, windows: int = 12, step: float = 0.01) -> list[float | None]:
    """Costs of windows around a middle, the same pattern for every policy."""
    return [middle * (1 + step * ((5 * k) % 7 - 3)) for k in range(windows)]


def text_of(html: str) -> str:
    """What a reader sees, roughly: without scripts, styles and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def embedded(html: str) -> dict[str, Any]:
    """The numbers that the charts draw."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


# ---- what it says -----------------------------------------------------------------------------------------


def test_the_head_says_how_to_get_it_again(summary):
    shown = text_of(page(made(summary, {"toy": {"greedy": spread(2.0), "random": spread(3.0)}}, suite="v1")))
    for part in (COMMAND, "pdenv 0.1.0, numpy 2.3.4", "seed 7", "2026-11-30 01:02:03", "suite v1", "12 a scenario"):
        assert part in shown


def test_the_summary_counts_winners_ties_and_what_others_reach(summary):
    near = spread(2.0)
    near[0], near[1] = 1.9, 2.1  # sometimes less, sometimes more than the best
    costs: Costs = {
        "one": {"three-part": spread(3.0), "greedy": spread(2.0), "colocated": spread(9.0), "lookahead": spread(1.5)},
        "two": {"three-part": spread(3.0), "greedy": spread(2.0), "colocated": spread(9.0), "lookahead": spread(1.8)},
        "three": {"three-part": near, "greedy": spread(4.0), "colocated": spread(2.0), "lookahead": spread(2.4)},
    }
    comparison = made(summary, costs, {"lookahead": "reference"})
    boards = {name: comparison.leaderboard(name) for name in comparison.scenarios}
    said = words.summary_sentences(comparison, boards)
    best, second = [s.policy for s in boards["three"][:2]]
    assert {best, second} == {"three-part", "colocated"}
    assert said[0] == "greedy is the cheapest heuristic in 2 of 3 scenarios: one and two."
    assert said[1] == f"Cheapest in one scenario: {best} in three."
    assert said[2] == f"Not told apart from the cheapest in 1 scenario: three: {second}."
    assert said[3].startswith("Co-located serving") and said[3].endswith("in three.")
    assert said[4] == (
        "lookahead (reference) against the best heuristic of each scenario: 2 cheaper, 1 dearer; cost × 0.75 to × 1.2."
    )


def test_one_scenario_is_summed_up_by_its_own_leaderboard(summary):
    costs: Costs = {"toy": {"greedy": spread(2.0), "random": spread(8.0), "mine": spread(1.0)}}
    comparison = made(summary, costs, {"mine": "agent"})
    said = words.summary_sentences(comparison, {"toy": comparison.leaderboard("toy")})
    assert said[0].startswith("greedy is the cheapest heuristic, with a mean cost of 2.0")
    assert said[1:] == [
        "The dearest, random, has 4 times the cost.",
        "mine (agent) costs 50 % less than the best heuristic.",
    ]


def test_agents_alone_are_compared_with_the_cheapest_of_them(summary):
    comparison = made(summary, {"toy": {"a": spread(2.0), "b": spread(4.0)}}, {"a": "agent", "b": "agent"})
    said = words.summary_sentences(comparison, {"toy": comparison.leaderboard("toy")})
    assert said[0].startswith("a is the cheapest policy, with a mean cost of 2.0")
    assert said[1:] == ["b (agent) has 2 times the cost of the best policy."]


def test_few_windows_are_said_to_be_few(summary):
    one = made(summary, {"toy": {"greedy": [2.0], "random": [3.0]}})
    html = page(one)
    assert "by chance as much as by merit" in text_of(html)
    assert "Window by window" not in text_of(html)
    assert 'class="interval"' not in html and 'class="whisker"' not in html
    five = text_of(page(made(summary, {"toy": {"greedy": spread(2.0, 5), "random": spread(9.0, 5)}})))
    assert "With 5 windows the intervals are rough and no difference can be told from chance" in five
    assert "not tested" in five and "dearer" not in five


def test_many_policies_need_more_windows_to_be_told_apart():
    assert words._few(7, policies=2) == ["With 7 windows the intervals are rough; take more."]
    assert "no difference can be told" in words._few(7, policies=20)[0]
    assert words._few(20, policies=20) == []


def test_where_nothing_can_be_told_apart_ties_are_not_made_much_of(summary):
    comparison = made(summary, {"toy": {"greedy": spread(2.0, 6), "a": spread(2.1, 6), "b": spread(2.2, 6)}})
    said = words.summary_sentences(comparison, {"toy": comparison.leaderboard("toy")})
    assert said[-1] == "With 6 windows the intervals are rough and no difference can be told from chance; take more."
    assert not any("not told apart" in sentence for sentence in said)


def test_failures_are_named_with_window_and_step(summary):
    broken = spread(2.0)
    broken[3] = None
    html = page(made(summary, {"toy": {"greedy": spread(2.0), "mine": broken}}, {"mine": "plug-in"}))
    shown = text_of(html)
    assert "1 run of 24 failed" in shown
    assert "toy mine 3 17 2.500 answered 'left' <b>" in shown
    assert "answered 'left' &lt;b&gt;" in html


def test_a_scenario_in_which_everything_fails_still_has_a_page(summary):
    html = page(made(summary, {"good": {"mine": [2.0, 2.1]}, "bad": {"mine": [None, None]}}, {"mine": "plug-in"}))
    assert "No policy has a cost here." in text_of(html)


def test_ties_references_and_tuned_parameters_are_marked(summary):
    near = spread(2.0)
    near[0], near[1] = 1.9, 2.13
    comparison = made(
        summary,
        {"toy": {"greedy": spread(2.0), "three-part": near, "lookahead": spread(1.0)}},
        {"lookahead": "reference"},
    )
    comparison.entries[0] = Entry("greedy", "heuristic", tuned=True, tuned_params={"toy": {"prefill_weight": 1.25}})
    rows = re.findall(r"<tr.*?</tr>", page(comparison).partition(">Leaderboard<")[2], re.DOTALL)[1:4]
    lookahead, greedy, three_part = [text_of(row) for row in rows]
    assert "lookahead reference" in lookahead and "cheaper" in lookahead
    assert "greedy tuned" in greedy and "best heuristic" in greedy
    assert "= not told apart" in three_part
    assert "tuned for toy prefill_weight = 1.25" in text_of(page(comparison))


def test_every_column_is_defined(summary):
    html = page(made(summary, {"toy": {"greedy": spread(2.0), "random": spread(3.0)}}))
    links = set(re.findall(r'href="#([^"]+)"', html))
    assert {"def-cost", "def-relative", "def-joint_tpot_s", "def-slo_attainment", "def-goodput_rps"} <= links
    assert links <= set(re.findall(r' id="([^"]+)"', html))


# ---- what it draws ----------------------------------------------------------------------------------------


def test_an_axis_ends_before_an_outlier_which_becomes_an_arrow():
    scale = tracks.scale_of([1.0, 1.1, 1.2, 50.0])
    assert 1.2 < scale.high < 1.5
    assert 'class="beyond"' in tracks.whisker(scale, 50.0, 49.0, 51.0, "#000")
    assert 'class="dot"' in tracks.whisker(scale, 1.1, 1.0, 1.2, "#000")


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0.0, 1.0, False), (11.3, 19.7, False), (0.02, 30.0, True), (0.9, 1.4, True)]
)
def test_ticks_are_round_few_and_inside(low, high, log):
    scale = tracks.Scale(low, high, log)
    places = [scale.place(value) for value, _ in scale.ticks()]
    assert 2 <= len(places) <= 8
    assert all(b - a >= tracks.TICK_GAP for a, b in itertools.pairwise(places))
    assert places[0] >= 0 and places[-1] <= 100


def test_bars_end_where_their_sum_does_and_a_cut_one_keeps_its_proportions():
    def widths(longest: float) -> list[float]:
        drawn = tracks.stacked(tracks.Scale(0.0, 10.0), [("a", 2.0, "#111"), ("b", 6.0, "#222")], longest)
        return [float(width) for width in re.findall(r'class="bar" style="[^"]*width:([\d.]+)%', drawn)]

    assert widths(10.0) == [20.0, 60.0]
    assert widths(4.0) == [10.0, 30.0]


def test_curves_of_all_windows_together_are_their_mixture(summary):
    runs = [Run("toy", "a", k, summary, np.linspace(k, k + 1, 201).tolist(), []) for k in (0, 1)]
    curve = data.distribution(runs, "ttft_cdf_s")
    assert curve is not None
    assert curve[0] == 0.0 and curve[-1] == 2.0
    assert curve[50] == pytest.approx(1.0, abs=0.01) and curve[25] == pytest.approx(0.5, abs=0.01)
    assert data.distribution(runs, "tpot_cdf_s") is None


def test_utilisation_is_averaged_over_windows_that_still_run(summary):
    def lasting(end: float, busy: float) -> Run:
        times = np.linspace(end / 10, end, 10).tolist()
        return Run("toy", "a", 0, summary, [], [], Series(times, *[[busy] * 10] * 3, []))

    grid = np.array([0.0, 50.0, 150.0, 250.0])
    curve = data.over_time([lasting(100.0, 0.4), lasting(200.0, 0.8)], "prefill_busy", grid)
    assert curve is not None
    assert curve["mean"] == pytest.approx([60.0, 60.0, 80.0])  # the second alone; after 200 s none is left
    assert data.over_time([lasting(100.0, 0.4)], "network", grid) is None


def test_a_page_of_the_whole_suite_stays_small(summary):
    rng = np.random.default_rng(0)
    policies = [*RULES, *(f"mine-{k}" for k in range(20 - len(RULES)))][:20]
    costs: Costs = {f"s{k}": {p: rng.uniform(1, 9, 20).tolist() for p in policies} for k in range(8)}
    assert len(page(made(summary, costs)).encode()) < 4e6


def test_names_cannot_bring_markup_in(summary):
    comparison = made(summary, {EVIL: {"greedy": spread(2.0), EVIL: spread(3.0)}}, command=EVIL)
    html = page(comparison)
    assert html.count("<script") == 2
    assert "<b title" not in html
    assert embedded(html)["scenarios"][0]["policies"][1]["name"] == EVIL


def test_a_page_that_cannot_be_written_says_so(summary, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_page(made(summary, {"toy": {"greedy": [2.0]}}), tmp_path / "no" / "index.html")


def test_a_report_is_written_although_policies_failed(summary, tmp_path):
    broken = [None, *spread(2.0)[1:]]
    costs: Costs = {
        "good": {"greedy": spread(2.0), "mine": broken},
        "bad": {"greedy": [None] * 12, "mine": [None] * 12},
    }
    write_report(made(summary, costs, {"mine": "plug-in"}), tmp_path / "report")
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"index.html", "leaderboard.md", "results.csv", "results.json", "good-leaderboard.png"} <= names
    assert "bad-leaderboard.png" not in names
    assert "answered 'left'" in (tmp_path / "report" / "leaderboard.md").read_text()


# ---- in a browser -----------------------------------------------------------------------------------------

HELP = "this test needs Chromium and its driver: apt-get install chromium chromium-driver"
MANY = [*RULES, "mine", "a-rather-long-policy-name"]


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium that logs its console and its requests. Without one the tests fail: they are the page's."""
    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary:
        options.binary_location = binary
    try:
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    except WebDriverException as error:
        pytest.fail(f"{HELP} ({error.msg})")
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(summary, tmp_path_factory) -> dict[str, Path]:
    """A page of three scenarios and many policies, one of a single run, and one with names that attack it."""
    folder = tmp_path_factory.mktemp("pages")
    rows = {policy: spread(2.0 + 0.3 * k) for k, policy in enumerate(MANY)}
    rows["random"] = spread(60.0)
    rows["mine"] = [None, *spread(2.5)[1:]]
    names = ("hetero-links", "short-chat", "a-scenario-of-ones-own")
    many = made(summary, dict.fromkeys(names, rows), {"mine": "plug-in"})
    one = made(summary, {"toy": {"greedy": [2.0]}})
    evil = made(summary, {EVIL: {"greedy": spread(2.0), EVIL: spread(3.0)}}, command=EVIL)
    found = {name: folder / f"{name}.html" for name in ("many", "one", "evil")}
    for name, comparison in (("many", many), ("one", one), ("evil", evil)):
        write_page(comparison, found[name])
    return found


def opened(browser, path: Path, width: int = 1280):
    """The page at a width in CSS pixels, all charts drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages left
    browser.get(path.as_uri())
    undrawn = "return document.querySelectorAll('figure[data-kind]:not([data-drawn])').length"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(undrawn) == 0)
    return browser


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many", "one", "evil"])
def test_it_opens_from_disk_without_errors_or_requests(browser, pages, name):
    opened(browser, pages[name])
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert requests == [pages[name].as_uri()]


@pytest.mark.slow
def test_every_chart_has_its_marks(browser, pages):
    opened(browser, pages["many"])
    for figure in browser.find_elements(By.CSS_SELECTOR, "figure[data-kind]"):
        kind = figure.get_attribute("data-kind")
        shown = figure.find_elements(By.CSS_SELECTOR, ".point:not(.faint)" if kind == "scatter" else "path.curve")
        others = figure.find_elements(By.CSS_SELECTOR, ".faint")
        assert len(shown) >= data.SHOWN - 1  # all but the plug-in where it has no mean
        assert len(shown) + len(others) >= len(MANY) - 1
        assert figure.find_element(By.CSS_SELECTOR, ".canvas").get_attribute("aria-label")
    kinds = "return [...document.querySelectorAll('figure[data-kind]')].map((f) => f.dataset.kind)"
    assert sorted(browser.execute_script(kinds)) == sorted((["cdf"] * 2 + ["time"] * 3 + ["scatter"]) * 3)
    for mark in ("dot", "whisker", "bar", "cut", "grain", "beyond"):
        assert browser.find_elements(By.CLASS_NAME, mark)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["many", "one", "evil"])
def test_it_fits_its_width_and_can_be_read(browser, pages, name, width):
    opened(browser, pages[name], width)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    root = "document.documentElement"
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    sizes = """
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), small = [];
        while (walker.nextNode()) {
            const parent = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || parent.closest('script')) continue;
            if (parseFloat(getComputedStyle(parent).fontSize) < 11) small.push(walker.currentNode.data);
        }
        return small;"""
    assert browser.execute_script(sizes) == []
    cut = """
        return [...document.querySelectorAll('.canvas text')].filter((text) => {
            const a = text.getBoundingClientRect(), b = text.closest('figure').getBoundingClientRect();
            return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1;
        }).map((text) => text.textContent);"""
    assert browser.execute_script(cut) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_no_text_of_a_chart_lies_on_another(browser, pages, width):
    opened(browser, pages["many"], width)
    meeting = """
        return [...document.querySelectorAll('.canvas svg')].flatMap((svg) => {
            const texts = [...svg.querySelectorAll('text')];
            const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
            return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
                p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 4 && q.top < p.bottom - 4
            ).map(([b]) => a + ' / ' + b));
        });"""
    assert browser.execute_script(meeting) == []


@pytest.mark.slow
def test_the_navigation_and_the_headings_lead_through_it(browser, pages):
    opened(browser, pages["many"], 400)
    headings = [(h.tag_name, h.text) for h in browser.find_elements(By.CSS_SELECTOR, "h1, h2")]
    names = ["hetero-links", "short-chat", "a-scenario-of-ones-own"]
    assert [text for tag, text in headings if tag == "h2"] == ["All scenarios", *names, "Definitions"]
    assert [tag for tag, _ in headings].count("h1") == 1
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text.startswith("Skip")
    for _ in range(4):
        browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "short-chat"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    top = "return document.getElementById('scenario-2').getBoundingClientRect().top"
    WebDriverWait(browser, 5).until(lambda b: 0 <= b.execute_script(top) < 120)
    current = "return document.querySelector('nav a[aria-current]')?.textContent"
    WebDriverWait(browser, 5).until(lambda b: b.execute_script(current) == "short-chat")


@pytest.mark.slow
def test_policies_are_switched_and_values_shown_by_keyboard_and_pointer(browser, pages):
    opened(browser, pages["many"])
    figure = browser.find_element(By.CSS_SELECTOR, "#scenario-1 figure[data-field='ttft']")
    chip = browser.find_element(By.CSS_SELECTOR, "#scenario-1 .chip[aria-pressed='true']")
    other = browser.find_element(By.CSS_SELECTOR, "#scenario-2 .chip[aria-pressed='true']")
    before = len(figure.find_elements(By.CSS_SELECTOR, "path.curve"))
    chip.send_keys(Keys.SPACE)
    assert chip.get_attribute("aria-pressed") == "false"
    assert other.get_attribute("aria-pressed") == "true"
    WebDriverWait(browser, 5).until(lambda _: len(figure.find_elements(By.CSS_SELECTOR, "path.curve")) == before - 1)

    tip = browser.find_element(By.ID, "tip")
    canvas = figure.find_element(By.CSS_SELECTOR, ".canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    chosen = [chip.text for chip in browser.find_elements(By.CSS_SELECTOR, "#scenario-1 .chip[aria-pressed='true']")]
    assert tip.is_displayed() and "at most" in tip.text
    assert chosen and all(f"{name}: " in tip.text for name in chosen)
    canvas.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    head = browser.find_element(By.CSS_SELECTOR, "#scenario-1 thead a")
    ActionChains(browser).move_to_element(head).perform()
    assert "mean over measured arrivals" in tip.text


@pytest.mark.slow
def test_markup_in_names_is_shown_as_text(browser, pages):
    opened(browser, pages["evil"])
    assert browser.title.startswith(EVIL)
    assert browser.find_element(By.CSS_SELECTOR, "#scenario-1 h2").text == EVIL
