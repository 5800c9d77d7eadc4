"""Train a scheduler; `python -m agents.train --help`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch as th
import typer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch.utils.tensorboard import SummaryWriter

from agents.config import CONFIGS, Hyperparameters, read_hyperparameters
from agents.evaluate import score
from agents.rollout import EventTimePPO
from agents.runs import (
    KEPT,
    Run,
    check_algorithm,
    check_new,
    create_run,
    load_checkpoint,
    make_model,
    read_progress,
    read_run,
    save_checkpoint,
    steps_done,
    try_out,
    write_progress,
)
from agents.talk import console, progress_bar, said
from pdenv import atomic
from pdenv.errors import InputError
from pdenv.metrics import to_json
from pdenv.scenario import load_scenario

ALGO, STEPS, SEED, EVAL_WINDOWS = "maskable-ppo", 200_000, 0, 10


class Recorder(BaseCallback):
    """Writes a row an update and a checkpoint every few updates."""

    model: EventTimePPO

    def __init__(self, run: Run, report: Callable[[int, float | None], None], start: int) -> None:
        super().__init__()
        self.run = run
        self.report = report
        self.rows = read_progress(run, start)
        self.writer = SummaryWriter(str(run.tensorboard), purge_step=start + 1)
        self.start = start
        self.costs: list[float] = []
        self.latest: float | None = None

    def _on_step(self) -> bool:
        self.costs += [info["score"]["cost"] for info in self.locals["infos"] if "score" in info]
        return True

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps > self.start:
            self.finish_update(last=False)

    def finish_update(self, last: bool) -> None:
        """After an update: note how it went, and write a checkpoint if it is time."""
        steps = self.model.num_timesteps
        cost = float(np.mean(self.costs)) if self.costs else None
        row: dict[str, Any] = {"steps": steps, "cost": "" if cost is None else cost}
        row |= {name: float(self.model.logger.name_to_value[key]) for key, name in KEPT.items()}
        if not all(np.isfinite(row[name]) for name in ("policy_loss", "value_loss")) or not finite(self.model):
            raise diverged(self.run, steps)
        self.rows.append(row)
        for name, value in row.items():
            if name != "steps" and value != "":
                self.writer.add_scalar(name, value, steps)
        self.costs.clear()
        self.latest = self.latest if cost is None else cost
        if last or self.model.updates % self.run.hyperparameters.checkpoint_updates == 0:
            write_progress(self.run.progress, self.rows)  # first: rows beyond a checkpoint are dropped when resuming
            save_checkpoint(self.model, self.run.checkpoint)
            self.writer.flush()
        self.report(steps, self.latest)


def finite(model: EventTimePPO) -> bool:
    """Whether all weights are."""
    return all(bool(parameter.isfinite().all()) for parameter in model.policy.parameters())


def diverged(run: Run, steps: int) -> InputError:
    """Training cannot go on; the checkpoint is from before."""
    kept = f"the checkpoint at {steps_done(run):,} is kept" if run.checkpoint.exists() else "there is no checkpoint yet"
    message = f"training diverged by step {steps:,}: losses or weights are not finite; {kept}"
    return InputError(f"{message}; start a run with a lower learning_rate or reward_scale", where=str(run.folder))


def train(run: Run, report: Callable[[int, float | None], None] = lambda steps, cost: None) -> EventTimePPO:
    """Train from the latest checkpoint of a run, or from the start, to its end.

    Args:
        report: is called after every update with the steps done and the mean cost of the episodes that ended last.

    Raises:
        InputError: the settings cannot be trained with, a file of the run is damaged, or training diverged.
    """
    th.set_num_threads(run.hyperparameters.torch_threads)
    model = make_model(run)
    if run.checkpoint.exists():
        load_checkpoint(model, run)
    if model.num_timesteps >= run.total_steps:
        return model
    model.set_logger(Logger(folder=None, output_formats=[]))
    recorder = Recorder(run, report, model.num_timesteps)
    try:
        left = run.total_steps - model.num_timesteps
        with np.errstate(over="ignore", invalid="ignore"):  # the recorder looks for what is not finite
            model.learn(left, callback=recorder, log_interval=None, reset_num_timesteps=False)
        recorder.finish_update(last=True)
    except ValueError as error:
        # torch refuses probabilities that are not finite, which weights that still are can give.
        if isinstance(error, InputError) or (finite(model) and "invalid values" not in str(error)):
            raise
        raise diverged(run, model.num_timesteps) from None
    finally:
        recorder.writer.close()
        model.get_env().close()
    return model


def _hyperparameters(path: Path, envs: int | None) -> Hyperparameters:
    """Those of a file; what is wrong with --envs is said of --envs."""
    if envs is None:
        return read_hyperparameters(path)
    try:
        return read_hyperparameters(path, n_envs=envs)
    except InputError as error:
        about = f"{path}: n_envs "
        if not str(error).startswith(about):
            raise
        raise InputError(str(error).removeprefix(about), where="--envs") from None


def _new_run(
    scenario: str | None,
    algo: str | None,
    steps: int | None,
    seed: int | None,
    envs: int | None,
    config: Path | None,
    out: str | None,
) -> Run:
    if scenario is None:
        raise InputError("is missing; name a preset or a YAML file (`pdenv scenario list`)", where="SCENARIO")
    algo = ALGO if algo is None else algo
    check_algorithm(algo)
    if out == "":
        raise InputError("is empty; give the name of a folder", where="--out")
    hyperparameters = _hyperparameters(CONFIGS / f"{algo}.yaml" if config is None else config, envs)
    loaded = load_scenario(scenario)
    seed = SEED if seed is None else seed
    folder = Path(out) if out else Path("runs") / f"{loaded.name}-{algo}-{seed}"
    return Run(folder, algo, loaded, STEPS if steps is None else steps, seed, hyperparameters)


def _old_run(folder: Path, **others: Any) -> Run:
    given = [f"--{name}" if name != "scenario" else "SCENARIO" for name, value in others.items() if value is not None]
    if given:
        message = f"{given[0]} cannot change; a run that is resumed keeps what it was made with"
        raise InputError(message, where="--resume")
    return read_run(folder)


def _finish(run: Run, windows: int) -> None:
    """Score the run, show the table, write it."""
    scores = score(run, windows)
    atomic.write_text(run.scores, to_json(scores.to_dict()))
    console().print(scores.table())
    console().print(f"Everything is in {run.folder}; look at it with: tensorboard --logdir {run.tensorboard}")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command(
    epilog="Example: `python -m agents.train hetero-links --steps 200_000`\n\n"
    "Same seed, same settings and same versions give the same weights. A run that was killed goes on from its last "
    "checkpoint with --resume and ends as it would have. Checkpoints hold plain arrays and are read without pickle; "
    "zip files of Stable-Baselines3's `model.save()` execute code when loaded and are not used here."
)
def main(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="Name of a preset, or a YAML file.", show_default=False)
    ] = None,
    algo: Annotated[str | None, typer.Option(metavar="NAME", help=f"Algorithm; only {ALGO}.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help=f"Environment steps, rounded up to whole updates. [default: {STEPS:_}]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help=f"Of weights, episodes and draws. [default: {SEED}]")
    ] = None,
    envs: Annotated[
        int | None, typer.Option(min=1, help="Environments side by side; takes the place of n_envs of the config.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hyperparameters. [default: agents/configs/ALGO.yaml]", show_default=False),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="New folder of the run. [default: runs/SCENARIO-ALGO-SEED]"),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder, as it was made.")
    ] = None,
    eval_windows: Annotated[
        int, typer.Option(min=1, max=1000, help="Validation windows that the trained policy is scored on.")
    ] = EVAL_WINDOWS,
) -> None:
    """Train a scheduler on one scenario, then score it beside two heuristics on validation windows."""
    folder: list[Path] = []

    def interrupted() -> str:
        return f"interrupted; go on with --resume {folder[0]}" if folder else "interrupted"

    with said("agents.train", interrupted):
        options = {"scenario": scenario, "algo": algo, "steps": steps, "seed": seed, "envs": envs}
        if resume is not None:
            run = _old_run(resume, **options, config=config, out=out)
        else:
            run = _new_run(**options, config=config, out=out)  # type: ignore[arg-type]
            check_new(run.folder)
            try_out(run)
            create_run(run)
        folder.append(run.folder)
        done = steps_done(run)
        if done >= run.total_steps:
            console().print(f"{run.folder}: finished, {done:,} steps; scoring it")
        else:
            with progress_bar(run.total_steps, done) as report:
                train(run, report)
        _finish(run, eval_windows)


if __name__ == "__main__":
    app(prog_name="python -m agents.train")
