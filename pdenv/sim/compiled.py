"""The few entry points into compiled code, compiled once and kept on disk.

numba's own cache looks only at the file of the entry point; a change in a callee would silently keep old machine
code. So the cache folder is keyed by a hash of every source file of this package.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba import njit

from pdenv.sim.layout import JIT

SOURCES = Path(__file__).parent


def source_key(*folders: Path) -> str:
    """A hash of all source files below `folders` (default: this package) and of the numba version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in folders or (SOURCES,):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def cache_folder(*sources: Path) -> Path:
    """Where machine code of the kernels in `sources` (default: this package) is kept.

    `$PDENV_CACHE_DIR`, else `$XDG_CACHE_HOME/pdenv`, else `~/.cache/pdenv`.

    Where that cannot be written, a private temporary folder for this process alone: cached code is executed,
    so it is never read from a place that others could have filled.
    """
    base = os.environ.get("PDENV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "pdenv" / source_key(*sources)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        private = tempfile.mkdtemp(prefix="pdenv-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return Path(private)


class _EntryPoint:
    """A compiled function that compiles again if its cached machine code turns out to be damaged."""

    def __init__(self, function: Any, folder: Path) -> None:
        self.function = function
        self.folder = folder
        self.call: Callable[..., Any] = self._first_call
        self.dispatcher = _cached(function, folder)

    def _first_call(self, *arguments: Any) -> Any:
        try:
            result = self.dispatcher(*arguments)
        except (pickle.UnpicklingError, EOFError, AttributeError, RuntimeError, ValueError, OSError) as error:
            print(f"pdenv: the compiled engine in {self.folder} is damaged ({error}); compiling again", file=sys.stderr)
            for file in self.folder.rglob("*.nb?"):
                file.unlink(missing_ok=True)
            self.dispatcher = _cached(self.function, self.folder)
            result = self.dispatcher(*arguments)
        self.call = self.dispatcher
        return result

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)


@functools.cache
def compiled() -> SimpleNamespace:
    """The entry points, each compiled at its first call (or loaded from the cache)."""
    from pdenv.sim import accrual, batch, loop, totals

    functions = {
        "advance_each": loop.advance_each,
        "start_accrual": accrual.start_accrual,
        "take_accrual": accrual.take_accrual,
        "iterations_done": batch.iterations_done,
        "instance_totals": totals.instance_totals,
        "port_totals": totals.port_totals,
        "starved_total": totals.starved_total,
        "largest_port_excess": totals.largest_port_excess,
    }
    return entry_points(functions, "engine", 60)


def entry_points(functions: dict[str, Any], what: str, seconds: int, *sources: Path) -> SimpleNamespace:
    """Kernels made callable from Python; their code lies in `sources` (default: this package)."""
    if not JIT:
        return SimpleNamespace(**functions)
    folder = cache_folder(*sources)
    if not any(folder.rglob("*.nbi")):
        about = f"once for this version (about {seconds} s)"
        print(f"pdenv: compiling the {what}, {about} …", file=sys.stderr, flush=True)
    return SimpleNamespace(**{name: _EntryPoint(function, folder) for name, function in functions.items()})


def _cached(function: Any, folder: Path) -> Any:
    """The kernel as an entry point with numba's disk cache in our own folder; numba's setting is left as it was."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        return njit(error_model="numpy", nogil=True, cache=True)(function.py_func)
    finally:
        numba.config.CACHE_DIR = before


def warm_up() -> float:
    """Compile or load every entry point by running a tiny cluster; returns seconds."""
    from pdenv.scenario import load_scenario
    from pdenv.sim.engine import Simulation
    from pdenv.workload import build

    begun = time.perf_counter()
    scenario = load_scenario("toy")
    workload = build(scenario)
    sim = Simulation(scenario.cluster(), workload.arrivals, workload.blocks)
    sim.run(1.0)
    sim.totals()
    sim.close()
    kernels = compiled()
    kernels.largest_port_excess(sim.block.handle())
    kernels.iterations_done(sim.block.handle(), 0, 0.0)
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(f"pdenv: the engine is ready ({warm_up():.1f} s), cached in {cache_folder()}")
