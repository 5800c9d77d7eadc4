"""Comparisons: fair, the same however they are run, and readable."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

import pdenv
from pdenv.bench import compare as comparing
from pdenv.bench import plots, results, runner, tables
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
        dataclasses.replace(run, summary={**run.summary, "cost": {**run.summary["cost"], "mean": costs[run.policy]}})
        for run in comparison.runs
    ]
    return dataclasses.replace(comparison, runs=runs)


def made_up(costs: dict[str, list[float | None]], scenarios: tuple[str, ...] = ("toy",)) -> comparing.Comparison:
    """A comparison with these costs, a number a window; None: the policy failed there."""
    runs = []
    for scenario in scenarios:
        for policy, own in costs.items():
            for window, cost in enumerate(own):
                failure = comparing.Failure(policy, window, 3, 1.5, "lost its notes") if cost is None else None
                summary = {} if cost is None else {"cost": {"mean": cost}, "warnings": []}
                runs.append(comparing.Run(scenario, policy, window, summary, [], [], None, failure))
    kinds = {"lookahead": "reference", "mine": "plug-in"}
    entries = [comparing.Entry(policy, kinds.get(policy, "heuristic")) for policy in costs]
    return comparing.Comparison(list(scenarios), entries, len(next(iter(costs.values()))), 0, runs)


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


@pytest.mark.parametrize("policy", ["three-part", "colocated"])
def test_a_run_that_is_watched_has_the_same_numbers(policy):
    scenario = pdenv.load_scenario("toy", overrides={**SMALL, "workload.rate_per_s": 12.0, "scaling.interval_s": 2.0})
    alone, watched = (pdenv.simulate(scenario, policy, seed=2, series=series) for series in (False, True))
    assert alone.series is None
    assert watched.summary == alone.summary
    assert watched.requests.tobytes() == alone.requests.tobytes()
    series = watched.series
    assert len(series.time_s) == len(series.prefill_busy) == len(series.decode_memory) == 60
    assert series.time_s[-1] == pytest.approx(watched.workload.end_s, abs=1e-3)
    assert len(series.network) == (0 if policy == "colocated" else 60)
    measured = np.array(series.time_s) > watched.workload.warmup_s + 1e-3
    names = ("colocated_utilisation", "colocated_memory_utilisation")
    if policy != "colocated":
        names = ("prefill_utilisation", "decode_memory_utilisation")
    for values, name in zip((series.prefill_busy, series.decode_memory), names, strict=True):
        assert np.array(values)[measured].mean() == pytest.approx(watched.summary[name], rel=0.1)


def test_training_windows_are_others(toy):
    train, test = (pdenv.simulate(toy, split=split, span="window").summary for split in ("train", "test"))
    assert train["cost"] != test["cost"]
    assert test == pdenv.simulate(toy).summary


# ---- comparisons ------------------------------------------------------------------------------------------


def test_every_policy_sees_the_same_arrivals(comparison):
    for window in range(2):
        runs = [run.summary for run in comparison.runs if run.window == window]
        assert len({(s["duration_s"], s["offered_prefill_load"], s["requests"]) for s in runs}) == 1
    assert comparison.runs[0].summary["duration_s"] != comparison.runs[1].summary["duration_s"]


def test_numbers_do_not_depend_on_jobs(toy, comparison):
    parallel = pdenv.compare(toy, "three-part,round-robin,colocated", windows=2, jobs=2)
    assert parallel == comparison
    assert parallel.to_dict()["leaderboards"] == comparison.to_dict()["leaderboards"]


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
    assert (standing.low["ttft_p99_s"], standing.high["ttft_p99_s"]) == (min(values), max(values))


def test_one_window_has_no_interval_and_a_gap_has_no_mean():
    (one,) = made_up({"greedy": [3.0]}).leaderboard("toy")
    assert (one.mean["cost"], one.low["cost"], one.high["cost"]) == (3.0, None, None)
    assert one.mean["ttft_p99_s"] is None
    assert results.mean_interval([3.0, None]) == (None, None)


def test_others_are_compared_with_the_best_heuristic_and_ties_are_ties():
    rng = np.random.default_rng(0)
    base = rng.exponential(1.0, 12) + 1.0
    noise = rng.normal(0.0, 0.02, 12)
    board = made_up(
        {
            "three-part": list(1.3 * base),
            "greedy": list(base),
            "least-work": list(base + noise - noise.mean() + 0.001),
            "lookahead": list(0.7 * base),
        }
    ).leaderboard("toy")
    found = {s.policy: s for s in board}
    assert [s.policy for s in board] == ["lookahead", "greedy", "least-work", "three-part"]
    assert found["greedy"].relative == (1.0, 1.0, 1.0)
    assert found["greedy"].p_value is None and not found["greedy"].tied
    assert found["three-part"].relative == pytest.approx((1.3, 1.3, 1.3))
    assert found["lookahead"].relative.mid == pytest.approx(0.7)
    assert found["lookahead"].kind == "reference"
    assert found["three-part"].p_value == pytest.approx(3 * 2 / 2**12)  # the smallest of three
    assert not found["three-part"].tied and not found["lookahead"].tied
    assert found["least-work"].tied and found["least-work"].p_value > 0.05
    assert tables.relative_cell(found["least-work"]).startswith("= 1.00")


def test_a_policy_that_failed_has_no_mean_and_is_last():
    board = made_up({"mine": [0.1, None], "greedy": [1.0, 2.0]}).leaderboard("toy")
    assert [(s.policy, s.failed, s.mean["cost"]) for s in board] == [("greedy", 0, 1.5), ("mine", 1, None)]
    assert board[1].relative is None


def test_cost_across_scenarios_is_relative_to_three_part():
    costs = {"three-part": [2.0, 4.0], "greedy": [1.0, 2.0], "mine": [1.0, None]}
    rows = made_up(costs, ("one", "two")).overall()
    assert [(row.policy, row.iqm, row.low, row.high, row.scenarios) for row in rows] == [
        ("greedy", 0.5, 0.5, 0.5, 2),
        ("three-part", 1.0, 1.0, 1.0, 2),
    ]
    assert made_up(costs).overall() == []
    assert made_up({"greedy": [1.0]}, ("one", "two")).overall() == []


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        (1, "no intervals"),
        (2, "just their range"),
        (5, "Too few windows to tell 1 other from the best policy: ties are marked from 6 windows on"),
        (9, "fewer than 10 windows are rough"),
        (10, None),
    ],
)
def test_what_so_many_windows_are_worth_is_said(windows, words):
    lines = tables.caveats(made_up({name: [1.0 + k for k in range(windows)] for name in ("greedy", "three-part")}))
    assert lines == [] if words is None else words in " ".join(lines)


def test_results_come_back_from_their_file(comparison, tmp_path):
    results.write_results(comparison, tmp_path)
    again = comparing.load(tmp_path / "results.json")
    assert again == comparison
    assert again.leaderboard("toy") == comparison.leaderboard("toy")
    assert again.versions == comparison.versions and again.started == comparison.started
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [float(row["cost"]) for row in rows] == [run.summary["cost"]["mean"] for run in comparison.runs]


def test_a_brief_result_has_the_same_leaderboards(comparison, tmp_path):
    results.write_results(comparison.brief(), tmp_path)
    path = tmp_path / "results.json"
    again = results.load(path)
    assert tables.markdown(again, "toy") == tables.markdown(comparison, "toy")
    assert again.rows == comparison.rows
    assert path.stat().st_size < 0.5 * len(results.to_json(comparison))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ('{"format": 99}', "is of format 99"),
        ("{}", "is no result of a comparison"),
        ('{"format": 1, "runs": null}', "holds leaderboards without their runs"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"results\.json: {message}"):
        results.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scenarios", 5, "scenarios and policies are names"),
        ("windows", "2", "windows whole numbers"),
        ("entries", [], "a run of .* is in none"),
        ("runs", [5], "is no result of a comparison"),
        ("windows", 99, "is not whole"),
    ],
)
def test_a_result_that_is_not_whole_is_refused(comparison, tmp_path, key, value, message):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(comparison.brief().to_dict() | {key: value}))
    with pytest.raises(InputError, match=rf"results\.json: .*{message}"):
        results.load(path)


@pytest.mark.parametrize("name", ["lookahead(least-work)", "clairvoyant"])
def test_references_take_part_and_are_no_heuristics(toy, name):
    serial, parallel = (pdenv.compare(toy, ["greedy", name], windows=2, jobs=jobs) for jobs in (1, 2))
    assert serial == parallel
    assert [entry.kind for entry in serial.entries] == ["heuristic", "reference"]
    assert serial.best_heuristic("toy") == "greedy"
    assert name not in policy_names()
    assert f"{name} (reference)" in tables.markdown(serial, "toy")


def test_a_reference_has_the_parameters_of_its_base_rule(toy):
    (run,) = pdenv.compare(toy, "lookahead(kv-aware)", params={"long_tokens": 99.0}).runs
    assert run.summary["params"] == {"long_tokens": 99.0}


# ---- resuming ---------------------------------------------------------------------------------------------


def counted(monkeypatch) -> list[str]:
    """What runs from now on."""
    ran: list[str] = []
    run_job = runner.run_job

    def run(job):
        ran.append(f"{job.contender.name} {job.given.window}")
        return run_job(job)

    monkeypatch.setattr(runner, "run_job", run)
    return ran


def test_only_what_is_missing_or_damaged_runs_again(toy, comparison, tmp_path, monkeypatch):
    arguments = {"scenarios": toy, "policies": "three-part,round-robin,colocated", "windows": 2, "finished": tmp_path}
    pdenv.compare(**arguments)
    files = {json.loads(path.read_text())["run"]["policy"]: path for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 6
    files["colocated"].unlink()
    files["round-robin"].write_text(files["round-robin"].read_text()[:500])
    ran = counted(monkeypatch)
    assert pdenv.compare(**arguments) == comparison
    assert sorted(name.split()[0] for name in ran) == ["colocated", "round-robin"]
    ran.clear()
    assert pdenv.compare(**arguments) == comparison
    assert ran == []
    changed = json.loads(files["round-robin"].read_text())
    changed["run"]["summary"]["cost"]["mean"] = 0.001
    files["round-robin"].write_text(json.dumps(changed))
    assert pdenv.compare(**arguments) == comparison
    assert [name.split()[0] for name in ran] == ["round-robin"]


def test_windows_that_do_not_fit_are_refused_before_anything_runs(toy, tmp_path, monkeypatch):
    rows = [f"{0.1 * k:.1f},200,5" for k in range(900)]
    (tmp_path / "requests.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    ran = counted(monkeypatch)
    with pytest.raises(InputError, match=r"window 49 \(from 0\) was asked for"):
        pdenv.compare(toy, "greedy", windows=50, trace=str(tmp_path / "requests.csv"))
    few = pdenv.load_scenario("toy", {"window.requests": 10})
    with pytest.raises(InputError, match="too few to draw futures from"):
        pdenv.compare(few, "greedy,lookahead", windows=2)
    assert ran == []


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"rate_scale": 0.5}, {"params": {"long_tokens": 9.0}}, {"windows": 1}, {"trace": "requests.csv"}],
)
def test_what_changes_numbers_is_another_run(toy, tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    rows = [f"{0.1 * k:.1f},{200 + k % 7},{5 + k % 3}" for k in range(900)]
    (tmp_path / "requests.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    arguments = {"scenarios": toy, "policies": "kv-aware", "windows": 2, "finished": tmp_path / "runs"}
    pdenv.compare(**arguments)
    ran = counted(monkeypatch)
    pdenv.compare(**{**arguments, **change})
    # One window of generated arrivals is the first of several: only how a trace is cut differs.
    assert len(ran) == (1 if "windows" in change else 2)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_comparison_goes_on_where_it_stood(tmp_path):
    command = [sys.executable, "-m", "pdenv", "compare", "toy", "--policies", "three-part,greedy,least-work"]
    command += ["--windows", "40", "--json", "-", "--report", str(tmp_path / "out")]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runs = tmp_path / "out" / "runs"
    deadline = time.monotonic() + 60
    while not runs.is_dir() or len(list(runs.glob("[!.]*.json"))) < 10:
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    before = {path.name: path.stat().st_mtime_ns for path in runs.glob("[!.]*.json")}
    assert 10 <= len(before) < 120
    done = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True, check=True)
    assert {name: (runs / name).stat().st_mtime_ns for name in before} == before
    assert len(list(runs.glob("[!.]*.json"))) == len(json.loads(done.stdout)["runs"]) == 120


def test_warnings_are_told_once_for_all_windows(comparison):
    runs = [
        dataclasses.replace(run, summary={**run.summary, "warnings": [f"{k + 1} requests unfinished"]})
        for k, run in enumerate(comparison.runs)
    ]
    everyone = dataclasses.replace(comparison, runs=runs)
    assert everyone.warnings() == ["toy: 1 requests unfinished"]
    some = dataclasses.replace(comparison, runs=[*runs[:2], *comparison.runs[2:]])
    assert "toy: 1 requests unfinished (three-part)" in some.warnings()


def test_all_means_every_policy():
    scenario = pdenv.load_scenario("toy")
    assert comparing._names_for(["all"], None, scenario) == list(policy_names())
    assert comparing._names_for(["mine:Own", "all"], None, scenario) == ["mine:Own", *policy_names()]


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
        ({"backend": "rai"}, "did you mean 'ray'"),
        ({"policies": "lookahaed"}, "did you mean 'lookahead'"),
        ({"policies": "lookahead(gredy)"}, "did you mean 'greedy'"),
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
import os, signal, threading, time
from pdenv.bench.runner import in_processes

def work(i):
    print(os.getpid(), flush=True)
    open(f"started-{os.getpid()}", "w").close()
    time.sleep(600)

def end():
    while sum(name.startswith("started-") for name in os.listdir()) < 2:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    threading.Thread(target=end, daemon=True).start()
    list(in_processes(work, [(i,) for i in range(3)], 2))
"""
    )
    # The pipe ends when the last process that holds it has, so this waits for the worker too.
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert len(set(done.stdout.split())) >= 2


