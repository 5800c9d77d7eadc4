"""The `pdenv` command."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdenv import __version__, atomic
from pdenv.definitions import DEFINITIONS
from pdenv.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from pdenv.scenario import Scenario

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe

app = typer.Typer(
    help="Simulate and compare schedulers of a prefill/decode disaggregated LLM serving cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pdenv {__version__}")
        raise typer.Exit


@app.callback()
def _pdenv(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Simulate and compare schedulers of a prefill/decode disaggregated LLM serving cluster."""


scenario_app = typer.Typer(help="List, show and check scenarios.", no_args_is_help=True)
app.add_typer(scenario_app, name="scenario")


@contextmanager
def _told() -> Iterator[None]:
    """Bad input ends in one line and exit code 2, an interrupt in one line and 130."""
    try:
        yield
    except InputError as error:
        first, *more = str(error).splitlines() or [""]
        rest = f" (and {len(more)} more; `pdenv scenario validate` lists all of a file)" if more else ""
        print(f"pdenv: {first}{rest}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("pdenv: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    except MemoryError:
        print("pdenv: not enough memory for this many requests or instances; ask for fewer", file=sys.stderr)
        raise typer.Exit(2) from None


def _silence_stdout() -> None:
    """Let what a failed stdout still holds go nowhere, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_WIDTH if piped else None, highlight=False)


def _rate_scale(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"'{text}' is not a scale; give a number above 0, or auto", where="--rate-scale")
    return value


def _overrides(pairs: list[str]) -> dict[str, Any]:
    """`--set key=value`; the scenario reads values as YAML."""
    return _pairs(pairs, "--set", "workload.rate_per_s=3")


def _params(pairs: list[str]) -> dict[str, float]:
    """`--param name=value`; values are numbers."""
    params = {}
    for name, text in _pairs(pairs, "--param", "long_tokens=8192").items():
        try:
            params[name] = float(text)
        except ValueError:
            params[name] = math.nan
        if not math.isfinite(params[name]):
            raise InputError(f"{name} is '{text}'; give a finite number", where="--param")
    return params


def _pairs(pairs: list[str], option: str, example: str) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise InputError(f"'{pair}' is not key=value, for example {example}", where=option)
        found[key.strip()] = value
    return found


def _loaded(name: str, overrides: dict[str, Any]) -> Scenario:
    from pdenv.scenario import load_scenario

    try:
        return load_scenario(name, overrides)
    except InputError:
        raise
    except ValueError as error:  # Python reads and writes whole numbers of 4300 digits at most
        raise InputError(f"{' '.join(str(error).split())[:80]}; give a smaller number", where="--set") from None


def _check_outputs(json_path: str | None, requests_path: str | None = None, report: str | None = None) -> None:
    """Refuse outputs that cannot be written before anything runs."""
    if json_path is not None and json_path != "-":
        atomic.check_file(json_path)
    if requests_path is not None:
        atomic.check_file(requests_path)
        if json_path is not None and os.path.realpath(json_path) == os.path.realpath(requests_path):
            raise InputError("--json and --requests name the same file", where=requests_path)
    if report is not None:
        atomic.check_directory(report)
        for name in ("leaderboard.md", "results.json"):
            if os.path.isdir(os.path.join(report, name)):
                raise InputError(f"holds a folder named {name}; give another folder", where=report)
        if json_path is not None and os.path.realpath(json_path) == os.path.realpath(report):
            raise InputError("--json and --report name the same path", where=report)


def _write_json(value: dict[str, Any], path: str) -> None:
    from pdenv.metrics import to_json

    if path == "-":
        sys.stdout.write(to_json(value))
    else:
        atomic.write_text(path, to_json(value))


def _requests_csv(rows: np.ndarray) -> str:
    """One line a request under a header; an empty field where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.dtype.names or ())
    for row in rows.tolist():
        writer.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in row])
    return text.getvalue()


Trace = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Request trace that replaces the workload: CSV with the header arrival_s,prompt_tokens,output_tokens, "
        "Azure CSV, or Mooncake JSONL.",
    ),
]
RateScale = Annotated[
    str,
    typer.Option(metavar="X|auto", help="Factor on arrival rates; auto aims at the load the scenario is made for."),
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of arrivals and policy.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the scenario; repeatable."),
]
Param = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Parameter of the policies that have it; repeatable."),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the numbers as JSON; with - only JSON goes to stdout."),
]


_NUMBERS = "The numbers:\n\n" + "\n\n".join(f"**{key}**: {text}" for key, text in DEFINITIONS.items())


@app.command(
    epilog="Example: `pdenv simulate operating-point --policy greedy --set workload.rate_per_s=3 --json -`\n\n"
    + _NUMBERS
)
def simulate(
    scenario: Annotated[str, typer.Argument(help="Name of a preset, or a YAML file.")] = "operating-point",
    policy: Annotated[str, typer.Option(metavar="NAME", help="Scheduler; `pdenv policies` lists them.")] = "three-part",
    trace: Trace = None,
    rate_scale: RateScale = "1",
    seed: Seed = 0,
    set_: Set = None,
    param: Param = None,
    requests: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write one row a request (every timestamp) as CSV.")
    ] = None,
    json_path: Json = None,
) -> None:
    """Run one policy on one window and print every number with its definition."""
    with _told():
        scale, overrides, params = _rate_scale(rate_scale), _overrides(set_ or []), _params(param or [])
        _check_outputs(json_path, requests)
        from pdenv.policies import check_policy, parameters_of_each
        from pdenv.run import simulate as run

        check_policy(policy)
        parameters_of_each([policy], params)
        loaded = _loaded(scenario, overrides)
        result = run(loaded, policy, seed=seed, trace=trace, rate_scale=scale, params=params)
        for line in result.warnings:
            print(f"pdenv: warning: {line}", file=sys.stderr)
        if requests is not None:
            atomic.write_text(requests, _requests_csv(result.requests))
        if json_path is not None:
            _write_json(result.summary, json_path)
        if json_path != "-":
            from pdenv.bench.tables import print_summary

            print_summary(result.summary, _console())


