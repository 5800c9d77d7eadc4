"""Policies of others in comparisons: module:Class, `predict`, saved agents; and what happens when they fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pdenv
from pdenv import cli
from pdenv.bench import plugins
from pdenv.errors import InputError

SMALL = {"window.requests": 60}

MODULE = '''
import numpy as np
from pdenv.sim.view import Route, Scale

class Fixed:
    """Every request to one pair."""

    def __init__(self, instance=0.0, fails_at=-1, seed=0):
        self.instance, self.fails_at = int(instance), fails_at

    def route(self, view, request):
        if request.number == self.fails_at:
            raise KeyError("lost my\\nnotes")
        return Route.pair(self.instance, self.instance, 0)

    def pair(self, view, request):
        return self.instance

    def scale(self, view):
        return Scale()

class First:
    """Asked by `predict`: the first legal action; counts its decisions in its state."""

    def __init__(self, answers_left=1e9):
        self.answers_left = answers_left

    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        assert (state is None) == bool(episode_start[0])
        state = (state or 0) + 1
        return (int(np.flatnonzero(action_masks)[0]) if state <= self.answers_left else 10_000), state

class Silent(First):
    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        return 0

class Crashing(First):
    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        raise RuntimeError("not today")

class Blind:
    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.array(3), None

class Mute(Fixed):
    def route(self, view, request):
        return None

class Quitting(Fixed):
    def route(self, view, request):
        raise SystemExit(9)

class Rude(Fixed):
    class Nameless(BaseException):
        def __str__(self):
            raise RuntimeError("no words")

    def route(self, view, request):
        raise self.Nameless

class QuittingLater(First):
    def predict(self, observation, state=None, episode_start=None, deterministic=True, action_masks=None):
        raise SystemExit(0)

class Talking(Fixed):
    def route(self, view, request):
        print("hello")
        return super().route(view, request)

class Leaving:
    def __init__(self):
        raise SystemExit(0)

class Picky:
    def __init__(self):
        raise RuntimeError("not today")

class Half:
    name = "half"

    def route(self, view, request):
        return None
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder to work in, with a module that nothing has imported."""
    name = f"mine_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    return name


@pytest.fixture(scope="module")
def toy() -> pdenv.Scenario:
    return pdenv.load_scenario("toy", overrides=SMALL)


def call(*arguments: str):
    return CliRunner().invoke(cli.app, ["compare", "toy", "--set", "window.requests=60", *arguments])


# ---- module:Class -----------------------------------------------------------------------------------------


def test_a_class_of_the_current_folder_takes_part(toy, here):
    name = f"{here}:Fixed"
    serial, parallel = (
        pdenv.compare(toy, [name, "greedy"], windows=2, jobs=jobs, params={"instance": 1.0}) for jobs in (1, 2)
    )
    assert serial == parallel
    assert [(e.name, e.kind, e.source, e.params) for e in serial.entries] == [
        (name, "plug-in", name, {"instance": 1.0}),
        ("greedy", "heuristic", "", {}),
    ]
    assert serial.runs[0].summary["policy"] == name
    assert serial.runs[0].summary["params"] == {"instance": 1.0}
    assert serial.leaderboard("toy")[0].policy == "greedy"


def test_one_run_takes_the_same_names(toy, here):
    arguments = ("simulate", "toy", "--set", "window.requests=60", "--policy", f"{here}:First", "--json", "-")
    summary = json.loads(CliRunner().invoke(cli.app, arguments).stdout)
    assert summary["policy"] == f"{here}:First"
    assert summary["cost"] == pdenv.compare(toy, f"{here}:First").runs[0].summary["cost"]


def test_what_predicts_is_measured_as_what_routes(toy, here):
    """The first legal action is the first pair uncompressed: what `Fixed` answers."""
    routed, predicted = pdenv.compare(toy, [f"{here}:Fixed", f"{here}:First"]).runs
    own = ("policy", "params")
    assert {k: v for k, v in predicted.summary.items() if k not in own} == {
        k: v for k, v in routed.summary.items() if k not in own
    }
    assert predicted.ttft_cdf_s == routed.ttft_cdf_s
    assert len(predicted.series.time_s) == len(predicted.series.prefill_busy) > 40


