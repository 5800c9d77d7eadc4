"""Comparisons: fair, the same however they are run, and readable."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import pdenv
from pdenv.bench import compare as comparing
from pdenv.bench import plots, tables
from pdenv.errors import InputError
from pdenv.policies import policy_names

SMALL = {"window.requests": 60}


@pytest.fixture(scope="module")
def toy() -> pdenv.Scenario:
    return pdenv.load_scenario("toy", overrides=SMALL)


@pytest.fixture(scope="module")
def comparison(toy) -> comparing.Comparison:
    return pdenv.compare(toy, "three-part,round-robin,colocated", windows=2)


def with_costs(comparison: comparing.Comparison, costs: dict[str, float | None]) -> comparing.Comparison:
    """The same runs with the cost of each policy replaced."""
    runs = [
        comparing.Run(
            run.scenario,
            run.policy,
            run.window,
            {**run.summary, "cost": {**run.summary["cost"], "mean": costs[run.policy]}},
            run.ttft_cdf_s,
            run.tpot_cdf_s,
        )
        for run in comparison.runs
    ]
    return comparing.Comparison(comparison.scenarios, comparison.policies, comparison.windows, 0, runs)


# ---- one run ----------------------------------------------------------------------------------------------


def test_requests_have_one_row_each_that_agrees_with_the_summary(toy):
    result = pdenv.simulate(toy, policy="round-robin", seed=3)
    rows = result.requests
    assert len(rows) == np.sum(result.workload.arrivals["arrival_s"] <= result.stopped_s)
    assert set(rows["status"]) <= {"completed", "unfinished"}  # later load is not waited for
    measured = rows[rows["measured"]]
    assert len(measured) == result.summary["requests"] == 60
    done = measured[measured["status"] == "completed"]
    assert len(done) == result.summary["completed"] > 0
    assert set(done["mode"]) == {"pair"}
    assert done["joint_tpot_s"].mean() == pytest.approx(result.summary["joint_tpot_s"]["mean"])
    order = ("arrival_s", "dispatch_s", "prefill_start_s", "prefill_end_s", "decode_start_s", "finish_s")
    for earlier, later in itertools.pairwise(order):
        assert (done[earlier] <= done[later] + 1e-9).all()


def test_same_seed_same_numbers_and_another_seed_others(toy):
    first, again, other = (pdenv.simulate(toy, seed=seed).summary for seed in (1, 1, 2))
    assert first == again
    assert first["ttft_s"] != other["ttft_s"]


def test_colocated_runs_on_the_twin_under_the_same_arrivals(toy):
    split, twin = pdenv.simulate(toy, "three-part"), pdenv.simulate(toy, "colocated")
    np.testing.assert_array_equal(split.workload.arrivals, twin.workload.arrivals)
    assert not twin.scenario.prefill
    assert twin.summary["prefill_utilisation"] is None
    assert set(twin.requests["mode"][twin.requests["status"] == "completed"]) == {"colocated"}


def test_a_pd_policy_without_pools_is_refused(toy):
    with pytest.raises(InputError, match="needs prefill and decode instances"):
        pdenv.simulate(toy.colocated_twin(), "three-part")


def test_a_run_far_from_its_target_says_so():
    light = pdenv.load_scenario("toy", overrides={**SMALL, "workload.rate_per_s": 0.5})
    assert any("far from the operating point" in line for line in pdenv.simulate(light).warnings)
    near = pdenv.simulate(light, rate_scale="auto")
    assert not any("far from the operating point" in line for line in near.warnings)


def test_what_is_left_at_the_drain_deadline_is_unfinished_and_charged():
    overload = {**SMALL, "workload.rate_per_s": 30.0, "window.drain_max_s": 3.0}
    result = pdenv.simulate(pdenv.load_scenario("toy", overrides=overload), "round-robin")
    summary, rows = result.summary, result.requests[result.requests["measured"]]
    assert 0 < summary["unfinished"] == np.sum(rows["status"] == "unfinished") < 60
    failure = result.scenario.cost.failure
    assert summary["cost"]["terms"]["failure_penalty"] == pytest.approx(failure * summary["unfinished"] / 60)
    assert any("unfinished" in line for line in result.warnings)


def test_a_network_too_slow_for_the_prefill_pool_is_a_conflict():
    starved = {**SMALL, "workload.rate_per_s": 17.0, "prefill.0.nic_bytes_per_s": 2e6}
    constraints = pdenv.simulate(pdenv.load_scenario("toy", overrides=starved), "round-robin").summary["constraints"]
    assert constraints["network"]["offered_bytes_per_s"] > constraints["network"]["achievable_bytes_per_s"] == 4e6
    assert constraints["network"]["utilisation"] == pytest.approx(1.0, abs=0.05)
    assert constraints["prefill_busy"]["met"] is False  # staging is full: prefill stalls and looks idle
    assert constraints["conflict"] is True


# ---- comparisons ------------------------------------------------------------------------------------------


def test_every_policy_sees_the_same_arrivals(comparison):
    for window in range(2):
        runs = [run.summary for run in comparison.runs if run.window == window]
        assert len({(s["duration_s"], s["offered_prefill_load"], s["requests"]) for s in runs}) == 1
    assert comparison.runs[0].summary["duration_s"] != comparison.runs[1].summary["duration_s"]


def test_numbers_do_not_depend_on_jobs(toy, comparison):
    parallel = pdenv.compare(toy, "three-part,round-robin,colocated", windows=2, jobs=2)
    assert parallel.to_dict() == comparison.to_dict()


def test_a_row_for_each_policy_and_window(comparison):
    rows = comparison.rows
    assert [(row["policy"], row["window"]) for row in rows] == [
        (policy, window) for policy in ("three-part", "round-robin", "colocated") for window in (0, 1)
    ]
    assert all(row["joint_tpot_s"] > 0 for row in rows)


def test_leaderboard_is_sorted_by_cost_with_the_unknown_last(comparison):
    ranked = with_costs(comparison, {"three-part": 5.0, "round-robin": None, "colocated": 2.0})
    assert [s.policy for s in ranked.leaderboard("toy")] == ["colocated", "three-part", "round-robin"]


def test_leaderboard_averages_windows(comparison):
    standing = next(s for s in comparison.leaderboard("toy") if s.policy == "three-part")
    values = [run.summary["ttft_s"]["p99"] for run in standing.runs]
    assert standing.mean["ttft_p99_s"] == pytest.approx(sum(values) / 2)
    assert standing.ci95["ttft_p99_s"] == pytest.approx(12.706 * abs(values[0] - values[1]) / 2, rel=1e-3)


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062), (3, 4.30265), (31, 2.04227), (61, 2.00030), (121, 1.97993)])
def test_intervals_use_students_t(n, t):
    values = [float(k % 2) for k in range(n)]
    mean, half = comparing.mean_interval(values)
    assert mean == pytest.approx(np.mean(values))
    assert half == pytest.approx(t * np.std(values, ddof=1) / math.sqrt(n), rel=3e-4)


def test_one_window_has_no_interval_and_a_gap_has_no_mean():
    assert comparing.mean_interval([3.0]) == (3.0, None)
    assert comparing.mean_interval([3.0, None]) == (None, None)


def test_warnings_are_told_once_for_all_windows(comparison):
    runs = [
        comparing.Run(
            r.scenario,
            r.policy,
            r.window,
            {**r.summary, "warnings": [f"{k + 1} requests unfinished"]},
            [],
            [],
        )
        for k, r in enumerate(comparison.runs)
    ]
    everyone = comparing.Comparison(["toy"], comparison.policies, 2, 0, runs)
    assert everyone.warnings() == ["toy: 1 requests unfinished"]
    some = comparing.Comparison(["toy"], comparison.policies, 2, 0, [*runs[:2], *comparison.runs[2:]])
    assert "toy: 1 requests unfinished (three-part)" in some.warnings()


def test_all_means_every_policy():
    assert comparing._chosen_policies("all") == list(policy_names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policies": "three-prt"}, "did you mean 'three-part'"),
        ({"policies": ""}, "no policy named"),
        ({"scenarios": "toi"}, "toy"),
        ({"scenarios": ["toy", "toy"]}, "two scenarios are named 'toy'"),
        ({"windows": 0}, "windows: is 0"),
        ({"jobs": -1}, "jobs: is -1"),
        ({"rate_scale": float("nan")}, "rate scale"),
        ({"seed": "one"}, "seed: is 'one'"),
        ({"windows": "two"}, "windows: is 'two'"),
        ({"params": {"long_tokens": float("inf")}}, "params: long_tokens is inf"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        pdenv.compare(**{"scenarios": "toy", "policies": "three-part", **arguments})


def test_a_bad_trace_is_reported_from_workers_too(toy, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("not,a,trace\n")
    with pytest.raises(InputError, match=r"trace\.csv"):
        pdenv.compare(toy, "three-part,greedy", jobs=2, trace=str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": 3}, "scenario: is of type int; give a Scenario"),
        ({"policy": None}, "policy NoneType"),
        ({"seed": 1.5}, "seed: is 1.5; give a whole number"),
        ({"seed": 2**63}, "seed"),
        ({"window": "first"}, "window: is 'first'"),
        ({"trace": 7}, "trace: is of type int"),
        ({"span": "all"}, "span: 'all' is neither"),
        ({"params": [1]}, "params: is of type list"),
        ({"params": {"long_tokens": "many"}}, "params: long_tokens is 'many'"),
        ({"params": {"long_tokens": 10**5000}}, "params: long_tokens is"),
        ({"rate_scale": 10**400}, "rate scale"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        pdenv.simulate(**{"scenario": "toy", "policy": "three-part", **arguments})


def test_numbers_of_numpy_are_numbers(toy):
    result = pdenv.simulate(toy, "greedy", seed=np.int64(3), window=np.int32(1), rate_scale=np.float32(0.5))
    assert result.summary == pdenv.simulate(toy, "greedy", seed=3, window=1, rate_scale=0.5).summary
    assert json.loads(json.dumps(result.summary))["seed"] == 3


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        """
import multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
from pdenv.bench.compare import _start_worker

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    # The pipe ends when the last process that holds it has, so this waits for the worker too.
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0


