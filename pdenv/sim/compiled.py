"""The few entry points into compiled code, compiled once and kept on disk.

numba's own cache looks only at the file of the entry point; a change in a callee would silently keep old machine
code. So the cache folder is keyed by a hash of every source file of this package.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba import njit

from pdenv.sim.layout import JIT

SOURCES = Path(__file__).parent


def source_key(folder: Path = SOURCES) -> str:
    """A hash of all source files below `folder` and of the numba version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """`$PDENV_CACHE_DIR`, else `$XDG_CACHE_HOME/pdenv`, else `~/.cache/pdenv`; a temporary folder if that fails."""
    base = os.environ.get("PDENV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "pdenv" / source_key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    except OSError:
        return Path(tempfile.gettempdir()) / f"pdenv-{os.getuid()}" / source_key()


@functools.cache
def compiled() -> SimpleNamespace:
    """The entry points, each compiled at its first call (or loaded from the cache)."""
    from pdenv.sim import batch, loop, totals

    functions = {
        "advance": loop.advance,
        "iterations_done": batch.iterations_done,
        "instance_totals": totals.instance_totals,
        "port_totals": totals.port_totals,
        "starved_total": totals.starved_total,
        "largest_port_excess": totals.largest_port_excess,
    }
    if not JIT:
        return SimpleNamespace(**functions)
    folder = cache_folder()
    if not any(folder.rglob("*.nbi")):
        print("pdenv: compiling the engine, once for this version (about 45 s) …", file=sys.stderr, flush=True)
    return SimpleNamespace(**_cached(functions, folder))


def _cached(functions: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Entry points with numba's disk cache in our own folder; numba's setting is left as it was."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        return {
            name: njit(error_model="numpy", nogil=True, cache=True)(function.py_func)
            for name, function in functions.items()
        }
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
