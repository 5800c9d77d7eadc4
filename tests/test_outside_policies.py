"""Schedulers that are not compiled rules: objects in Python, and policies that other packages offer by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import baselines
import pdenv
from pdenv import cli
from pdenv.bench.plugins import find, parameters_of
from pdenv.errors import InputError
from pdenv.policies import load_policy

SMALL = {"window.requests": 60}

MODULE = '''
from pdenv.sim.view import Route, Scale

class OneForAll:
    """Every request to one pair of instances.

    Simple.
    """
    name = "one-for-all"

    def __init__(self, instance=0.0, seed=0):
        self.instance = int(instance)

    def route(self, view, request):
        if request.number == 30 and self.instance == 9:
            raise KeyError("lost my notes\\nand more")
        return Route.pair(self.instance, self.instance, 0)

    def pair(self, view, request):
        return self.instance

    def scale(self, view):
        return Scale()

class Forgetful:
    name = "forgetful"

    def route(self, view, request):
        return None

class Picky:
    def __init__(self):
        raise RuntimeError("not today")
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers three policies that work or not, and one that cannot be imported."""
    (tmp_path / "somebodys.py").write_text(MODULE)
    info = tmp_path / "somebodys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pdenv.policies]\none-for-all = somebodys:OneForAll\nforgetful = somebodys:Forgetful\n"
        "picky = somebodys:Picky\ngone = somebodys:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture(scope="module")
def toy() -> pdenv.Scenario:
    return pdenv.load_scenario("toy", overrides=SMALL)


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": None})


# ---- objects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["round-robin", "three-part", "colocated"])
def test_a_readable_twin_gives_the_summary_of_its_compiled_rule(rule):
    overload = {**SMALL, "workload.rate_per_s": 14.0, "window.drain_max_s": 1.0, "scaling.interval_s": 1.0}
    scenario = pdenv.load_scenario("toy", overrides=overload)
    twin = {twin.name: twin for twin in map(vars(baselines).get, baselines.__all__)}[rule]()
    compiled, readable = pdenv.simulate(scenario, rule, seed=4), pdenv.simulate(scenario, twin, seed=4)
    assert compiled.summary == readable.summary
    assert compiled.stopped_s == readable.stopped_s
    assert compiled.requests.tobytes() == readable.requests.tobytes()


def test_a_run_with_an_object_stops_when_the_measured_requests_have_ended(toy):
    result = pdenv.simulate(toy, baselines.LeastWork())
    measured = result.requests[result.requests["measured"]]
    assert result.stopped_s == pytest.approx(measured["finish_s"].max())
    assert result.stopped_s < result.workload.end_s + result.workload.drain_max_s


@pytest.mark.parametrize(
    ("policy", "params", "message"),
    [
        (baselines.Greedy, None, r"Greedy is a class; give an instance, Greedy\(\)"),
        (object(), None, "policy object: has no name and no route and no pair and no scale"),
        (baselines.KvAware(), {"long_tokens": 3.0}, "make the object with them"),
    ],
)
def test_what_is_no_policy_object_is_refused(toy, policy, params, message):
    with pytest.raises(InputError, match=message):
        pdenv.simulate(toy, policy, params=params)


def test_compare_takes_names_only(toy):
    with pytest.raises(InputError, match=r"entry-point group pdenv\.policies"):
        pdenv.compare(toy, [baselines.Greedy()])


# ---- names --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("package")
def test_a_package_s_policy_is_listed_and_one_that_is_broken_says_so():
    lines = {line.split()[0]: line.rstrip() for line in call("policies").stdout.splitlines()}
    assert lines["one-for-all"].endswith("Every request to one pair of instances. (parameters: instance=0)")
    assert "cannot load somebodys:Gone" in lines["gone"]


@pytest.mark.usefixtures("package")
def test_a_package_s_policy_takes_part_in_comparisons(toy):
    serial, parallel = (
        pdenv.compare(toy, "one-for-all,greedy", windows=2, jobs=jobs, params={"instance": 1.0}) for jobs in (1, 2)
    )
    assert serial == parallel
    assert [(run.policy, run.summary["params"]) for run in serial.runs[1:3]] == [
        ("one-for-all", {"instance": 1.0}),
        ("greedy", {}),
    ]
    assert serial.runs[0].summary["cost"]["mean"] > serial.runs[2].summary["cost"]["mean"]


