"""The `pdenv` command."""

from __future__ import annotations

import csv
import io
import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdenv import __version__, atomic
from pdenv.definitions import DEFINITIONS
from pdenv.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from pdenv.bench.compare import Comparison
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
def _told(goes_on: bool = False) -> Iterator[None]:
    """Bad input ends in one line and exit code 2, an interrupt in one line and 130.

    Args:
        goes_on: the same command continues what was interrupted.
    """
    try:
        yield
    except InputError as error:
        first, *more = str(error).splitlines() or [""]
        rest = f" (and {len(more)} more; `pdenv scenario validate` lists all of a file)" if more else ""
        print(f"pdenv: {first}{rest}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print(f"pdenv: interrupted{'; the same command goes on where it stopped' * goes_on}", file=sys.stderr)
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
        for name in sorted(os.listdir(report)) if os.path.isdir(report) else ():
            if name.endswith((".html", ".md", ".csv", ".json", ".png")) and os.path.isdir(os.path.join(report, name)):
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
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Parameter of the policies that have it, or of one: greedy.decode_weight=2; repeatable.",
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=1024, help="Processes; the numbers do not depend on it.")]
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
    policy: Annotated[
        str,
        typer.Option(metavar="NAME", help="Scheduler; `pdenv policies` lists them; or whatever `pdenv compare` takes."),
    ] = "three-part",
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
        from pdenv.bench.plugins import Given, find, parameters_of

        with _warned():
            chosen = find(policy)
        own = parameters_of([chosen], params)[policy]
        given = Given(_loaded(scenario, overrides), 0, seed, own, trace, scale)
        chosen.check(given)
        with _policy_prints(json_path):
            result = chosen.run(given, series=False)
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
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Schedulers by name, module:Class, an agent.zip of Stable-Baselines3, a folder of agents.train; all "
            "for all (default: three-part, greedy, least-work, round-robin, colocated; in a suite all).",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Scenarios, windows, seed and tuned parameters of a suite, such as v1."),
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="In a suite: default parameters in place of the tuned ones.")
    ] = False,
    tuned: Annotated[
        str | None, typer.Option(metavar="DIR", help="Parameters of schedulers that `pdenv tune` has written there.")
    ] = None,
    trace: Trace = None,
    rate_scale: RateScale = "1",
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Seed of arrivals and policies (default: 0, or the suite's)."),
    ] = None,
    set_: Set = None,
    param: Param = None,
    windows: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Disjoint stretches of the workload (default: 1, or the suite's). One takes a trace whole; more are "
            "cut from the last 20 % of its requests (the first 60 % are for training, the next 20 % for validation).",
        ),
    ] = None,
    jobs: Jobs = 1,
    backend: Annotated[
        str, typer.Option(metavar="local|ray", help="Where runs go: processes of this machine, or a Ray cluster.")
    ] = "local",
    json_path: Json = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write a page, pictures, a Markdown leaderboard, results.csv and results.json. Finished runs are kept "
            "in DIR/runs at once: a comparison that was killed goes on where it stood.",
        ),
    ] = None,
) -> None:
    """Run policies on the same arrivals and print a leaderboard, cheapest first."""
    with _told(goes_on=report is not None):
        scale, overrides, params = _rate_scale(rate_scale), _overrides(set_ or []), _params(param or [])
        _check_outputs(json_path, report=report)
        if suite is not None and overrides:
            raise InputError("a suite is fixed; leave it out", where="--set")
        if suite is None and defaults:
            raise InputError("is for a suite; without one policies have their defaults anyway", where="--defaults")
        if defaults and tuned is not None:
            raise InputError("contradicts --tuned; give one of them", where="--defaults")
        from pdenv.bench.compare import compare as run

        loaded = [_loaded(name, overrides) for name in scenarios or ([] if suite else ["operating-point"])]
        with _progress(json_path) as progress, _warned(), _policy_prints(json_path):
            comparison = run(
                loaded or None,
                policies,
                suite=suite,
                tuned=not defaults if tuned is None else tuned,
                windows=windows,
                jobs=jobs,
                backend=backend,
                seed=seed,
                trace=trace,
                rate_scale=scale,
                params=params,
                finished=None if report is None else Path(report) / "runs",
                progress=progress,
                command=shlex.join(["pdenv", *sys.argv[1:]]),
            )
        _tell(comparison, json_path, report)


def _tell(comparison: Comparison, json_path: str | None, report: str | None) -> None:
    """Warnings, files and tables of a comparison; exit code 1 if a policy failed."""
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
    if comparison.failures:
        (scenario, first), *more = comparison.failures
        rest = f" (and {len(more)} more runs failed)" if more else ""
        print(f"pdenv: {scenario}: {first}{rest}", file=sys.stderr)
        raise typer.Exit(1)


def _policy_prints(json_path: str | None) -> AbstractContextManager[Any]:
    """What a policy prints goes to stderr where stdout is for JSON."""
    return redirect_stdout(sys.stderr) if json_path == "-" else nullcontext()


