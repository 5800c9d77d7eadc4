"""Policies of any kind by one name: built in, of a package, of a module, and trained agents.

    three-part                  a compiled rule, or a policy in the entry-point group `pdenv.policies`
    my_module:MyPolicy          a class of an importable module, the current folder included
    agent.zip                   a model that Stable-Baselines3 saved
    runs/mine                   a run of `python -m agents.train`, from a checkout of pdenv

A class has either `route`, `pair` and `scale` (`pdenv.policies.Policy`), or `predict` of Stable-Baselines3:
`predict(observation, state, episode_start, deterministic, action_masks) -> (action, state)`. What predicts is asked
through an environment, on the arrivals that every other policy gets.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pdenv import policies
from pdenv import run as running
from pdenv.errors import InputError, nearest, worded
from pdenv.references import REFERENCES, is_reference, parse
from pdenv.references.futures import Futures
from pdenv.run import PolicyError, Result, Watch, result_of
from pdenv.scenario import Scenario
from pdenv.sim.rules import is_rule

_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

#: Rule that takes what an agent does not decide.
RULE = "three-part"

_LAYERS = ("raw", "normalized", "flat", "flat normalized")
_MODES = ("pair", "factored", "sequential")


@dataclass(frozen=True)
class Given:
    """What a policy is given: its window, and the parameters that it is made with."""

    scenario: Scenario
    window: int
    seed: int
    params: dict[str, float]
    trace: str | None = None
    rate_scale: float | str = 1.0
    span: Literal["whole", "window"] = "whole"


@dataclass(frozen=True)
class Contender:
    """A policy that takes part in a comparison.

    Attributes:
        kind: "heuristic", "reference", "plug-in" or "agent".
        source: module:Class, the file or folder, or the entry point; empty for what is built in.
        folder: where modules are looked for first.
        digest: of the sources or weights of what is not built in.
    """

    name: str
    kind: str
    source: str = ""
    folder: str = ""
    digest: str = ""

    @property
    def rule(self) -> str | None:
        """The compiled rule that has its parameters: itself, or the base rule of a reference."""
        if self.kind == "reference":
            return parse(self.name)[1]
        return self.name if self.kind == "heuristic" else None

    def defaults(self) -> dict[str, Any]:
        """Parameters with their defaults."""
        if self.rule is not None:
            return policies.describe(self.rule)[1]
        return {} if self.kind == "agent" else _defaults(_made_by(self))

    def check(self, given: Given) -> None:
        """Make it once, so that what cannot run is told before anything does.

        Raises:
            InputError: says why.
        """
        if self.kind == "reference" and parse(self.name)[0] == "lookahead":
            Futures(given.scenario, given.trace, given.rate_scale, given.seed)
        elif self.kind in ("plug-in", "agent"):
            policy = _make(self, given.params, seed=0)
            if _predicts(policy):
                _check_span(self.name, given)
                _environment(policy, given.scenario, self.name).close()

    def run(self, given: Given, series: bool = True) -> Result:
        """Run it on one window.

        Raises:
            PolicyError: it fails, or its answer is not legal.
            InputError: what it was given cannot run.
        """
        if self.kind in ("heuristic", "reference"):
            return _simulated(self.name, given, given.params, series)
        policy = _make(self, given.params, given.seed)
        result = play(policy, self.name, given, series) if _predicts(policy) else _simulated(policy, given, {}, series)
        result.summary.update(policy=self.name, params=dict(given.params))
        return result


def _simulated(policy: Any, given: Given, params: dict[str, float], series: bool) -> Result:
    return running.simulate(
        given.scenario,
        policy,
        seed=given.seed,
        trace=given.trace,
        rate_scale=given.rate_scale,
        window=given.window,
        span=given.span,
        params=params,
        series=series,
    )


# ---- by name -----------------------------------------------------------------------------------------


def parameters_of(contenders: Sequence[Contender], params: dict[str, float]) -> dict[str, dict[str, float]]:
    """The parameters of each policy, of those given for all that have them, or as "policy.name" for one.

    Raises:
        InputError: a parameter that none of the policies has.
    """
    known = {contender.name: contender.defaults() for contender in contenders}
    found: dict[str, dict[str, float]] = {name: {} for name in known}
    for key, value in params.items():
        policy, _, name = key.rpartition(".")
        having = [other for other, own in known.items() if name in own and policy in ("", other)]
        if not having:
            every = {other for own in known.values() for other in own}
            hint = nearest(name, every) if every else "; they have none"
            raise InputError(f"no parameter '{name}' in {policy or ', '.join(known)}{hint}", where="params")
        for other in having:
            found[other][name] = value
    return found


def find(name: str) -> Contender:
    """The policy of this name.

    Raises:
        InputError: there is none, with the nearest valid name; or its source cannot be read.
    """
    if is_rule(name):
        return Contender(name, "heuristic")
    if is_reference(name):
        base = parse(name)[1]
        if is_reference(base):
            raise InputError("rolls a compiled rule forward, not a reference", where=f"policy '{name}'")
        if not is_rule(base):
            policies.check_policy(base)
            raise InputError(f"needs a compiled rule, '{base}' is none", where=f"policy '{name}'")
        return Contender(name, "reference")
    if name.endswith(".zip"):
        return _agent_zip(name)
    if os.sep in name or (os.altsep and os.altsep in name) or os.path.isdir(name):
        return _agent_run(name)
    if _CLASS.fullmatch(name):
        contender = Contender(name, "plug-in", name, os.getcwd())
    elif name in policies.policy_names():
        entry = next(entry for entry in entry_points(group=policies.GROUP) if entry.name == name)
        contender = Contender(name, "plug-in", entry.value, os.getcwd())
    else:
        _refuse(name)
    digest = _source_digest(_made_by(contender))
    return Contender(contender.name, contender.kind, contender.source, contender.folder, digest)


def _refuse(name: str) -> None:
    """Raise the error for an unknown name."""
    if "+" in name:
        policies.check_policy(name)  # which knows the scalers
    valid = (*policies.policy_names(), *REFERENCES)
    raise InputError(f"unknown policy '{name}'{nearest(name, valid)}", where="policy")


def _made_by(contender: Contender) -> Any:
    """The class that a source names."""
    module, _, attribute = contender.source.partition(":")
    _look_in(contender.folder)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        inspect.signature(found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever somebody else's module does when it is imported, sys.exit included
        message = f"cannot load {contender.source}: {worded(error)}"
        raise InputError(message, where=f"policy '{contender.name}'") from error
    return found


def _look_in(folder: str) -> None:
    """Let modules of a folder be imported: the `pdenv` command alone does not look in the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _defaults(made_by: Any) -> dict[str, Any]:
    accepted = inspect.signature(made_by).parameters
    return {key: p.default for key, p in accepted.items() if key != "seed" and p.default is not p.empty}