def heeded() -> None:
    """What is started in the background ignores interrupts, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_an_interrupt_ends_workers_too(tmp_path):
    command = [sys.executable, "-m", "pdenv", "compare", "toy", "--policies", "three-part,greedy"]
    command += ["--windows", "5000", "--jobs", "2", "--report", str(tmp_path / "out")]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heeded
    )
    runs = tmp_path / "out" / "runs"
    deadline = time.monotonic() + 60
    while not runs.is_dir() or len(list(runs.glob("[!.]*.json"))) < 20:
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    out, told = running.communicate(timeout=120)  # ends when the last process that holds the pipes has
    assert (running.returncode, out) == (130, b"")
    assert told.decode().splitlines()[-1] == "pdenv: interrupted; the same command goes on where it stopped"
    assert b"Traceback" not in told


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_worker_that_dies_is_one_line():
    with pytest.raises(InputError, match="jobs: a worker process ended early"):
        list(runner.in_processes(os._exit, [(3,), (3,)], 2))


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
    for column in tables.COLUMNS:
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
        assert tables.cell(twin, column) == f"{50 * sum(values):.1f}"
        low, high = sorted(f"{100 * value:.1f}" for value in values)
        assert tables.cell(twin, column, every=True) == f"{50 * sum(values):.1f} [{low}, {high}]"


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
    assert names == pictures | {"index.html", "leaderboard.md", "results.csv", "results.json"}
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert json.loads((folder / "results.json").read_text()) == comparison.to_dict()
    text = (folder / "leaderboard.md").read_text()
    assert all(f"| {policy} |" in text for policy in comparison.policies)
    assert "toy-leaderboard.png" in text


def test_names_in_any_script_are_drawn_without_a_word(comparison, tmp_path, recwarn):
    runs = [dataclasses.replace(run, scenario="$调度 x^") for run in comparison.runs]
    plots.write_report(dataclasses.replace(comparison, scenarios=["$调度 x^"], runs=runs), tmp_path / "report")
    assert len(list((tmp_path / "report").glob("*.png"))) == 3
    assert [str(warning.message) for warning in recwarn] == []


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
    none = {"joint_tpot_s": dict.fromkeys(comparison.runs[0].summary["joint_tpot_s"])}
    empty = [
        dataclasses.replace(run, summary={**run.summary, **none}, ttft_cdf_s=[], tpot_cdf_s=[])
        for run in comparison.runs
    ]
    plots.write_report(dataclasses.replace(comparison, runs=empty), tmp_path / "report")
    assert (tmp_path / "report" / "toy-latency.png").is_file()


@pytest.mark.parametrize(("name", "stem"), [("my scenario/1", "my-scenario-1"), ("..", "scenario"), ("a.b_c", "a.b_c")])
def test_file_names_stay_in_the_folder(name, stem):
    assert plots.file_stem(name) == stem
