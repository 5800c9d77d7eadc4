"""The command line: exact names, only JSON with `-`, one line for bad input, nothing half-written."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import pdenv
from pdenv import atomic, cli, scenario_docs
from pdenv.errors import InputError
from pdenv.policies import policy_names
from pdenv.references import REFERENCES
from pdenv.scenario import scenario_names
from pdenv.sim.rules import SCALERS

TOY = ["toy", "--set", "window.requests=40"]


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": None})


def refused(*arguments: str) -> str:
    """The one line on stderr with which bad input ends."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("pdenv: ")
    assert "Traceback" not in result.stderr
    return lines[0]


# ---- what it does -----------------------------------------------------------------------------------------


def test_json_to_stdout_is_only_json():
    result = call("simulate", *TOY, "--policy", "greedy", "--json", "-")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["policy"] == "greedy"
    assert summary == pdenv.simulate(pdenv.load_scenario("toy", {"window.requests": 40}), "greedy").summary


def test_simulate_prints_every_number_with_its_definition():
    result = call("simulate", *TOY)
    assert result.exit_code == 0
    for word in ("joint_tpot_s", "prefill_mean", "goodput_rps", "first token - arrival", "constraint conflict ("):
        assert word in result.stdout


def test_requests_are_one_row_each(tmp_path):
    path = tmp_path / "requests.csv"
    assert call("simulate", *TOY, "--requests", str(path), "--json", "-").exit_code == 0
    rows = list(csv.DictReader(path.open()))
    measured = [row for row in rows if row["measured"] == "True"]
    assert len(measured) == 40
    assert {row["status"] for row in measured} == {"completed"}
    assert {row["mode"] for row in measured} == {"pair"}
    assert all(float(row["finish_s"]) > float(row["arrival_s"]) for row in measured)
    assert "nan" not in path.read_text()


def test_set_changes_the_scenario():
    fast, slow = (
        json.loads(call("simulate", *TOY, "--set", f"workload.rate_per_s={rate}", "--json", "-").stdout)
        for rate in (8, 2)
    )
    assert fast["duration_s"] < slow["duration_s"]


def test_version_is_printed():
    assert call("--version").stdout == f"pdenv {pdenv.__version__}\n"


def test_compare_takes_overrides_a_seed_and_parameters():
    arguments = ("--policies", "three-part,round-robin", "--seed", "5", "--param", "compress_above_s=0.1")
    runs = [run["summary"] for run in json.loads(call("compare", *TOY, *arguments, "--json", "-").stdout)["runs"]]
    assert [(run["seed"], run["requests"]) for run in runs] == [(5, 40), (5, 40)]
    scenario = pdenv.load_scenario("toy", {"window.requests": 40})
    alone = pdenv.simulate(scenario, "three-part", seed=5, params={"compress_above_s": 0.1}).summary
    assert runs[0]["cost"] == alone["cost"]
    assert [run["params"] for run in runs] == [{"compress_above_s": 0.1}, {}]