def _source_digest(made_by: Any) -> str:
    """Of the source files of the package or module that a class is in."""
    with suppress(TypeError, OSError):
        file = Path(inspect.getfile(made_by))
        folder = file.parent
        if not (folder / "__init__.py").is_file():
            return _file_digest(file)
        while (folder.parent / "__init__.py").is_file():
            folder = folder.parent
        return _digest(sorted(folder.rglob("*.py")))
    return ""


def _file_digest(path: Path) -> str:
    return _digest([path])


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _make(contender: Contender, params: dict[str, float], seed: int) -> Any:
    """The object to ask: a new one, but for agents, which keep nothing from run to run."""
    where = f"policy '{contender.name}'"
    if contender.kind == "agent":
        _look_in(contender.folder)
        return _load_agent(contender.source, contender.digest)
    made_by = _made_by(contender)
    accepted = inspect.signature(made_by).parameters
    own = {"seed": seed} if "seed" in accepted else {}
    try:
        policy = made_by(**{**own, **params})
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"fails when it is made: {worded(error)}", where=where) from error
    if not _predicts(policy):
        if not isinstance(getattr(policy, "name", None), str):
            with suppress(AttributeError):
                policy.name = contender.name
        try:
            policies.check_object(policy)
        except InputError as error:
            raise InputError(f"is no policy: {error}", where=where) from None
    return policy


