"""The folder of a training run: what it was made with, and how far it has come.

    run.yaml         algorithm, steps, seed and hyperparameters
    scenario.yaml    the scenario, whole
    checkpoint.npz   weights, state of the optimiser, steps done; replaced in one step
    progress.csv     one row an update
    scores.json      costs on validation windows, when training has ended
    tensorboard/     the same as progress.csv, to be looked at while it runs

Weights and optimiser are plain arrays, read without pickle, so that a run of somebody else can be loaded safely. (The
zip files that `model.save()` of Stable-Baselines3 writes are different: loading one runs code that it contains.)
"""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
import yaml
from stable_baselines3.common.policies import BasePolicy

import pdenv
from agents.config import ALGORITHMS, Hyperparameters, hyperparameters_of
from agents.policy import PairPolicy
from agents.rollout import EventTimePPO
from pdenv import atomic
from pdenv.envs.layout import layout_of
from pdenv.envs.normalize import normalized_space
from pdenv.errors import InputError, nearest
from pdenv.scenario import Scenario, load_scenario

ENV_ID = "pdenv/Routing-v0"

_KEYS = ("algo", "steps", "seed", "hyperparameters", "pdenv")


@dataclass(frozen=True)
class Run:
    """A training run and where it lies."""

    folder: Path
    algo: str
    scenario: Scenario
    steps: int
    seed: int
    hyperparameters: Hyperparameters

    @property
    def total_steps(self) -> int:
        """Steps in whole updates."""
        return -(-self.steps // self.hyperparameters.update_steps) * self.hyperparameters.update_steps

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.npz"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.csv"

    @property
    def scores(self) -> Path:
        return self.folder / "scores.json"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"


def create_run(run: Run) -> None:
    """Write what the run is made with into its folder, which is made.

    Raises:
        InputError: the folder holds a run already, or cannot be written.
    """
    if (run.folder / "run.yaml").exists():
        message = f"holds a run; continue it with --resume {run.folder}, or give another --out"
        raise InputError(message, where=str(run.folder))
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {(error.strerror or str(error)).lower()}", where=str(run.folder)) from None
    values = (run.algo, run.steps, run.seed, run.hyperparameters.model_dump(), pdenv.__version__)
    atomic.write_text(run.folder / "scenario.yaml", run.scenario.to_yaml())
    atomic.write_text(run.folder / "run.yaml", yaml.safe_dump(dict(zip(_KEYS, values, strict=True)), sort_keys=False))


def read_run(folder: str | Path) -> Run:
    """The run in a folder.

    Raises:
        InputError: there is none, or its files are damaged.
    """
    folder = Path(folder)
    path = folder / "run.yaml"
    if not path.is_file():
        raise InputError("holds no run (no run.yaml in it)", where=str(folder))
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {' '.join(str(error).split())[:160]}", where=str(path)) from None
    if not isinstance(data, dict) or set(data) != set(_KEYS):
        raise InputError(f"is damaged; it should have the keys {', '.join(_KEYS)}", where=str(path))
    if not all(isinstance(data[key], int) and data[key] >= 0 for key in ("steps", "seed")):
        raise InputError("is damaged; steps and seed should be whole numbers", where=str(path))
    check_algorithm(data["algo"])
    hyperparameters = hyperparameters_of(data["hyperparameters"], str(path))
    scenario = load_scenario(folder / "scenario.yaml")
    return Run(folder, data["algo"], scenario, data["steps"], data["seed"], hyperparameters)


def check_algorithm(name: str) -> None:
    """Raise InputError unless there is such an algorithm."""
    if name not in ALGORITHMS:
        raise InputError(f"no algorithm '{name}'{nearest(str(name), ALGORITHMS)}", where="--algo")


# ---- the model ----------------------------------------------------------------------------------------


def make_model(run: Run) -> EventTimePPO:
    """The untrained model of a run, on its training environments."""
    h = run.hyperparameters
    env = pdenv.make_sb3_vec_env(
        ENV_ID,
        h.n_envs,
        scenario=run.scenario,
        horizon_requests=h.horizon_requests,
        windows=h.windows,
        rollouts_per_window=h.rollouts_per_window,
        work_conserving=h.work_conserving,
        reference=h.reference,
        beta_per_s=h.beta_per_s,
    )
    return EventTimePPO(
        PairPolicy,
        env,
        learning_rate=lambda remaining: h.learning_rate * (remaining + h.update_steps / run.total_steps),
        n_steps=h.n_steps,
        batch_size=h.batch_size,
        n_epochs=h.n_epochs,
        clip_range=h.clip_range,
        ent_coef=h.entropy_coefficient,
        vf_coef=h.value_coefficient,
        max_grad_norm=h.max_grad_norm,
        policy_kwargs={"hidden": h.hidden},
        seed=run.seed,
        device="cpu",
        beta_per_s=h.beta_per_s,
        trace_decay_per_s=h.trace_decay_per_s,
        group=h.rollouts_per_window if h.center_in_groups else 1,
        reward_scale=h.reward_scale,
        restart_updates=h.checkpoint_updates,
    )


def make_policy(run: Run) -> PairPolicy:
    """The untrained policy of a run, the same as that of `make_model`."""
    layout = layout_of(run.scenario.cluster(), "pair", routes=True, scales=False)
    th.manual_seed(run.seed)
    space = normalized_space(layout, flat=False)
    return PairPolicy(space, layout.action_space(), lambda _: 0.0, hidden=run.hyperparameters.hidden)  # type: ignore[arg-type]


# ---- checkpoints --------------------------------------------------------------------------------------


def save_checkpoint(model: EventTimePPO, path: Path) -> None:
    """Replace the checkpoint in one step."""
    arrays: dict[str, np.ndarray] = {"steps": np.array(model.num_timesteps)}
    state = model.policy.optimizer.state
    for name, parameter in model.policy.named_parameters():
        arrays[f"policy/{name}"] = parameter.detach().numpy()
        for key, value in state.get(parameter, {}).items():
            arrays[f"optimizer/{name}/{key}"] = value.numpy()
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    atomic.write_bytes(path, file.getvalue())


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except FileNotFoundError:
        raise InputError("there is no checkpoint yet", where=str(path)) from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"is damaged: {' '.join(str(error).split())[:160]}", where=str(path)) from None
    if "steps" not in arrays:
        raise InputError("is no checkpoint; it holds no number of steps", where=str(path))
    return arrays