def test_a_trace_of_two_lines_runs_at_the_operating_point(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,1024,180\n0.35,8200,64\n")
    result = call("simulate", "operating-point", "--trace", str(path), "--rate-scale", "auto", "--json", "-")
    summary = json.loads(result.stdout)
    assert (summary["requests"], summary["completed"]) == (1, 1)
    assert summary["warmup_s"] == pytest.approx(0.035 / summary["rate_scale"])


@pytest.mark.parametrize("preset", scenario_names())
def test_the_overrides_in_the_docs_fit_every_preset(preset):
    pairs = re.findall(r"--set ([^ `]+)", scenario_docs.markdown())
    assert len(pairs) == 2
    pdenv.load_scenario(preset, cli._overrides(pairs))


def test_compare_writes_json_and_report(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/pdenv", "compare", "my scenario.yaml"])
    out, report = tmp_path / "out.json", tmp_path / "report"
    result = call("compare", "toy", "--policies", "three-part,round-robin", "--json", str(out), "--report", str(report))
    assert result.exit_code == 0, result.output
    assert "Operating point" in result.stdout
    board = json.loads(out.read_text())["leaderboards"]["toy"]
    assert {row["policy"] for row in board} == {"three-part", "round-robin"}
    assert {path.name for path in report.iterdir()} >= {"leaderboard.md", "results.csv", "results.json", "runs"}
    assert json.loads((report / "results.json").read_text())["command"] == "pdenv compare 'my scenario.yaml'"


def test_a_second_comparison_takes_the_runs_of_the_first(tmp_path, monkeypatch):
    arguments = ("compare", *TOY, "--policies", "three-part", "--windows", "2", "--report", str(tmp_path / "out"))
    first = call(*arguments)

    def never(*_):
        raise AssertionError("a run started")

    monkeypatch.setattr("pdenv.bench.runner.run_job", never)
    assert call(*arguments).stdout == first.stdout


def test_compare_json_to_stdout_is_only_json():
    result = call("compare", "toy", "--policies", "three-part", "--json", "-")
    assert list(json.loads(result.stdout)["leaderboards"]) == ["toy"]


def test_scenario_show_loads_again_as_the_same(tmp_path):
    shown = call("scenario", "show", "toy").stdout
    path = tmp_path / "mine.yaml"
    path.write_text(shown)
    assert call("scenario", "validate", str(path)).exit_code == 0
    assert pdenv.load_scenario(path) == pdenv.load_scenario("toy")


def test_scenario_list_schema_and_policies():
    listed = call("scenario", "list").stdout
    assert "operating-point" in listed
    assert "toy" in listed
    assert "properties" in json.loads(call("scenario", "schema").stdout)
    lines = call("policies").stdout.splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert names == [*policy_names(), *(f"…+{name}" for name in SCALERS), *REFERENCES]


@pytest.mark.parametrize("command", [("simulate",), ("compare",), ("tune",), ("policies",), ("scenario", "show")])
def test_help_has_an_example(command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: pdenv {' '.join(command)}" in result.stdout


def test_python_dash_m_works():
    done = subprocess.run([sys.executable, "-m", "pdenv", "--help"], capture_output=True, text=True, check=True)
    assert "simulate" in done.stdout


# ---- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "operating-pont"), "operating-point"),
        (("simulate", "toy", "--policy", "gredy"), "did you mean 'greedy'"),
        (("simulate", "toy", "--trace", "/nowhere/trace.csv"), "/nowhere/trace.csv"),
        (("simulate", "toy", "--rate-scale", "-1"), "above 0"),
        (("simulate", "toy", "--rate-scale", "nan"), "above 0"),
        (("simulate", "toy", "--rate-scale", "fast"), "above 0"),
        (("simulate", "toy", "--set", "window.requests"), "key=value"),
        (("simulate", "toy", "--set", "window.request=3"), "requests"),
        (("simulate", "toy", "--set", "workload.rate_per_s=nan"), "rate_per_s"),
        (("simulate", "toy", "--json", "/nowhere/out.json"), "does not exist"),
        (("simulate", "toy", "--json", "/"), "folder"),
        (("simulate", "toy", "--json", ""), "empty"),
        (("simulate", "toy", "--json", "x\0y"), "cannot be written"),
        (("simulate", "toy", "--json", "a" * 5000), "cannot be written"),
        (("simulate", "toy", "--json", "/tmp/same", "--requests", "/tmp/same"), "same file"),
        (("compare", "toy", "--policies", "three-part,"[:-1] + ",nope"), "nope"),
        (("compare", "toy", "--policies", ","), "no policy"),
        (("compare", "toy", "--report", "/dev/null/report"), "is not a folder"),
        (("compare", "toy", "--report", "/dev/null"), "not a folder"),
        (("compare", "toy", "toy"), "two scenarios"),
        (("simulate", "toy", "--set", f"window.requests={'9' * 5000}"), "window.requests"),
        (("simulate", "toy", "--set", f"prefill.{'9' * 5000}.count=1"), "give a smaller number"),
        (("simulate", "toy", "--set", "window.requests=20000001"), "more than 20,000,000"),
        (("simulate", "toy", "--rate-scale", "1e-300"), "loses precision"),
        (("simulate", "toy", "--rate-scale", "1e308", "--set", "workload.rate_per_s=100"), "inf"),
        (("simulate", "toy", "--trace", "/dev/null"), "not a regular file"),
        (("simulate", "toy", "--trace", ""), "the path of the trace is empty"),
        (("compare", "toy", "--json", "/tmp/same", "--report", "/tmp/same"), "same path"),
        (("compare", "toy", "--suite", "v0"), "v0"),
        (("compare", "toy", "--suite", "v1", "--set", "window.requests=40"), "--set: a suite is fixed"),
        (("compare", "toy", "--defaults"), "--defaults: is for a suite"),
        (("compare", "toy", "--backend", "cloud"), "valid: local, ray"),
        (("tune", "greedy"), "name a policy and a scenario"),
        (("tune",), "name a policy and a scenario"),
        (("tune", "round-robin", "toy"), "has no parameters to tune"),
        (("tune", "three-prt", "toy"), "did you mean 'three-part'"),
        (("scenario", "show", "nope"), "nope"),
        (("scenario", "validate", "/"), "/"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "toy", "--windows", "0"),
        ("compare", "toy", "--jobs", "-1"),
        ("compare", "toy", "--windows", "two"),
        ("simulate", "toy", "--seed", "-1"),
        ("simulate", "toy", "--seed", "99999999999999999999"),
        ("simulate", "toy", "--nope"),
        ("frobnicate",),
    ],
)
def test_usage_errors_end_with_2(arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--polices", "x"), "--polices (Possible options: --policies); see pdenv compare --help"),
        (("compare", "--windows", "0"), "'--windows': Input should be greater than or equal to 1"),
        (("compare", "--windows"), "'--windows' requires an argument"),
        (("compar",), "No such command 'compar'. Did you mean 'compare'?; see pdenv --help"),
    ],
)
def test_usage_errors_are_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pdenv", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("pdenv: ") and message in line