@pytest.mark.usefixtures("package")
def test_a_package_s_policy_runs_from_the_command_line(tmp_path):
    rows = tmp_path / "rows.csv"
    arguments = ("simulate", "toy", "--set", "window.requests=40", "--policy", "one-for-all", "--param", "instance=1")
    result = call(*arguments, "--json", "-", "--requests", str(rows))
    summary = json.loads(result.stdout)
    assert (summary["policy"], summary["params"], summary["completed"]) == ("one-for-all", {"instance": 1.0}, 40)
    assert call("compare", "toy", "--policies", "one-for-all", "--json", "-").exit_code == 0


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one-for-al",), "did you mean 'one-for-all'"),
        (("gone",), "policy 'gone': cannot load somebodys:Gone: "),
        (("picky",), "policy 'picky': fails when it is made: RuntimeError: not today"),
        (("forgetful",), "policy Forgetful: has no pair and no scale"),
        (("one-for-all", "--param", "instance=9"), "policy 'one-for-all': prefill 9 with decode 9 in precision 0"),
        (("one-for-all", "--param", "instanz=9"), "did you mean 'instance'"),
    ],
)
@pytest.mark.parametrize("command", [("simulate", "toy", "--policy"), ("compare", "toy", "--policies")])
def test_a_policy_that_fails_is_one_line(command, arguments, message):
    result = call(*command, *arguments)
    fails_later = command[0] == "compare" and "instance=9" in arguments  # the other policies go on
    assert result.exit_code == (1 if fails_later else 2)
    (line,) = (line for line in result.stderr.splitlines() if "compiling the engine" not in line)
    where = "policy 'one-for-all', window 0, step 0: prefill 9" if fails_later else message
    assert line.startswith("pdenv: ") and where in line


@pytest.mark.usefixtures("package")
def test_an_exception_of_a_policy_names_it_and_when(toy, monkeypatch):
    policy = load_policy("one-for-all", {"instance": 0.0})
    monkeypatch.setattr(policy, "pair", None)
    monkeypatch.setattr(policy, "route", lambda view, request: {}["notes"])
    with pytest.raises(InputError, match=r"policy 'one-for-all': fails in route at \S+ s: KeyError: 'notes'$"):
        pdenv.simulate(toy, policy)


# ---- parameters ---------------------------------------------------------------------------------------------


def test_each_policy_takes_the_parameters_that_it_has():
    given = {"long_tokens": 9.0, "receive_limit": 2.0, "kv-aware.long_tokens": 7.0}
    assert parameters_of([find(name) for name in ("three-part", "kv-aware", "greedy")], given) == {
        "three-part": {"long_tokens": 9.0, "receive_limit": 2.0},
        "kv-aware": {"long_tokens": 7.0},
        "greedy": {},
    }


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (["kv-aware", "greedy"], "did you mean 'long_tokens'"),
        (["least-work"], "no parameter 'long_token' in least-work; they have none"),
    ],
)
def test_a_parameter_that_nobody_has_is_refused(policies, message):
    with pytest.raises(InputError, match=message):
        parameters_of([find(name) for name in policies], {"long_token": 1.0})


def test_a_parameter_of_a_policy_that_has_it_not_is_refused():
    with pytest.raises(InputError, match="no parameter 'long_tokens' in greedy"):
        parameters_of([find("greedy"), find("kv-aware")], {"greedy.long_tokens": 1.0})


def test_parameters_change_what_a_compiled_rule_does(toy):
    busy = pdenv.load_scenario("toy", overrides={**SMALL, "workload.rate_per_s": 12.0})
    never, always = (
        pdenv.simulate(busy, "three-part", params={"compress_above_s": limit}).summary for limit in (1e9, 1e-9)
    )
    assert never["compressed_share"] == 0.0
    assert always["compressed_share"] > 0.5
    assert never["params"] == {"compress_above_s": 1e9}


@pytest.mark.parametrize("pair", ["long_tokens", "=3", "long_tokens=many", "long_tokens=nan"])
def test_a_parameter_on_the_command_line_is_a_name_and_a_number(pair):
    result = call("simulate", "toy", "--policy", "kv-aware", "--param", pair)
    assert result.exit_code == 2
    assert result.stderr.startswith("pdenv: --param: ")
