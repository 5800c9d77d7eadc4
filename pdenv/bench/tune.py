"""Parameters of a compiled scheduler, tuned to a scenario on its training windows.

Optuna's TPE proposes values, the defaults come first, and the cheapest mean cost over the training windows wins. Every
trial is written to a journal beside the output, so that tuning that was killed goes on where it stood. A proposal
depends on the seed and the finished trials alone: what was interrupted ends with the same parameters.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from pdenv import __version__, atomic
from pdenv.bench.runner import engine_digest, in_processes, pool
from pdenv.bench.suite import digest_of
from pdenv.errors import InputError
from pdenv.policies import check_policy
from pdenv.references import is_reference
from pdenv.references import parse as parse_reference
from pdenv.run import simulate
from pdenv.scenario import Scenario, load_scenario
from pdenv.scenario_yaml import parse as parse_yaml
from pdenv.sim.rules import SCALERS, Parameter, find_rule, is_rule

if TYPE_CHECKING:
    import optuna

    from pdenv.bench.suite import Suite

TUNED = Path(__file__).parent / "tuned"
BUDGET = 200
WINDOWS = 3

#: Called with (trials done, budget, lowest mean cost so far).
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Tuned:
    """What tuning found, as it is stored."""

    policy: str
    scenario: str
    params: dict[str, float]
    cost: float  # mean over the training windows
    default_cost: float
    budget: int
    trials: int
    seed: int
    windows: int
    digest: str  # of the scenario
    pdenv: str
    date: str

    def write(self, path: Path) -> None:
        """Store it, in one step."""
        atomic.write_text(path, yaml.safe_dump(asdict(self), sort_keys=False))


def read(path: Path) -> Tuned:
    """What was stored.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    try:
        data, _ = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        if not isinstance(data, dict) or set(data) != set(Tuned.__dataclass_fields__):
            raise TypeError("it does not have the keys of one")
        found = Tuned(**data)
        if not all(isinstance(value, float | int) and math.isfinite(value) for value in found.params.values()):
            raise TypeError("a parameter is no finite number")
    except (OSError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise InputError(f"is no result of pdenv tune: {error}", where=str(path)) from None
    return found


def file_of(policy: str, scenario: str, folder: Path) -> Path:
    """Where the parameters of a policy in a scenario are."""
    return folder / scenario / f"{policy}.yaml"


def stored_params(held: Suite | str | Path, scenario: Scenario | str, policy: str) -> dict[str, float]:
    """The parameters that tuning found for a policy in a scenario; none if it was not tuned for this scenario.

    Where nothing scales, a routing rule with a scaler ("greedy+queue") has those of the routing rule.

    Args:
        held: the suite that holds them, or the folder.

    Raises:
        InputError: the file is damaged.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    folder = held if isinstance(held, Path) else TUNED / (held if isinstance(held, str) else held.version)
    if not loaded.scaling.interval_s > 0:
        policy = policy.partition("+")[0]
    path = file_of(policy, loaded.name, folder)
    if not path.is_file():
        return {}
    found = read(path)
    return found.params if found.digest == digest_of(loaded) else {}


# ---- what is searched --------------------------------------------------------------------------------


def search_space(policy: str, scenario: Scenario) -> dict[str, Parameter]:
    """Parameters that a policy has and that change something in a scenario.

    Raises:
        InputError: it is no compiled rule, or has none.
    """
    if is_reference(policy):
        message = (
            f"is a reference and has no parameters of its own; tune the rule under it, {parse_reference(policy)[1]}"
        )
        raise InputError(message, where=f"policy '{policy}'")
    if not is_rule(policy):
        if ":" not in policy:
            check_policy(policy)
        raise InputError("is no compiled rule; only those declare what can be tuned", where=f"policy '{policy}'")
    found = find_rule(policy).parameters
    if not scenario.scaling.interval_s > 0:
        of_scalers = {name for scaler in SCALERS.values() for name in scaler.parameters}
        found = {name: p for name, p in found.items() if name not in of_scalers}
    if not found:
        message = f"has no parameters to tune in scenario '{scenario.name}'; `pdenv policies` lists those that have"
        raise InputError(message, where=f"policy '{policy}'")
    return found


# ---- tuning ------------------------------------------------------------------------------------------


def _cost(policy: str, scenario: Scenario, window: int, seed: int, params: dict[str, float]) -> tuple[int, float]:
    """(window, cost of a request in this training window)."""
    run = simulate(scenario, policy, seed=seed, window=window, span="window", split="train", params=params)
    cost = run.summary["cost"]["mean"]
    return window, np.inf if cost is None else cost


def tune(
    scenario: Scenario | str | Path,
    policy: str,
    budget: int = BUDGET,
    *,
    windows: int = WINDOWS,
    seed: int = 0,
    jobs: int = 1,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Tune a policy to a scenario.

    Args:
        budget: trials, the defaults among them.
        windows: training windows that each trial serves.
        seed: of the search, and of the arrivals.
        jobs: processes that share the windows of a trial. The result does not depend on it.
        output: YAML file for the result; the journal beside it is removed when that is written.
        progress: called after every trial.

    Raises:
        InputError: nothing to tune, Optuna is missing, or the output cannot be written.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    for name, value in (("budget", budget), ("windows", windows), ("jobs", jobs)):
        if value < 1:
            raise InputError(f"is {value}; it must be at least 1", where=name)
    space = search_space(policy, loaded)
    path = None if output is None else Path(output)
    with _optuna() as optuna, pool(min(jobs, windows)) as run:
        study, journal = _study(optuna, path, f"{policy} {digest_of(loaded)} {windows} {seed} {engine_digest()}")
        _search(optuna, study, space, (policy, loaded, windows, seed), run, budget, progress)
        done = _complete(study)[:budget]
    best = min(done, key=lambda trial: (trial.value, trial.number))
    tuned = Tuned(
        policy=policy,
        scenario=loaded.name,
        params={name: best.params[name] for name in space},
        cost=best.value,
        default_cost=done[0].value,
        budget=budget,
        trials=len(done),
        seed=seed,
        windows=windows,
        digest=digest_of(loaded),
        pdenv=__version__,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )
    if path is not None:
        tuned.write(path)
        journal.unlink(missing_ok=True)
    return tuned


@contextmanager
def _optuna() -> Iterator[Any]:
    """Optuna without its log and without its warnings of experimental parts."""
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna: pip install '.[tune]' in a checkout") from None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(level)


def _study(optuna: Any, output: Path | None, name: str) -> tuple[optuna.Study, Path]:
    """The study of this name, in the journal beside the output if there is one."""
    if output is None:
        return optuna.create_study(study_name=name), Path()
    journal = output.with_name(f".{output.name}.journal")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _drop_half_line(journal)
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)  # left by a kill
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        study = optuna.create_study(
            study_name=name, storage=optuna.storages.JournalStorage(backend), load_if_exists=True
        )
    except OSError as error:
        raise InputError(f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(output)) from None
    for trial in study.get_trials(deepcopy=False):
        if not trial.state.is_finished():  # it ran when the process was killed
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study, journal


def _drop_half_line(journal: Path) -> None:
    """Drop what a kill has left of a line."""
    if journal.is_file():
        data = journal.read_bytes()
        if data and not data.endswith(b"\n"):
            journal.write_bytes(data[: data.rfind(b"\n") + 1])


def _complete(study: optuna.Study) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]


def _search(
    optuna: Any,
    study: optuna.Study,
    space: dict[str, Parameter],
    task: tuple[str, Scenario, int, int],
    run: Callable[..., Iterator[Any]],
    budget: int,
    progress: Progress | None,
) -> None:
    """Trials up to the budget."""
    policy, scenario, windows, seed = task
    for number in range(len(_complete(study)), budget):
        # A sampler a trial: its proposal depends on the finished trials, not on how many were asked for before.
        sampler_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=sampler_seed, multivariate=True)
        if number == 0:
            study.enqueue_trial({name: _typed(p, p.default) for name, p in space.items()})
        trial = study.ask()
        params = {name: float(_suggested(trial, name, p)) for name, p in space.items()}
        arguments = [(policy, scenario, window, seed, params) for window in range(windows)]
        costs = dict(run(_cost, arguments))
        study.tell(trial, float(np.mean([costs[window] for window in range(windows)])))
        if progress is not None:
            progress(number + 1, budget, study.best_value)


def _typed(parameter: Parameter, value: float) -> float | int:
    return int(value) if parameter.whole else float(value)


def _suggested(trial: Any, name: str, parameter: Parameter) -> float:
    low, high = (_typed(parameter, end) for end in (parameter.low, parameter.high))
    suggest = trial.suggest_int if parameter.whole else trial.suggest_float
    return suggest(name, low, high, log=parameter.log)


# ---- a suite -----------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A policy to be tuned to a scenario of a suite."""

    scenario: str
    policy: str
    output: Path


def tasks_of(suite: Suite, budget: int, folder: Path | None = None) -> list[Task]:
    """Every heuristic of a suite with something to tune, but those that are stored with this budget already."""
    from pdenv.bench.suite import policies_of

    root = folder or TUNED / suite.version
    tasks = []
    for name in suite.scenarios:
        scenario = load_scenario(name)
        for policy in policies_of(suite, name):
            output = file_of(policy, name, root)
            if _is_tunable(policy, scenario) and not _is_stored(output, scenario, budget):
                tasks.append(Task(name, policy, output))
    return tasks


def _is_tunable(policy: str, scenario: Scenario) -> bool:
    try:
        return bool(search_space(policy, scenario))
    except InputError:
        return False


def _is_stored(path: Path, scenario: Scenario, budget: int) -> bool:
    if not path.is_file():
        return False
    found = read(path)
    return found.digest == digest_of(scenario) and found.budget >= budget


def _tune_task(task: Task, budget: int, windows: int, seed: int) -> Tuned:
    return tune(task.scenario, task.policy, budget, windows=windows, seed=seed, output=task.output)


def tune_suite(
    suite: Suite,
    budget: int = BUDGET,
    *,
    windows: int = WINDOWS,
    seed: int = 0,
    jobs: int = 1,
    folder: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Tuned]:
    """Tune every heuristic to every scenario of a suite, skipping what is stored already.

    Args:
        jobs: processes; each tunes a policy to a scenario. The results do not depend on it.
        folder: where results go (default: those that comparisons of the suite use).
        progress: called with (done, in all, scenario and policy of the latest).

    Raises:
        InputError: Optuna is missing, or a result cannot be written.
    """
    tasks = tasks_of(suite, budget, folder)
    report = progress or (lambda done, total, label: None)
    report(0, len(tasks), "")
    found = []
    for tuned in in_processes(_tune_task, [(task, budget, windows, seed) for task in tasks], jobs):
        found.append(tuned)
        report(len(found), len(tasks), f"{tuned.scenario} · {tuned.policy}")
    return found
