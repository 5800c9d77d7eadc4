"""How the commands speak: one line for bad input, a progress bar where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pdenv.errors import InputError

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe


def console() -> Console:
    """What results are printed on."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def note(message: str) -> None:
    """Something to know that stops nothing, in one line on stderr."""
    print(f"note: {message}", file=sys.stderr)


@contextmanager
def said(command: str, interrupted: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Bad input ends in one line and exit code 2, an interrupt in one line and 130."""
    try:
        yield
    except InputError as error:
        print(f"{command}: {str(error).splitlines()[0]}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print(f"{command}: {interrupted()}", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def progress_bar(total: int, done: int) -> Iterator[Callable[[int, float | None], None]]:
    """A callback that takes the steps done and the latest cost; a bar on stderr, or a line a call in a pipe."""
    if not sys.stderr.isatty():
        yield lambda steps, cost: print(f"{steps:>10,} of {total:,} steps  {_cost(cost)}", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[cost]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("steps", total=total, completed=done, cost="")
        yield lambda steps, cost: bar.update(task, completed=steps, cost=_cost(cost))


def _cost(cost: float | None) -> str:
    return "" if cost is None else f"cost a request in training {cost:.3f}"