def _predicts(policy: Any) -> bool:
    return hasattr(policy, "predict") and not hasattr(policy, "route")


# ---- trained agents ----------------------------------------------------------------------------------


def _agent_zip(name: str) -> Contender:
    path = Path(name)
    if not path.is_file():
        raise InputError("there is no such file", where=f"policy '{name}'")
    warnings.warn(f"loading {name} executes code that it contains; load only what you trust", stacklevel=2)
    return Contender(name, "agent", str(path.resolve()), os.getcwd(), _file_digest(path))


def _agent_run(name: str) -> Contender:
    folder = Path(name)
    if not (folder / "checkpoint.npz").is_file():
        message = "is no policy: no run of agents.train with a checkpoint is in this folder"
        raise InputError(message, where=f"policy '{name}'")
    digest = _digest([folder / "run.yaml", folder / "checkpoint.npz"])
    return Contender(name, "agent", str(folder.resolve()), os.getcwd(), digest)


@functools.lru_cache(maxsize=4)
def _load_agent(source: str, digest: str) -> Any:
    """A model of Stable-Baselines3; kept, as long as its file stays the same."""
    return _load_zip(source) if source.endswith(".zip") else _load_run(source)


def _load_zip(path: str) -> Any:
    try:
        from sb3_contrib import MaskablePPO
        from stable_baselines3 import A2C, DQN, PPO
    except ImportError:
        message = "a saved agent needs Stable-Baselines3: pip install '.[train]' in a checkout"
        raise InputError(message, where=f"policy '{path}'") from None
    reason = ""
    for algorithm in (MaskablePPO, PPO, A2C, DQN):
        try:
            return algorithm.load(path, device="cpu")
        except Exception as error:  # each algorithm refuses the files of the others in its own way
            reason = reason or " ".join(str(error).split())[:160]
    raise InputError(f"is no agent of MaskablePPO, PPO, A2C or DQN: {reason}", where=f"policy '{path}'")


class _RunAgent:
    """The policy of a run of `agents.train`."""

    def __init__(self, policy: Any, work_conserving: bool) -> None:
        self.policy, self.work_conserving = policy, work_conserving
        self.observation_space, self.action_space = policy.observation_space, policy.action_space

    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, action_masks: Any
    ) -> tuple[Any, Any]:
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks)


def _load_run(folder: str) -> _RunAgent:
    try:
        runs = importlib.import_module("agents.runs")
    except ImportError as error:
        message = f"a run of agents.train needs a checkout of pdenv and its extra train ({error})"
        raise InputError(message, where=f"policy '{folder}'") from None
    run = runs.read_run(folder)
    policy = runs.make_policy(run)
    runs.load_weights(policy, run)
    return _RunAgent(policy, run.hyperparameters.work_conserving)


# ---- the predict protocol ----------------------------------------------------------------------------


def _takes_masks(policy: Any) -> bool:
    accepted: Mapping[str, inspect.Parameter] = inspect.signature(policy.predict).parameters
    return "action_masks" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())