@app.command(
    epilog="Example: `pdenv compare operating-point --trace requests.csv --rate-scale auto "
    "--policies three-part,greedy,colocated --report out`\n\n"
    "Every number is defined below the leaderboard and in `pdenv simulate --help`."
)
def compare(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCENARIO", help="Presets or YAML files (default: operating-point)."),
    ] = None,
    policies: Annotated[
        str, typer.Option(metavar="A,B,C", help="Schedulers, or all.")
    ] = "three-part,greedy,least-work,round-robin,colocated",
    trace: Trace = None,
    rate_scale: RateScale = "1",
    seed: Seed = 0,
    set_: Set = None,
    param: Param = None,
    windows: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Disjoint stretches of the workload. One takes a trace whole; more are cut from the last 20 % of its "
            "requests (the first 60 % are for training, the next 20 % for validation).",
        ),
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Processes; the numbers do not depend on it.")] = 1,
    json_path: Json = None,
    report: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write plots, a Markdown leaderboard and results.json.")
    ] = None,
) -> None:
    """Run policies on the same arrivals and print a leaderboard, cheapest first."""
    with _told():
        scale, overrides, params = _rate_scale(rate_scale), _overrides(set_ or []), _params(param or [])
        _check_outputs(json_path, report=report)
        from pdenv.bench.compare import compare as run

        loaded = [_loaded(name, overrides) for name in scenarios or ["operating-point"]]
        with _progress(json_path) as progress:
            comparison = run(
                loaded,
                policies,
                windows=windows,
                jobs=jobs,
                seed=seed,
                trace=trace,
                rate_scale=scale,
                params=params,
                progress=progress,
            )
        for line in comparison.warnings():
            print(f"pdenv: warning: {line}", file=sys.stderr)
        if report is not None:
            from pdenv.bench.plots import write_report

            write_report(comparison, report)
        if json_path is not None:
            _write_json(comparison.to_dict(), json_path)
        if json_path != "-":
            from pdenv.bench.tables import print_comparison

            print_comparison(comparison, _console())


@contextmanager
def _progress(json_path: str | None) -> Iterator[Any]:
    """A callback that moves a progress bar on stderr; None where nobody watches."""
    if json_path == "-" or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command(epilog="Example: `pdenv policies`")
def policies() -> None:
    """List the schedulers, what each does, and its parameters with their defaults."""
    with _told():
        from rich.table import Table

        from pdenv.policies import policy_names

        table = Table.grid(padding=(0, 2))
        for name in policy_names():
            table.add_row(name, _described(name))
        _console().print(table)


def _described(policy: str) -> str:
    """What a policy does and its parameters; why not, where a package's policy cannot be loaded."""
    from pdenv.policies import describe

    try:
        summary, parameters = describe(policy)
    except InputError as error:
        return str(error)
    shown = (f"{k}={v:g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in parameters.items())
    return summary + (f" (parameters: {', '.join(shown)})" if parameters else "")


@scenario_app.command("list", epilog="Example: `pdenv scenario list`")
def scenario_list() -> None:
    """List the presets with what they are for."""
    with _told():
        from rich.table import Table

        from pdenv.scenario import load_scenario, scenario_names

        table = Table.grid(padding=(0, 2))
        for name in scenario_names():
            table.add_row(name, load_scenario(name).description)
        _console().print(table)


@scenario_app.command("show", epilog="Example: `pdenv scenario show operating-point > mine.yaml`")
def scenario_show(name: Annotated[str, typer.Argument(help="Name of a preset, or a YAML file.")]) -> None:
    """Print a scenario as YAML, defaults included."""
    with _told():
        from pdenv.scenario import load_scenario

        sys.stdout.write(load_scenario(name).to_yaml())


@scenario_app.command("validate", epilog="Example: `pdenv scenario validate mine.yaml`")
def scenario_validate(
    file: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
) -> None:
    """Check a scenario file; every problem is one line."""
    with _told():
        from pdenv.scenario import load_scenario

        try:
            scenario = load_scenario(file)
        except InputError as error:
            for line in str(error).splitlines():
                print(f"pdenv: {line}", file=sys.stderr)
            raise typer.Exit(2) from None
        print(f"{file}: valid ({scenario.name})")


@scenario_app.command("schema", epilog="Example: `pdenv scenario schema > scenario.schema.json`")
def scenario_schema() -> None:
    """Print the JSON schema of a scenario file."""
    with _told():
        from pdenv.metrics import to_json
        from pdenv.scenario import schema

        sys.stdout.write(to_json(schema()))


def main() -> None:
    """Entry point of the `pdenv` command."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        print("pdenv: stdout is closed; send it to a file or to /dev/null", file=sys.stderr)
        sys.exit(2)
    try:
        try:
            app(prog_name="pdenv")
        finally:
            sys.stdout.flush()  # here, where a failure can be told, and not after the end
    except BrokenPipeError:  # the reader has seen enough
        _silence_stdout()
        sys.exit(1)
    except OSError as error:
        _silence_stdout()
        with suppress(OSError):
            print(f"pdenv: input or output failed: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
