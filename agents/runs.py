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
import math
from dataclasses import dataclass
from itertools import pairwise
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
from agents.talk import note
from pdenv import atomic
from pdenv.envs.layout import layout_of
from pdenv.envs.normalize import normalized_space
from pdenv.errors import InputError, nearest
from pdenv.scenario import Scenario, load_scenario
from pdenv.scenario_yaml import parse as parse_yaml

ENV_ID = "pdenv/Routing-v0"

#: Numbers of Stable-Baselines3's `train` that are kept, by the names they get.
KEPT = {
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/entropy_loss": "entropy_loss",
    "train/approx_kl": "approximate_kl",
    "train/clip_fraction": "clip_fraction",
    "train/explained_variance": "explained_variance",
    "train/learning_rate": "learning_rate",
}

#: Columns of `progress.csv`.
COLUMNS = ("steps", "cost", *KEPT.values())

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps of every parameter

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


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path.parent)) from None


def check_new(folder: Path) -> None:
    """Raise InputError if there is a run in a folder already, or no folder can be there."""
    if _is_file(folder / "run.yaml"):
        message = f"holds a run; continue it with --resume {folder}, or give another --out"
        raise InputError(message, where=str(folder))
    if folder.exists() and not folder.is_dir():
        raise InputError("exists and is not a folder; give another --out", where=str(folder))


def create_run(run: Run) -> None:
    """Write what the run is made with into its folder, which is made.

    Raises:
        InputError: the folder holds a run already, or cannot be written.
    """
    check_new(run.folder)
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
    if not _is_file(path):
        raise InputError("holds no run (no run.yaml in it)", where=str(folder))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {' '.join(str(error).split())[:160]}", where=str(path)) from None
    data, _ = parse_yaml(text, str(path))
    if not isinstance(data, dict) or set(data) != set(_KEYS):
        raise InputError(f"is damaged; it should have the keys {', '.join(_KEYS)}", where=str(path))
    for key, least in (("steps", 1), ("seed", 0)):
        if type(data[key]) is not int or data[key] < least:  # True is an int, too
            raise InputError(f"is damaged; {key} should be a whole number from {least} on", where=str(path))
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


def try_out(run: Run) -> None:
    """Make the model of a run and begin its episodes once.

    Raises:
        InputError: the settings do not fit the scenario, or memory.
    """
    try:
        model = make_model(run)
        assert model.env is not None
        try:
            model.env.reset()
        finally:
            model.env.close()
    except MemoryError:
        raise InputError("there is not enough memory; lower n_envs, n_steps or hidden", where="--config") from None


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


def _damaged(path: Path, how: str) -> InputError:
    return InputError(f"is damaged: {' '.join(how.split())[:160]}", where=str(path))


def _read_arrays(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError:
        raise InputError("there is no checkpoint yet", where=str(path)) from None
    except Exception as error:  # numpy, zipfile and zlib let many kinds out for bytes that are not theirs
        raise _damaged(path, str(error) or "it is not an npz file") from None


def _checkpoint(run: Run, policy: BasePolicy) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint, all there and as training leaves them.

    Raises:
        InputError: no checkpoint, damaged, or of another network.
    """
    path, arrays = run.checkpoint, _read_arrays(run.checkpoint)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in policy.named_parameters():
        shapes[f"policy/{name}"] = tuple(parameter.shape)
        shapes |= {f"optimizer/{name}/{key}": () if key == "step" else tuple(parameter.shape) for key in _MOMENTS}
    wrong = sorted({"steps", *shapes}.symmetric_difference(arrays))
    if wrong:
        raise _damaged(path, f"'{wrong[0]}' is {'unknown' if wrong[0] in arrays else 'missing'}")
    for name, shape in shapes.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            raise _damaged(path, f"'{name}' is no float32 array")
        if array.shape != shape:
            raise InputError(f"is of another network: '{name}' is {array.shape}, not {shape}", where=str(path))
        if not np.isfinite(array).all() or (name.endswith(("/step", "/exp_avg_sq")) and (array < 0.0).any()):
            raise _damaged(path, f"'{name}' holds numbers that training never leaves")
    steps = arrays["steps"]
    if not isinstance(steps, np.ndarray) or steps.shape != () or steps.dtype.kind not in "iu":
        raise _damaged(path, "'steps' is no whole number")
    update = run.hyperparameters.update_steps
    if not 0 < steps <= run.total_steps or int(steps) % update:
        raise _damaged(path, f"steps is {steps}, not a multiple of {update} up to {run.total_steps}")
    return arrays


def steps_done(run: Run) -> int:
    """Steps at the checkpoint; 0 without one."""
    return int(_checkpoint(run, make_policy(run))["steps"]) if run.checkpoint.exists() else 0


def load_weights(policy: BasePolicy, run: Run) -> None:
    """Set the weights of a policy to those of the checkpoint of a run.

    Raises:
        InputError: no checkpoint, damaged, or of another network.
    """
    _set_weights(policy, _checkpoint(run, policy))


def _set_weights(policy: BasePolicy, arrays: dict[str, np.ndarray]) -> None:
    policy.load_state_dict({name: th.as_tensor(arrays[f"policy/{name}"]) for name, _ in policy.named_parameters()})


def load_checkpoint(model: EventTimePPO, run: Run) -> None:
    """Bring a new model to the checkpoint of its run: weights, optimiser, steps.

    Raises:
        InputError: no checkpoint, damaged, or of another network.
    """
    arrays = _checkpoint(run, model.policy)
    _set_weights(model.policy, arrays)
    for name, parameter in model.policy.named_parameters():
        state = {key: th.as_tensor(arrays[f"optimizer/{name}/{key}"]) for key in _MOMENTS}
        model.policy.optimizer.state[parameter] = state
    model.num_timesteps = int(arrays["steps"])
    model._n_updates = model.updates * model.n_epochs


# ---- progress -----------------------------------------------------------------------------------------


def write_progress(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace `progress.csv` in one step."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(path, text.getvalue())


def read_progress(run: Run, until_steps: int) -> list[dict[str, Any]]:
    """Rows up to a checkpoint; a note if there are fewer than updates.

    Raises:
        InputError: the file is damaged.
    """
    path, rows = run.progress, _rows(run.progress) if run.progress.exists() else []
    rows = [row for row in rows if int(row["steps"]) <= until_steps]
    updates = until_steps // run.hyperparameters.update_steps
    if len(rows) < updates:
        note(f"{path}: lacks {updates - len(rows)} of {updates} updates; going on without them")
    return rows


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = tuple(next(reader, ()))
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in reader]
        numbers = [[float(row[name] or 0.0) for name in COLUMNS if name != "steps"] for row in rows]
        steps = [0, *(int(row["steps"]) for row in rows)]
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)) from None
    except (ValueError, csv.Error) as error:  # not UTF-8, no number, cells too few or too many
        raise _damaged(path, str(error)) from None
    if header != COLUMNS:
        raise _damaged(path, f"its columns should be {', '.join(COLUMNS)}")
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise _damaged(path, "its steps do not grow")
    if not all(math.isfinite(row[0]) for row in numbers):
        raise _damaged(path, "a cost is not finite")
    return rows