def steps_done(path: Path) -> int:
    """Steps at the checkpoint; 0 without one."""
    return int(_arrays(path)["steps"]) if path.exists() else 0


def load_weights(policy: BasePolicy, path: Path) -> None:
    """Set the weights of a policy to those of a checkpoint.

    Raises:
        InputError: no checkpoint, damaged, or of another network.
    """
    _set_weights(policy, _arrays(path), path)


def _set_weights(policy: BasePolicy, arrays: dict[str, np.ndarray], path: Path) -> None:
    weights = {k.removeprefix("policy/"): th.as_tensor(v) for k, v in arrays.items() if k.startswith("policy/")}
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"is of another network: {' '.join(str(error).split())[:160]}", where=str(path)) from None


def load_checkpoint(model: EventTimePPO, path: Path) -> None:
    """Bring a new model to a checkpoint: weights, optimiser, steps.

    Raises:
        InputError: no checkpoint, damaged, or of another network.
    """
    arrays = _arrays(path)
    _set_weights(model.policy, arrays, path)
    optimizer = model.policy.optimizer
    for name, parameter in model.policy.named_parameters():
        prefix = f"optimizer/{name}/"
        state = {k.removeprefix(prefix): th.as_tensor(v) for k, v in arrays.items() if k.startswith(prefix)}
        if state:
            optimizer.state[parameter] = state
    model.num_timesteps = int(arrays["steps"])
    model._n_updates = model.updates * model.n_epochs


# ---- progress -----------------------------------------------------------------------------------------


def write_progress(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace `progress.csv` in one step."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["steps"], lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(path, text.getvalue())


def read_progress(path: Path, until_steps: int) -> list[dict[str, Any]]:
    """Rows up to a checkpoint."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file) if int(row["steps"]) <= until_steps]