def test_what_predicts_scales_where_the_scenario_does(toy, here):
    scaling = pdenv.load_scenario("toy", overrides={**SMALL, "scaling.interval_s": 1.0})
    (run,) = pdenv.compare(scaling, f"{here}:First").runs
    assert run.failure is None and run.summary["completed"] == 60


def test_without_masks_illegal_actions_are_replaced_and_counted(toy, here):
    comparison = pdenv.compare(toy, f"{here}:Blind")
    assert comparison.runs[0].summary["completed"] == 60
    assert any("actions were not legal; the first legal one" in line for line in comparison.warnings())


def test_changed_source_is_another_policy(toy, here, tmp_path):
    first = plugins.find(f"{here}:Fixed").digest
    (tmp_path / f"{here}.py").write_text(MODULE + "\n# changed\n")
    assert first != plugins.find(f"{here}:Fixed").digest != ""


def test_a_trace_as_a_whole_is_no_episode(toy, here, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,10\n1.0,10,10\n")
    with pytest.raises(InputError, match="serves a trace in windows only"):
        pdenv.compare(toy, f"{here}:First", trace=str(trace))


# ---- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "params", "step", "message"),
    [
        ("Fixed", {"fails_at": 30.0}, 30, "fails in route at .* KeyError: 'lost my"),
        ("Fixed", {"instance": 9.0}, 0, "prefill 9 with decode 9 in precision 0 is not legal"),
        ("First", {"answers_left": 5.0}, 5, r"10000 is not in Discrete\(19\)"),
        ("Silent", {}, 0, r"predict gave int; \(action, state\) was expected"),
        ("Crashing", {}, 0, "fails in predict: RuntimeError: not today"),
        ("Quitting", {}, 0, "fails in route at .* SystemExit: 9"),
        ("Mute", {}, 0, "route answered NoneType; a pdenv.policies.Route was expected"),
        ("Rude", {}, 0, "fails in route at .* Nameless"),
        ("QuittingLater", {}, 0, "fails in predict: SystemExit: 0"),
    ],
)
def test_a_policy_that_fails_is_marked_and_the_others_go_on(toy, here, policy, params, step, message):
    name = f"{here}:{policy}"
    comparison = pdenv.compare(toy, [name, "greedy"], windows=2, params=params)
    board = comparison.leaderboard("toy")
    assert [(s.policy, s.failed) for s in board] == [("greedy", 0), (name, 2)]
    (where, failure), _ = comparison.failures
    assert (where, failure.policy, failure.window, failure.step) == ("toy", name, 0, step)
    assert re.search(message, failure.message)
    assert str(failure).count("\n") == 0