# ---- tables -----------------------------------------------------------------------------------------------


def printed(comparison: comparing.Comparison, width: int) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    tables.print_comparison(comparison, console)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_leaderboard_fits_its_width_and_cuts_nothing(comparison, width):
    text = printed(comparison, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    standing = comparison.leaderboard("toy")[0]
    for column in tables.LATENCY + tables.RESOURCES:
        assert tables.cell(standing, column) in text


def test_leaderboard_names_the_busiest_links_and_shows_co_located_instances(comparison):
    standings = {standing.policy: standing for standing in comparison.leaderboard("toy")}
    links, prefill, memory = (
        next(c for c in tables.RESOURCES if c.metric == metric)
        for metric in ("network_utilisation", "prefill_utilisation", "decode_memory_utilisation")
    )
    named = {run.summary["busiest_tier"] for run in standings["three-part"].runs}
    assert tables.cell(standings["three-part"], links).split()[-1] in named <= {"nic", "min_cut"}
    twin = standings["colocated"]
    assert tables.cell(twin, links) == "–"
    for column, key in ((prefill, "colocated_utilisation"), (memory, "colocated_memory_utilisation")):
        values = [run.summary[key] for run in twin.runs]
        assert twin.mean[column.metric] == pytest.approx(sum(values) / 2)
        assert tables.cell(twin, column).startswith(f"{50 * sum(values):.1f} ±")


def test_leaderboard_is_one_table_where_there_is_room(comparison):
    heads = {
        width: sum(line.startswith(("policy ", " policy ")) for line in printed(comparison, width).splitlines())
        for width in (100, 250)
    }
    assert heads[250] == 1
    assert heads[100] >= 2


def test_operating_point_states_each_constraint_and_the_conflict(comparison):
    first, *lines = tables.operating_point(comparison.leaderboard("toy"))
    assert first.startswith("Operating point under three-part") or "round-robin" in first
    assert [line.split()[0] for line in lines] == ["prefill", "decode", "network", "constraint"]
    assert all(line.endswith(("met", "NOT met", "unknown")) for line in lines[:3])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0, "0"), (1.23456, "1.235"), (12.3456, "12.35"), (123.456, "123.5"),
     (12345.6, "12,346"), (0.00012345, "0.000123"), (2_000, "2,000")],
)  # fmt: skip
def test_numbers_keep_three_digits_or_more(value, text):
    assert tables.number(value) == text