def _environment(policy: Any, scenario: Scenario, name: str, **settings: Any) -> Any:
    """The evaluation environment whose spaces are those that a policy was made for.

    A policy without spaces gets the raw observation and the `pair` form; it scales where the scenario does.

    Raises:
        InputError: no environment of the scenario has these spaces.
    """
    import gymnasium as gym

    scales = bool(scenario.scaling.interval_s > 0 and scenario.prefill)
    wanted = [getattr(policy, space, None) for space in ("observation_space", "action_space")]
    ids = ["pdenv/Cluster-v0", "pdenv/Scaling-v0", "pdenv/Routing-v0"] if scales else ["pdenv/Routing-v0"]
    for env_id in ids:
        for mode in _MODES:
            made = gym.make(
                env_id,
                scenario=scenario,
                reward=scenario.cost.mode,
                action_mode=mode,
                evaluation=True,
                split="test",
                rule=RULE,
                work_conserving=getattr(policy, "work_conserving", False),
                on_illegal="error" if _takes_masks(policy) else "replace",
                disable_env_checker=True,
                **settings,
            )
            if wanted[1] is not None and made.action_space != wanted[1]:
                continue
            for layer in _LAYERS:
                env = _layered(made, layer)
                if wanted[0] is None or env.observation_space == wanted[0]:
                    return env
    raise InputError(
        f"its observations and actions are not those of scenario '{scenario.name}'; was it trained on another cluster?",
        where=f"policy '{name}'",
    )


def _layered(env: Any, layer: str) -> Any:
    from pdenv.envs.normalize import FlatObservation, NormalizeObservation

    if layer.startswith("flat"):
        return FlatObservation(env, normalize=layer.endswith("normalized"))
    return NormalizeObservation(env) if layer == "normalized" else env


def _check_span(name: str, given: Given) -> None:
    if given.span == "whole" and (given.trace is not None or given.scenario.workload.kind == "trace"):
        raise InputError("serves a trace in windows only; ask for two or more", where=f"policy '{name}'")


def play(policy: Any, name: str, given: Given, series: bool = False) -> Result:
    """Let what predicts serve one window; it is measured as every other policy is.

    Raises:
        PolicyError: it fails, or its answer is not legal.
        InputError: a trace as a whole, which environments do not serve.
    """
    from pdenv.envs.fleet import IllegalAction

    _check_span(name, given)
    env = _environment(
        policy,
        given.scenario,
        name,
        window=given.window,
        workload_seed=given.seed,
        trace=given.trace,
        rate_scale=given.rate_scale,
    )
    seen, _ = env.reset(seed=given.seed % 2**31)
    fleet = env.unwrapped.fleet
    load, sim = fleet.episodes[0].load, fleet.sims[0]
    watch = Watch(sim, load.end_s) if series else None
    asked, step, over, info = _Asked(policy), 0, False, {}
    with _one_thread():
        while not over:
            try:
                seen, _, _, over, info = env.step(asked(seen, env.get_wrapper_attr("action_masks")()))
            except (IllegalAction, _Failed) as error:
                raise PolicyError(f"policy '{name}': {error}", step, float(sim.now)) from error
            step += 1
            if watch:
                watch.look(sim)
    head = {"policy": name, "params": dict(given.params), "seed": given.seed, "window": given.window}
    scenario = given.scenario
    result = result_of(scenario, scenario, sim.cluster, load, sim, info["metrics"], head, watch)
    replaced = info.get("replaced_actions", 0)
    if replaced:
        line = f"{replaced} of {step} actions were not legal; the first legal one was taken instead"
        result.warnings.append(line)
        result.summary["warnings"] = result.warnings
    return result


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch, where it is in use, work in one thread: a decision is too small to be shared, and runs share cores."""
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


class _Failed(Exception):
    """What goes wrong inside `predict`."""


class _Asked:
    """Asks `predict` and keeps its state."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.masks, self.state, self.start = policy, _takes_masks(policy), None, True

    def __call__(self, observation: Any, mask: np.ndarray) -> Any:
        more = {"action_masks": mask} if self.masks else {}
        try:
            answer = self.policy.predict(
                observation, state=self.state, episode_start=np.array([self.start]), deterministic=True, **more
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _Failed(f"fails in predict: {worded(error)}") from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise _Failed(f"predict gave {type(answer).__name__}; (action, state) was expected")
        action, self.state = answer
        self.start = False
        return action
