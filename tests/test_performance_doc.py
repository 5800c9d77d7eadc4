"""The page of measured speeds says what the raw numbers say. No speed is asserted."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "bench.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def raw() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def row_of(page: str, first: str) -> list[str]:
    """Cells after the first of the table row that begins with it; the first such row."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return next(cells[1:] for cells in rows if cells[0] == first)


def test_page_is_made_from_the_raw_numbers_alone(bench, raw, page):
    assert sys.modules["performance_page"].document(raw) == page


def test_rates_are_requests_over_the_median_of_the_runs(raw, page):
    assert len(raw["throughput"]) == 11
    for row in raw["throughput"]:
        seconds = median(run["run_s"] + run["summary_s"] for run in row["runs"])
        requests, target, measured, verdict = row_of(page, row["title"])[:4]
        assert row["completed"] == row["requests"] == int(requests.replace(",", ""))
        assert int(measured.replace(",", "")) == round(row["requests"] / seconds)
        assert int(target.replace(",", "")) == row["target"]
        assert verdict == ("met" if row["requests"] / seconds >= row["target"] else "**missed**")


def test_other_tables_show_the_raw_numbers(raw, page):
    for row in raw["linearity"]:
        assert float(row_of(page, f"{row['requests']:,}")[3]) == pytest.approx(row["us_per_request"], abs=5e-4)
    for what, key in (("while it runs", "run_bytes"), ("while it is summarised", "summary_bytes")):
        assert float(row_of(page, what)[1]) == pytest.approx(raw["memory"][key], abs=0.05)
    cold = row_of(page, "compile everything, empty cache")
    assert cold[:3] == ["45 s", *(f"{raw['compilation']['cold'][key]:.2f} s" for key in ("cpu_s", "wall_s"))]
    ratio = raw["imports"]["pdenv"]["cpu_s"] / raw["imports"]["base"]["cpu_s"]
    assert row_of(page, "`import pdenv`")[:2] == ["2×", f"{ratio:.2f}×"]
    assert raw["date"] in page and raw["machine"]["cpu"] in page and raw["versions"]["numba"] in page


def test_environment_steps_are_medians_beside_their_targets(raw, page):
    assert [row["target"] for row in raw["envs"] if row["target"]] == [40_000, 400_000]
    for row in raw["envs"]:
        _, measured, verdict, _ = row_of(page, row["title"])
        assert int(measured.replace(",", "")) == round(median(row["runs"]))
        if row["target"]:
            assert verdict == ("met" if median(row["runs"]) >= row["target"] else "**missed**")
            assert (row["parts"] is None) == (verdict == "met")
            assert row["parts"] is None or sum(row["parts"].values()) == pytest.approx(1.0)
    assert row_of(page, "to a window that is kept")[1] == f"{1e3 * raw['env_resets']['cached_s']:.2f} ms"


def test_a_target_is_met_from_exactly_its_number_on(bench, raw):
    row = copy.deepcopy(raw["throughput"][0])
    for rate, verdict in ((row["target"], "met"), (row["target"] - 1.0, "**missed**")):
        row["requests_per_cpu_s"] = rate
        assert row_of(sys.modules["performance_page"].throughput_table([row]), row["title"])[3] == verdict


def test_a_missed_target_says_where_its_time_goes(bench, raw):
    row = {**raw["throughput"][0], "summary_s": 0.5, "cpu_s": 2.0}
    row["without"] = {"contention_none": 0.5, "round_robin": 2.2}  # 3/4 of the time; noise below zero is none
    assert row_of(sys.modules["performance_page"].bounds_table([row]), row["title"]) == ["25 %", "75 %", "0 %"]
    assert sys.modules["performance_page"].bounds_table([{**row, "without": None}]) == ""


def test_growing_time_a_request_is_not_linear(bench, raw):
    first = {**raw["linearity"][0], "requests": 10, "us_per_request": 1.0}
    page = sys.modules["performance_page"].linearity_table([first, {**first, "requests": 20, "us_per_request": 1.5}])
    assert row_of(page, "10")[4:] == ["1.00", "met"]
    assert row_of(page, "20")[4:] == ["1.50", "**missed**"]


def test_spine_carries_the_share_that_its_row_names(bench):
    scenario = bench.uniform(3, "blocking", 0.5, 10)
    offered = 24.0 * 1020 * 327_680  # requests/s, tokens, BF16 bytes a token of Llama-3.1-70B
    assert scenario.min_cut_bytes_per_s() == pytest.approx(offered / 0.5)
