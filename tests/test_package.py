"""What is shipped and what the README says: wheel, versions, pins, import time, every fenced block."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import pdenv
from pdenv import cli
from pdenv.bench.plugins import find, parameters_of
from pdenv.policies import policy_names
from pdenv.scenario import load_scenario, scenario_names
from pdenv.workload.traces import read_trace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def fenced(language: str) -> list[str]:
    """The README's blocks in one language, without the indentation of a list item."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```", README, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in blocks]


def commands(program: str) -> list[list[str]]:
    """Arguments of every call of a program in the README's shell blocks."""
    lines = [line for block in fenced("sh") for line in block.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line, comments=True) for line in lines]
    calls = [words[1 : words.index(">") if ">" in words else None] for words in split if words[0] == program]
    assert calls, f"the README shows no {program} command"
    return calls


def python(code: str, *, cwd: Path, path: Path = ROOT) -> str:
    """Stdout of a fresh interpreter that finds pdenv in `path` first."""
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the wheel --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_wheel_ships_the_packages_with_their_data_and_nothing_else(wheel):
    names = set(wheel.namelist())
    for package in ("pdenv", "baselines"):
        files = {path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc"}
        assert {str(path.relative_to(ROOT)) for path in files} <= names
    assert {
        "pdenv/py.typed",
        "pdenv/catalog/gpus.yaml",
        "pdenv/catalog/profiles/h100.yaml",
        "pdenv/presets/operating-point.yaml",
        "pdenv/workload/fitted/azure-conv.yaml",
    } <= names
    info = f"pdenv-{pdenv.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"pdenv", "baselines", info}
    assert f"{info}/licenses/LICENSE" in names


@pytest.mark.slow
def test_wheel_states_version_licence_and_entry_points(wheel):
    info = f"pdenv-{pdenv.__version__}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {pdenv.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    points = ConfigParser()
    points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(points["console_scripts"]) == {"pdenv": "pdenv.cli:main"}
    assert set(points["pdenv.policies"]) == set(policy_names())
    for name, value in points["pdenv.policies"].items():
        assert EntryPoint(name, value, "pdenv.policies").load().name == name


@pytest.mark.slow
def test_unpacked_wheel_works_away_from_the_checkout(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    code = (
        "import pdenv; print(pdenv.__file__)\n"
        "from pdenv.scenario import scenario_names\n"
        "for name in scenario_names(): pdenv.load_scenario(name).cluster()\n"
        "print(*scenario_names())"
    )
    file, names = python(code, cwd=tmp_path, path=tmp_path / "site").splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert names.split() == list(scenario_names())


# ---- versions and pins ------------------------------------------------------------------------------------


def test_citation_and_changelog_name_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == pdenv.__version__
    headings = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == pdenv.__version__


def test_licence_is_the_declared_one():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_direct_dependency_has_one_pin_within_its_range(version):
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins: dict[str, str] = {}
    for pin in (Requirement(line) for line in lines if line):
        if pin.marker is None or pin.marker.evaluate({"python_version": version}):
            assert canonicalize_name(pin.name) not in pins, f"{pin.name} is pinned twice"
            pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["test"], *extras["dev"]]:
        wanted = Requirement(text)
        assert pins[canonicalize_name(wanted.name)] in wanted.specifier, f"{text} on Python {version}"


# ---- import -----------------------------------------------------------------------------------------------


def test_import_leaves_heavy_packages_alone(tmp_path):
    heavy = ["numba", "pydantic", "matplotlib", "pandas", "torch", "stable_baselines3"]
    code = f"import pdenv; print([name for name in {heavy} if name in sys.modules])"
    assert python(code, cwd=tmp_path).strip() == "[]"


def test_import_takes_at_most_twice_its_dependencies(tmp_path):
    def seconds(modules: str) -> float:
        code = f"import time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
        return min(float(python(code, cwd=tmp_path)) for _ in range(3))

    assert seconds("pdenv") <= 2 * seconds("numpy, gymnasium, numba")


# ---- the README -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", commands("pdenv"), ids=" ".join)
def test_readme_command_is_accepted(words, tmp_path):
    command = get_command(cli.app)
    words = list(words)
    while hasattr(command, "commands"):
        assert words[0] in command.commands
        command = command.commands[words.pop(0)]
    values = command.make_context("pdenv", words).params
    named = values.get("scenarios") or [values.get("scenario") or values.get("name") or "toy"]
    assert set(named) <= {*scenario_names(), "mine.yaml"}
    policies = (values.get("policies") or values.get("policy") or "all").split(",")
    assert set(policies) <= {*policy_names(), "all"}
    for name in set(named) & set(scenario_names()):
        load_scenario(name, cli._overrides(values.get("set_") or []))
    parameters_of([find(name) for name in sorted(set(policies) - {"all"})], cli._params(values.get("param") or []))


def test_readme_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {words[0] for words in commands("make")} | set(re.findall(r"`make ([a-z-]+)`", README))
    assert wanted <= targets


def test_readme_python_example_runs(tmp_path):
    lines = python(fenced("python")[0], cwd=tmp_path).splitlines()
    assert float(lines[0].split()[0]) > 0
    assert {line.split()[0] for line in lines[-2:]} == {"greedy", "round-robin"}


def test_readme_environment_example_runs(tmp_path):
    shapes, taken = python(fenced("python")[1], cwd=tmp_path).splitlines()
    assert "'pair': (6, 3, 5)" in shapes and "Discrete(75" in shapes
    assert taken.startswith("Choice(kind='pair', prefill=0, decode=0") and "'prefill': -" in taken


@pytest.mark.slow
def test_readme_training_example_runs(tmp_path):
    pytest.importorskip("sb3_contrib", reason="training needs the extra 'train'")
    example = fenced("python")[2]
    assert len(example.strip().splitlines()) <= 10
    short = example.replace("128_000", "12_800").replace('"horizon_requests": 400', '"horizon_requests": 100')
    assert short.count("12_800") == short.count('"horizon_requests": 100') == 1
    assert float(python(short, cwd=tmp_path).split()[-1]) < 0.0


def test_tables_of_the_environments_page_are_those_of_the_code():
    from pdenv.envs.docs import filled

    page = (ROOT / "docs" / "environments.md").read_text()
    assert filled(page) == page, "write them again: python -m pdenv.envs.docs docs/environments.md"


def test_environments_page_names_every_argument():
    import inspect

    from pdenv.envs import settings

    page = (ROOT / "docs" / "environments.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", page.split("## Arguments")[1].split("## Observation")[0]))
    assert set(inspect.signature(settings._settings).parameters) - {"kind"} <= named


