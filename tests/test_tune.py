"""Tuning: on training windows only, resumable, the same however it is run, and stored for the suite."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import pdenv
from pdenv import cli
from pdenv.bench import results, tables
from pdenv.bench import tune as tuning
from pdenv.bench.suite import Suite, digest_of
from pdenv.errors import InputError

BUSY = {"window.requests": 60, "workload.rate_per_s": 12.0}


@pytest.fixture(scope="module")
def toy() -> pdenv.Scenario:
    return pdenv.load_scenario("toy", overrides=BUSY)


@pytest.fixture(scope="module")
def tuned(toy) -> tuning.Tuned:
    return tuning.tune(toy, "three-part", 12, windows=2, seed=3)


def cost(scenario: pdenv.Scenario, split: str, params: dict[str, float]) -> float:
    runs = [
        pdenv.simulate(scenario, "three-part", seed=3, window=w, span="window", split=split, params=params)
        for w in (0, 1)
    ]
    return sum(run.summary["cost"]["mean"] for run in runs) / 2


def test_the_cost_is_that_of_the_training_windows(toy, tuned):
    assert tuned.cost == pytest.approx(cost(toy, "train", tuned.params))
    assert tuned.default_cost == pytest.approx(cost(toy, "train", {}))
    assert tuned.cost < tuned.default_cost  # at this load there is something to find
    assert tuned.trials == tuned.budget == 12


def test_no_other_window_is_looked_at(toy, monkeypatch):
    seen = set()
    build = pdenv.workload.build

    def watched(*arguments, **options):
        seen.add((options["split"], options["window"]))
        return build(*arguments, **options)

    monkeypatch.setattr("pdenv.run.workload.build", watched)
    tuning.tune(toy, "kv-aware", 2, windows=2)
    assert seen == {("train", 0), ("train", 1)}


def test_parameters_stay_in_the_space_and_what_does_nothing_is_left_out(toy, tuned):
    space = tuning.search_space("three-part", toy)
    assert set(tuned.params) == set(space)
    assert all(space[name].low <= value <= space[name].high for name, value in tuned.params.items())
    assert "prefill_high" not in space  # nothing scales here
    scaling = pdenv.load_scenario("toy", overrides={**BUSY, "scaling.interval_s": 2.0})
    assert {"prefill_high", "quiet_ticks", "long_tokens"} <= set(tuning.search_space("three-part", scaling))


def test_the_result_does_not_depend_on_jobs(toy, tuned):
    assert tuning.tune(toy, "three-part", 12, windows=2, seed=3, jobs=2) == tuned


def test_interrupted_tuning_ends_as_if_it_had_not_been(toy, tuned, tmp_path):
    output = tmp_path / "deep" / "three-part.yaml"

    def stop(done: int, budget: int, best: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(toy, "three-part", 12, windows=2, seed=3, output=output, progress=stop)
    (journal,) = output.parent.iterdir()
    with journal.open("a") as file:
        file.write('{"op_code": 6, "worker')  # what a kill leaves of a line
    done: list[int] = []
    again = tuning.tune(toy, "three-part", 12, windows=2, seed=3, output=output, progress=lambda n, *_: done.append(n))
    assert done == list(range(6, 13))
    assert again == tuned
    assert list(output.parent.iterdir()) == [output]
    assert tuning.read(output) == tuned


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_tuning_goes_on(tmp_path):
    scenario, output = tmp_path / "mine.yaml", tmp_path / "out.yaml"
    scenario.write_text(pdenv.load_scenario("toy", overrides={**BUSY, "window.requests": 500}).to_yaml())
    command = [sys.executable, "-m", "pdenv", "tune", "three-part", str(scenario), "--budget", "25"]
    command += ["--output", str(output)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / ".out.yaml.journal"
    deadline = time.monotonic() + 60

    def lines() -> list[str]:
        return journal.read_text().splitlines() if journal.is_file() else []

    def told() -> int:
        return sum('"values"' in line and "null" not in line.partition('"values"')[2][:8] for line in lines())

    while told() < 5:
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not output.exists()
    subprocess.run(command, check=True, capture_output=True)
    stored = yaml.safe_load(output.read_text())
    whole = tuning.tune(pdenv.load_scenario(scenario), "three-part", 25)
    assert stored["params"] == whole.params and stored["trials"] == 25


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("lookahead(pull)", "is a reference and has no parameters of its own; tune the rule under it, pull"),
        ("round-robin", "has no parameters to tune"),
        ("three-prt", "did you mean 'three-part'"),
    ],
)
def test_what_cannot_be_tuned_is_refused(toy, policy, message):
    with pytest.raises(InputError, match=message):
        tuning.tune(toy, policy, 2)


def test_the_command_stores_the_result_and_says_how_to_use_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["tune", "kv-aware", "toy", "--budget", "3", "--windows", "1"])
    assert result.exit_code == 0, result.output
    stored = yaml.safe_load(Path("tuned/toy/kv-aware.yaml").read_text())
    assert stored["policy"] == "kv-aware" and stored["digest"] == digest_of(pdenv.load_scenario("toy"))
    assert f"long_tokens={stored['params']['long_tokens']:.6g}" in result.stdout
    (hint,) = (line for line in result.stdout.splitlines() if line.startswith("to use it: "))
    words = [*shlex.split(hint.removeprefix("to use it: pdenv")), "--windows", "2", "--json", "used.json"]
    assert CliRunner().invoke(cli.app, words).exit_code == 0
    entries = {entry.name: entry for entry in results.load("used.json").entries}
    assert entries["kv-aware"].tuned_params == {"toy": stored["params"]} and not entries["three-part"].tuned


def test_nothing_tuned_for_what_is_compared_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        pdenv.compare("toy", "greedy", tuned=tmp_path / "none")
    with pytest.raises(InputError, match="holds nothing that was tuned for these policies"):
        pdenv.compare("toy", "greedy", tuned=tmp_path)


def test_where_nothing_scales_a_scaler_changes_no_parameters():
    assert tuning.stored_params("v1", "hetero-links", "greedy+queue") == tuning.stored_params(
        "v1", "hetero-links", "greedy"
    )
    assert tuning.stored_params("v1", "burst-scaling", "greedy+queue") != tuning.stored_params(
        "v1", "burst-scaling", "greedy"
    )


# ---- stored for a suite -----------------------------------------------------------------------------------


def test_stored_parameters_are_for_the_scenario_as_it_was(toy, tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "TUNED", tmp_path)
    path = tuning.file_of("three-part", "toy", tmp_path / "v9")
    path.parent.mkdir(parents=True)
    tuned.write(path)
    assert tuning.stored_params("v9", toy, "three-part") == tuned.params
    assert tuning.stored_params("v9", toy, "greedy") == {}
    other = pdenv.load_scenario("toy", overrides={**BUSY, "workload.rate_per_s": 11.0})
    assert tuning.stored_params("v9", other, "three-part") == {}
    path.write_text("policy: three-part\n")
    with pytest.raises(InputError, match=r"three-part\.yaml: is no result of pdenv tune"):
        tuning.stored_params("v9", toy, "three-part")


def stored_files() -> list[Path]:
    return sorted(tuning.TUNED.rglob("*.yaml"))


def test_what_is_stored_fits_the_scenarios_and_policies_of_today():
    for path in stored_files():
        found = tuning.read(path)
        scenario = pdenv.load_scenario(found.scenario)
        assert path == tuning.file_of(found.policy, found.scenario, path.parents[1])
        assert found.digest == digest_of(scenario), path
        assert set(found.params) == set(tuning.search_space(found.policy, scenario)), path
        assert found.cost <= found.default_cost
        json.dumps(found.params, allow_nan=False)


@pytest.fixture
def suite(monkeypatch, tmp_path) -> Suite:
    """A suite of one scenario, whose tuned parameters are kept in a folder of the test."""
    made = Suite("v9", ("toy",), (), 2, 7, {})
    monkeypatch.setattr("pdenv.bench.suite.load_suite", lambda name: made)
    monkeypatch.setattr("pdenv.bench.suite.policies_of", lambda suite, name: ("three-part", "kv-aware", "round-robin"))
    monkeypatch.setattr(tuning, "TUNED", tmp_path)
    return made


def test_a_suite_is_tuned_once(suite, tmp_path):
    seen: list[tuple[int, int, str]] = []
    found = tuning.tune_suite(suite, 3, windows=1, progress=lambda *state: seen.append(state))
    assert [t.policy for t in found] == ["three-part", "kv-aware"]  # round-robin has nothing to tune
    assert seen[-1] == (2, 2, "toy · kv-aware")
    assert {path.name for path in (tmp_path / "v9" / "toy").iterdir()} == {"three-part.yaml", "kv-aware.yaml"}
    assert tuning.tune_suite(suite, 3, windows=1) == []
    tuning.file_of("kv-aware", "toy", tmp_path / "v9").unlink()
    assert tuning.tune_suite(suite, 3, windows=1) == [found[1]]
    assert [t.budget for t in tuning.tune_suite(suite, 4, windows=1)] == [4, 4]


def test_a_comparison_of_a_suite_has_its_windows_seed_and_tuned_parameters(suite, tmp_path):
    stored = {t.policy: t.params for t in tuning.tune_suite(suite, 3, windows=1)}
    comparison = pdenv.compare(suite="v9")
    assert (comparison.suite, comparison.windows, comparison.seed) == ("v9", 2, 7)
    assert comparison.policies == ["three-part", "kv-aware", "round-robin"]
    ran = {run.policy: run.summary["params"] for run in comparison.runs}
    assert ran == {**stored, "round-robin": {}}
    assert [entry.tuned for entry in comparison.entries] == [True, True, False]
    assert comparison.entries[0].tuned_params == {"toy": stored["three-part"]}
    assert tables.caveats(comparison)[-1] == "Suite v9: tuned parameters for three-part, kv-aware"
    given = pdenv.compare(suite="v9", policies="kv-aware", params={"long_tokens": 99.0}, windows=1)
    assert given.runs[0].summary["params"] == {"long_tokens": 99.0}
    plain = pdenv.compare(suite="v9", tuned=False)
    assert {run.policy: run.summary["params"] for run in plain.runs} == {name: {} for name in ran}
    assert tables.caveats(plain)[-1] == "Suite v9: default parameters"
    again = pdenv.compare("toy", "three-part", seed=7, windows=2)
    assert again.runs[0].summary["cost"] == plain.runs[0].summary["cost"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate_scale": 2.0}, "rate_scale: is fixed in suite v9"),
        ({"trace": "requests.csv"}, "trace: is fixed in suite v9"),
        ({"scenarios": "operating-point"}, "suite v9 has no 'operating-point'"),
        ({"scenarios": pdenv.load_scenario("toy", overrides=BUSY)}, "is not as suite v9 has it"),
    ],
)
@pytest.mark.usefixtures("suite")
def test_what_a_suite_fixes_cannot_be_changed(arguments, message):
    with pytest.raises(InputError, match=message):
        pdenv.compare(suite="v9", **arguments)


def test_the_lock_of_a_killed_tuning_does_not_stop_the_next(toy, tmp_path):
    output = tmp_path / "greedy.yaml"
    (tmp_path / ".greedy.yaml.journal.lock").symlink_to(".greedy.yaml.journal")  # as Optuna leaves it
    assert tuning.tune(toy, "greedy", 2, windows=1, output=output).trials == 2
    assert [path.name for path in tmp_path.iterdir()] == ["greedy.yaml"]