def test_the_command_names_policy_window_and_step_and_ends_with_1(here, tmp_path):
    name = f"{here}:Fixed"
    result = call("--policies", f"{name},greedy", "--param", "fails_at=30", "--windows", "2", "--report", "out")
    assert result.exit_code == 1
    (line,) = (line for line in result.stderr.splitlines() if "warning" not in line)
    assert line.startswith(f"pdenv: toy: policy '{name}', window 0, step 30: fails in route at ")
    assert line.endswith("(and 1 more runs failed)")
    assert "FAILED in 2 of 2 windows" in result.stdout
    assert "FAILED in 2 of 2 windows" in (tmp_path / "out" / "leaderboard.md").read_text()
    assert "window 0, step 30" in (tmp_path / "out" / "results.csv").read_text()
    runs = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert [run["failure"]["step"] for run in runs if run["failure"]] == [30, 30]
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 2  # what failed may be repaired, and runs again


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{}:Nope", "cannot load {}:Nope: "),
        (
            "no_such_module:Mine",
            "cannot load no_such_module:Mine: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("{}:Picky", "fails when it is made: RuntimeError: not today"),
        ("{}:Half", "has no pair and no scale"),
        ("{}:Leaving", "fails when it is made: SystemExit: 0"),
        ("sys:exit", "fails when it is made: SystemExit"),
        ("nope.zip", "there is no such file"),
        ("no/run", "is no policy: no run of agents.train"),
        ("three-prt", "did you mean 'three-part'"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_before_anything_runs(here, monkeypatch, policy, message):
    def never(*_):
        raise AssertionError("a run started")

    monkeypatch.setattr("pdenv.bench.runner.run_job", never)
    result = call("--policies", f"greedy,{policy.format(here)}")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("pdenv: policy") and message.format(here) in line


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_a_policy_prints_is_no_json(here, tmp_path, jobs):
    command = [sys.executable, "-m", "pdenv", "compare", "toy", "--set", "window.requests=60", "--json", "-"]
    command += ["--policies", f"{here}:Talking,greedy", "--windows", "2", "--jobs", jobs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["policies"] == [f"{here}:Talking", "greedy"]
    assert "hello" in done.stderr


# ---- trained agents ---------------------------------------------------------------------------------------


def saved(algorithm: str, path: Path, **settings) -> Path:
    """An agent that has hardly been trained."""
    import sb3_contrib
    import stable_baselines3

    made_by = getattr(sb3_contrib, algorithm, None) or getattr(stable_baselines3, algorithm)
    observation = settings.pop("observation", "normalized")
    env = pdenv.make_sb3_vec_env(
        "pdenv/Routing-v0", 1, scenario="toy", horizon_requests=20, on_illegal="replace", observation=observation,
        flat=settings.pop("flat", False),
    )  # fmt: skip
    kind = "MlpPolicy" if env.flat else "MultiInputPolicy"
    made_by(kind, env, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}, **settings).save(path)
    return path


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("MaskablePPO", {"n_steps": 8, "batch_size": 8}),
        ("PPO", {"n_steps": 8, "batch_size": 8, "flat": True}),
        ("DQN", {"buffer_size": 10, "observation": "raw"}),
    ],
)
def test_a_saved_agent_takes_part_with_a_warning(toy, tmp_path, algorithm, settings):
    saved(algorithm, tmp_path / "agent.zip", **settings)
    with pytest.warns(UserWarning, match=r"loading agent\.zip executes code that it contains"):
        comparison = pdenv.compare(toy, "agent.zip,greedy")
    run = comparison.runs[0]
    assert run.failure is None and run.summary["requests"] == 60
    assert comparison.entries[0].kind == "agent"
    illegal = any("not legal" in line for line in run.summary["warnings"])
    assert not (algorithm == "MaskablePPO" and illegal)


def test_an_agent_of_another_cluster_is_refused_before_anything_runs(tmp_path):
    saved("MaskablePPO", tmp_path / "agent.zip", n_steps=8, batch_size=8)
    result = CliRunner().invoke(cli.app, ["compare", "hetero-links", "--policies", "greedy,agent.zip"])
    assert result.exit_code == 2
    warning, line = result.stderr.splitlines()
    assert "executes code" in warning
    assert "are not those of scenario 'hetero-links'" in line


def test_a_zip_of_something_else_is_one_line(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as file:
        file.writestr("notes.txt", "nothing")
    result = call("--policies", "agent.zip")
    assert result.exit_code == 2
    assert "is no agent of MaskablePPO, PPO, A2C or DQN" in result.stderr.splitlines()[-1]


def test_a_run_of_agents_train_takes_part(toy, tmp_path):
    from agents.config import Hyperparameters
    from agents.runs import Run, create_run, make_model, save_checkpoint

    hyperparameters = Hyperparameters(n_envs=2, n_steps=8, batch_size=16, horizon_requests=20, rollouts_per_window=1)
    run = Run(tmp_path / "runs" / "mine", "maskable-ppo", toy, 16, 0, hyperparameters)
    run.folder.parent.mkdir()
    create_run(run)
    model = make_model(run)
    model.learn(16)
    save_checkpoint(model, run.checkpoint)
    name = str(Path("runs") / "mine")
    comparison = pdenv.compare(toy, [name, "random"])
    assert comparison.entries[0].kind == "agent"
    assert comparison.runs[0].failure is None
    assert np.isfinite(comparison.runs[0].summary["cost"]["mean"])
