"""Draw learning curves: `python -m agents.plot runs/NAME --out curve.png`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure

from agents.runs import Run, read_progress, read_run, steps_done
from agents.talk import said
from pdenv import atomic
from pdenv.errors import InputError


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and mean cost a request of the training episodes that ended in that update."""
    rows = [row for row in read_progress(run, steps_done(run)) if row["cost"]]
    if not rows:
        raise InputError("no training episode has ended yet", where=str(run.folder))
    return np.array([int(row["steps"]) for row in rows]), np.array([float(row["cost"]) for row in rows])


def draw(runs: list[Run]) -> Figure:
    """One line a run."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        axes.plot(*curve(run), marker=".", label=f"{run.folder.name} ({run.scenario.name}, seed {run.seed})")
    axes.set(xlabel="environment steps", ylabel="cost a request in training episodes", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="PNG to write.")],
) -> None:
    """Draw the learning curves of runs into one picture."""
    with said("agents.plot"):
        atomic.check_file(out)
        matplotlib.use("agg")
        picture = io.BytesIO()
        draw([read_run(folder) for folder in folders]).savefig(picture, format="png", dpi=150)
        atomic.write_bytes(out, picture.getvalue())


if __name__ == "__main__":
    app(prog_name="python -m agents.plot")