@contextmanager
def _warned() -> Iterator[None]:
    """Warnings of this package as one line each."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"pdenv: warning: {message}", file=sys.stderr)
        yield


@contextmanager
def _progress(json_path: str | None) -> Iterator[Any]:
    """A callback that moves a progress bar on stderr; None where nobody watches."""
    if json_path == "-" or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move(done: int, total: int, what: str | float) -> None:
            shown = what if isinstance(what, str) else f"best cost {what:.4g}"
            bar.update(task, completed=done, total=total, description=shown)

        yield move


@app.command(
    epilog="Example: `pdenv tune size-interval hetero-links --budget 200`\n\n"
    "Tuning that was killed goes on where it stood when it is started again."
)
def tune(
    policy: Annotated[
        str | None, typer.Argument(help="A scheduler with parameters; `pdenv policies` lists them.")
    ] = None,
    scenario: Annotated[str | None, typer.Argument(help="Name of a preset, or a YAML file.")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Store the result with this suite; without a policy, tune every heuristic in all of its scenarios.",
        ),
    ] = None,
    budget: Annotated[int, typer.Option(min=1, max=1_000_000, help="Trials, the defaults among them.")] = 200,
    windows: Annotated[int, typer.Option(min=1, max=1000, help="Training windows that each trial serves.")] = 3,
    seed: Seed = 0,
    jobs: Jobs = 1,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="YAML file of the result (default: tuned/SCENARIO/POLICY.yaml); a folder for a suite."
        ),
    ] = None,
) -> None:
    """Tune the parameters of a scheduler on training windows."""
    with _told(goes_on=True):
        if (policy is None) != (scenario is None) or (policy is None and suite is None):
            raise InputError("name a policy and a scenario, or give --suite", where="pdenv tune")
        from pdenv.bench import tune as tuning

        root = Path("tuned")
        frozen = None
        if suite is not None:
            from pdenv.bench.suite import load_suite

            frozen = load_suite(suite)
            root = tuning.TUNED / frozen.version
        with _progress(None) as progress:
            if policy is None or scenario is None:
                assert frozen is not None
                folder = None if output is None else Path(output)
                found = tuning.tune_suite(
                    frozen, budget, windows=windows, seed=seed, jobs=jobs, folder=folder, progress=progress
                )
                print(f"tuned {len(found)} policies; results are in {folder or root}")
                return
            loaded = _loaded(scenario, {})
            if frozen is not None and loaded.name not in frozen.scenarios:
                raise InputError(f"suite {suite} has no '{loaded.name}'; leave --suite out", where="scenario")
            path = tuning.file_of(policy, loaded.name, root) if output is None else Path(output)
            best = tuning.tune(
                loaded, policy, budget, windows=windows, seed=seed, jobs=jobs, output=path, progress=progress
            )
        print(f"{best.policy} on {best.scenario}: cost {best.cost:.4g}, {best.default_cost:.4g} with defaults")
        print(f"{best.trials} trials of {best.windows} training windows; stored in {path}")
        print(", ".join(f"{name}={value:.6g}" for name, value in best.params.items()))
        if suite is None and output is None:
            print(f"to use it: pdenv compare {scenario} --policies {policy},three-part --windows 10 --tuned {root}")


@app.command(epilog="Example: `pdenv policies`")
def policies() -> None:
    """List the schedulers, what each does, and its parameters with their defaults."""
    with _told():
        from rich.table import Table

        from pdenv.policies import policy_names
        from pdenv.references import REFERENCES
        from pdenv.sim.rules import SCALERS

        table = Table.grid(padding=(0, 2))
        for name in policy_names():
            table.add_row(name, _described(name))
        for scaler in SCALERS.values():
            defaults = {key: parameter.default for key, parameter in scaler.parameters.items()}
            table.add_row(f"…+{scaler.name}", f"any of these with a scaler: {scaler.summary}{_listed(defaults)}")
        for name, summary in REFERENCES.items():
            table.add_row(name, summary)
        _console().print(table)


def _described(policy: str) -> str:
    """What a policy does and its parameters; why not, where a package's policy cannot be loaded."""
    from pdenv.policies import describe

    try:
        summary, parameters = describe(policy)
    except InputError as error:
        return str(error)
    return summary + _listed(parameters)


def _listed(parameters: dict[str, Any]) -> str:
    """Parameters with their defaults, in brackets; nothing where there are none."""
    shown = (f"{k}={v:g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in parameters.items())
    return f" (parameters: {', '.join(shown)})" if parameters else ""


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
            code = _run_app()
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
    sys.exit(code)


def _run_app() -> int:
    """Run the command line; the exit code. What cannot be read of it is told in one line, as all bad input."""
    try:
        return app(prog_name="pdenv", standalone_mode=False) or 0
    except Exception as error:  # which class a usage error has depends on the version of typer
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if type(error).__name__ != "NoArgsIsHelpError":
            context = getattr(error, "ctx", None)
            command = "pdenv" if context is None else context.command_path
            message = f"pdenv: {' '.join(message.split()).rstrip('.')}; see {command} --help"
        print(message, file=sys.stderr)
        return 2


if __name__ == "__main__":
    main()
