"""Hyperparameters: a YAML file, checked when it is read."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdenv.errors import InputError, nearest
from pdenv.scenario_yaml import parse as parse_yaml

CONFIGS = Path(__file__).parent / "configs"

#: Algorithms of `python -m agents.train`; each has a file of defaults in `agents/configs`.
ALGORITHMS = ("maskable-ppo",)

MOST_UPDATE_STEPS = 10_000_000


class Hyperparameters(BaseModel):
    """What a training run is made with."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    n_envs: int = Field(64, ge=1, le=100_000, description="environments that run side by side")
    n_steps: int = Field(100, ge=2, le=1_000_000, description="steps of each environment in an update")
    batch_size: int = Field(1600, ge=2, le=MOST_UPDATE_STEPS, description="steps in a minibatch")
    n_epochs: int = Field(4, ge=1, le=1000, description="passes over the steps of an update")
    learning_rate: float = Field(1e-3, gt=0.0, le=1.0, description="at the start; falls linearly to 0")
    clip_range: float = Field(0.2, gt=0.0, le=10.0, description="of the probability ratio")
    entropy_coefficient: float = Field(0.0, ge=0.0, le=100.0, description="weight of the entropy in the loss")
    value_coefficient: float = Field(0.5, ge=0.0, le=100.0, description="weight of the value loss")
    max_grad_norm: float = Field(0.5, gt=0.0, le=1e6, description="gradients are clipped to it")
    beta_per_s: float = Field(0.05, ge=0.0, le=1e6, description="discount rate in simulated time, 1/s")
    trace_decay_per_s: float = Field(
        0.1, ge=0.0, le=1e6, description="decay of advantage traces in simulated time, 1/s"
    )
    reward_scale: float = Field(0.02, gt=0.0, le=1e6, description="factor on rewards")
    horizon_requests: int = Field(1000, ge=1, le=1_000_000, description="arrivals in a training episode")
    windows: int | None = Field(
        None, ge=1, le=1_000_000, description="training windows to draw from; null: as many as there are"
    )
    rollouts_per_window: int = Field(
        8, ge=1, le=100_000, description="neighbouring environments that see the same arrivals"
    )
    center_in_groups: bool = Field(True, description="subtract the mean advantage of those neighbours")
    reference: str | None = Field(None, description="rule whose reward over the same time is subtracted")
    work_conserving: bool = Field(True, description="hold only where there is nowhere to go")
    hidden: int = Field(64, ge=1, le=4096, description="width of the layers")
    checkpoint_updates: int = Field(
        10, ge=1, le=1_000_000, description="updates between checkpoints; episodes start anew at each"
    )
    torch_threads: int = Field(
        1, ge=1, le=1024, description="threads of torch; tensors are small, and more may be slower"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Hyperparameters:
        if self.n_envs % self.rollouts_per_window:
            raise ValueError(
                f"n_envs is {self.n_envs}; give a multiple of rollouts_per_window, which is {self.rollouts_per_window}"
            )
        if self.update_steps > MOST_UPDATE_STEPS:
            raise ValueError(
                f"n_envs is {self.n_envs} and n_steps {self.n_steps}; an update has at most {MOST_UPDATE_STEPS:,} steps"
            )
        if self.update_steps % self.batch_size == 1:
            raise ValueError(
                f"batch_size is {self.batch_size}; of the {self.update_steps} steps of an update that leaves a "
                "minibatch of 1, whose advantages cannot be normalised"
            )
        return self

    @property
    def update_steps(self) -> int:
        """Environment steps in an update."""
        return self.n_envs * self.n_steps


def read_hyperparameters(path: str | Path, **changes: Any) -> Hyperparameters:
    """Read a YAML file.

    Args:
        path: keys that it leaves out have the defaults of `Hyperparameters`.
        changes: keys that take the place of those in the file.

    Raises:
        InputError: the first problem, in one line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"cannot be read: {str(reason).lower()}", where=str(path)) from None
    data, _ = parse_yaml(text, str(path))
    return hyperparameters_of({} if data is None else data, str(path), **changes)


def hyperparameters_of(data: Any, where: str, **changes: Any) -> Hyperparameters:
    """Check the data of a file; see `read_hyperparameters`."""
    if not isinstance(data, dict):
        raise InputError("holds no mapping; write one hyperparameter a line, such as n_epochs: 4", where=where)
    for key in data:
        if key not in Hyperparameters.model_fields:
            raise InputError(f"unknown key '{key}'{nearest(str(key), Hyperparameters.model_fields)}", where=where)
    try:
        return Hyperparameters.model_validate({**data, **changes})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if not problem["loc"]:
            raise InputError(problem["msg"].removeprefix("Value error, "), where=where) from None
        key, given = problem["loc"][0], reprlib.repr(problem["input"])
        raise InputError(f"{key} is {given}; {problem['msg'].lower()}", where=where) from None