def test_a_group_without_a_command_shows_its_help(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pdenv", "scenario"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "Usage: pdenv scenario" in capsys.readouterr().out


def test_outputs_are_checked_before_anything_runs(monkeypatch, tmp_path):
    def never(*_, **__):
        raise AssertionError("the run started")

    monkeypatch.setattr("pdenv.run.simulate", never)
    monkeypatch.setattr("pdenv.bench.compare.compare", never)
    missing = str(tmp_path / "missing" / "out")
    for option in ("--json", "--requests"):
        refused("simulate", "toy", option, missing)
    refused("compare", "toy", "--json", missing)
    (tmp_path / "file").write_text("mine")
    assert "is not a folder" in refused("compare", "toy", "--report", str(tmp_path / "file" / "out"))
    assert "cannot be made" in refused("compare", "toy", "--report", "x" * 300)


def test_the_folders_above_a_report_are_made(tmp_path):
    report = tmp_path / "runs" / "mine"
    result = call("compare", *TOY, "--policies", "three-part", "--report", str(report))
    assert result.exit_code == 0, result.output
    assert (report / "index.html").is_file()


def test_validate_lists_every_problem(tmp_path):
    tree = yaml.safe_load(call("scenario", "show", "toy").stdout)
    tree["sla"] = {"ttft_s": -1, "tpot_s": -1}
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(tree))
    result = call("scenario", "validate", str(path))
    assert result.exit_code == 2
    problems = result.stderr.splitlines()
    assert len(problems) == 2
    assert all(line.startswith("pdenv: ") and "bad.yaml" in line for line in problems)
    assert "1 more" in refused("simulate", str(path))


def test_a_failed_run_leaves_the_old_output(tmp_path):
    out = tmp_path / "out.json"
    out.write_text("old")
    refused("simulate", "toy", "--trace", "/nowhere.csv", "--json", str(out))
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_interrupt_is_one_line_and_130(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pdenv.bench.compare.compare", interrupted)
    result = call("compare", "toy")
    assert result.exit_code == 130
    assert result.stderr == "pdenv: interrupted\n"


@pytest.mark.parametrize("name", ["results.json", "toy-latency.png"])
def test_a_report_folder_that_holds_a_folder_in_the_way_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    assert f"holds a folder named {name}" in refused("compare", "toy", "--report", str(tmp_path))


def test_too_little_memory_is_one_line(monkeypatch):
    def too_large(*_, **__):
        raise MemoryError("Unable to allocate 8 EiB")

    monkeypatch.setattr("pdenv.run.simulate", too_large)
    assert "not enough memory" in refused("simulate", "toy")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["scenario schema > /dev/full", "policies > /dev/full", "--help > /dev/full"])
def test_a_stdout_that_takes_nothing_is_one_line(command):
    done = subprocess.run(f"{sys.executable} -m pdenv {command}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "pdenv: input or output failed: no space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_a_closed_stdout_is_one_line_and_a_reader_that_leaves_is_none():
    closed = subprocess.run(f"{sys.executable} -m pdenv policies >&-", shell=True, capture_output=True, text=True)
    assert (closed.returncode, len(closed.stderr.splitlines())) == (2, 1)
    assert "stdout is closed" in closed.stderr
    left = subprocess.run(
        f"{sys.executable} -m pdenv scenario schema | true", shell=True, capture_output=True, text=True
    )
    assert left.stderr == ""


# ---- files ------------------------------------------------------------------------------------------------


def test_write_replaces_whole_and_keeps_permissions(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    atomic.write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_write_follows_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    atomic.write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced():
    atomic.check_file("/dev/null")
    atomic.write_text("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="no space left"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# ---- the package ------------------------------------------------------------------------------------------


def test_import_is_cheap():
    code = "import pdenv, sys; print(sorted({'numba', 'pydantic', 'matplotlib', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exports_are_what_they_say():
    assert set(pdenv.__all__) <= set(dir(pdenv))
    for name in pdenv.__all__:
        assert getattr(pdenv, name) is not None
    assert callable(pdenv.simulate)
    assert callable(pdenv.compare)
    with pytest.raises(AttributeError, match="nope"):
        pdenv.nope  # noqa: B018