# ---- report -----------------------------------------------------------------------------------------------


def test_report_has_pictures_leaderboard_and_results(comparison, tmp_path):
    folder = tmp_path / "report"
    plots.write_report(comparison, folder)
    names = {path.name for path in folder.iterdir()}
    pictures = {f"toy-{kind}.png" for kind in ("leaderboard", "latency", "utilisation")}
    assert names == pictures | {"leaderboard.md", "results.json"}
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert json.loads((folder / "results.json").read_text()) == comparison.to_dict()
    text = (folder / "leaderboard.md").read_text()
    assert all(f"| {policy} |" in text for policy in comparison.policies)
    assert "toy-leaderboard.png" in text


def test_report_keeps_other_files_of_an_existing_folder(comparison, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    plots.write_report(comparison, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "leaderboard.md").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_report_that_fails_leaves_nothing(comparison, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots, "utilisation_figure", broken)
    with pytest.raises(InputError, match="no space left"):
        plots.write_report(comparison, tmp_path / "report")
    assert list(tmp_path.iterdir()) == []


def test_pictures_survive_policies_without_samples(comparison, tmp_path):
    empty = [
        comparing.Run(
            run.scenario,
            run.policy,
            run.window,
            {**run.summary, "joint_tpot_s": dict.fromkeys(run.summary["joint_tpot_s"])},
            [],
            [],
        )
        for run in comparison.runs
    ]
    plots.write_report(comparing.Comparison(["toy"], comparison.policies, 2, 0, empty), tmp_path / "report")
    assert (tmp_path / "report" / "toy-latency.png").is_file()


@pytest.mark.parametrize(("name", "stem"), [("my scenario/1", "my-scenario-1"), ("..", "scenario"), ("a.b_c", "a.b_c")])
def test_file_names_stay_in_the_folder(name, stem):
    assert plots.file_stem(name) == stem