@pytest.mark.slow
def test_examples_of_the_environments_page_run(tmp_path):
    page = (ROOT / "docs" / "environments.md").read_text()
    first, heuristic = page.split("```python\n")[1], page.split("```python\n")[3]
    cost, joint = map(float, python(first.split("```")[0], cwd=tmp_path).split())
    assert cost > joint > 0.0
    assert 0.0 < float(python(heuristic.split("```")[0], cwd=tmp_path)) < cost


def test_readme_scenario_and_trace_are_valid(tmp_path):
    (scenario,), (trace,) = fenced("yaml"), fenced("csv")
    (tmp_path / "mine.yaml").write_text(scenario)
    assert load_scenario(tmp_path / "mine.yaml").cluster().prefill
    (tmp_path / "requests.csv").write_text(trace)
    assert list(read_trace(tmp_path / "requests.csv").prompt_tokens) == [1024, 8200]


def test_readme_scenario_is_healthy_at_its_rate(tmp_path):
    (tmp_path / "mine.yaml").write_text(fenced("yaml")[0])
    scenario = load_scenario(tmp_path / "mine.yaml", {"window.requests": 1500})
    result = pdenv.simulate(scenario, policy="greedy")
    assert result.warnings == []
    assert result.summary["offered_prefill_load"] == pytest.approx(scenario.target.prefill_load, abs=0.05)
    assert result.summary["decode_memory_utilisation"] < 0.7
    assert result.summary["slo_attainment"] > 0.99


def test_scheduler_of_the_docs_runs_as_printed_and_by_name(tmp_path):
    """The example as a script, then installed: what pip leaves of a package is a module and its entry points."""
    page = (ROOT / "docs" / "schedulers.md").read_text()
    example, entry_point = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "toml"))
    lines = python(example, cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["best-of-few", "least-requests", "random"]

    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "schedulers.py").write_text(example)
    (tmp_path / "my_package-1.0.dist-info").mkdir()
    (tmp_path / "my_package-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\n")
    points = "\n".join(
        f"{name} = {value}"
        for name, value in tomllib.loads(entry_point)["project"]["entry-points"]["pdenv.policies"].items()
    )
    (tmp_path / "my_package-1.0.dist-info" / "entry_points.txt").write_text(f"[pdenv.policies]\n{points}\n")
    (command,) = re.findall(r"`(pdenv compare [^`]*best-of-few[^`]*)`", page)
    words = [*shlex.split(command), "--set", "window.requests=50", "--json", "-"]
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = {words!r}\nfrom pdenv.cli import main; main()"
    )
    compared = json.loads(python(script, cwd=tmp_path))
    assert compared["policies"] == ["best-of-few", "greedy"]
    assert compared["windows"] == 5
    assert {run["policy"]: run["summary"]["params"] for run in compared["runs"]} == {
        "best-of-few": {"choices": 3},
        "greedy": {},
    }


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)
    assert "docs/model.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
