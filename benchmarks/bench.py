"""Measure the speed of pdenv and write `docs/performance.md` and `docs/performance.json`.

    python benchmarks/bench.py [--full] [--quick] [--only ROW]

The page is made from the JSON file alone, by `document`. `--full` adds a run of 10 million requests (5 GB of
memory), `--quick` runs few requests once and says so on the page, `--only` prints the rows whose name contains
ROW and writes nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import env_rows
from performance_page import (
    BASE_IMPORTS,
    GPU,
    MEMORY_TARGET_BYTES,
    MODEL,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REPEATS,
    ROW_BUDGET_S,
    TENSOR_PARALLEL,
    Raw,
    document,
    tables_of,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import pdenv
from pdenv import catalog, load_scenario, metrics, workload
from pdenv.atomic import write_text
from pdenv.scenario import Scenario
from pdenv.sim.engine import Simulation
from pdenv.sim.records import ARRIVAL, RECORD

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RAW = ROOT / "docs" / "performance.json"

EFFICIENCY = 0.8  # of every link of the uniform clusters


@dataclass(frozen=True)
class Load:
    """One row of the table of throughputs."""

    name: str
    title: str
    scenario: Callable[..., Scenario]  # of the number of requests
    target: float  # requests per CPU-second
    policy: str = "least-requests"
    peer: tuple[float, ...] = ()  # the fastest peer known on this load, requests per second


# ---- loads ----------------------------------------------------------------------------------------------


def uniform(
    pairs: int, overlap: str, spine_load: float | None, requests: int, rate_a_pair: float = 8.0, **network: Any
) -> Scenario:
    """`pairs` + `pairs` equal instances, by default at 8 requests/s a pair; BF16 KV loads the spine to `spine_load`."""
    rate_per_s = rate_a_pair * pairs
    racks: tuple[str | None, str | None] = (None, None)
    if spine_load is not None:
        kv_bytes_per_s = rate_per_s * PROMPT_TOKENS * catalog.model(MODEL).kv_bytes_per_token[0]
        network |= {"racks": {"prefill": {}, "decode": {}}}
        network |= {"spine_bytes_per_s": kv_bytes_per_s / spine_load / EFFICIENCY}
        racks = ("prefill", "decode")
    group = {"count": pairs, "gpu": GPU, "tensor_parallel": TENSOR_PARALLEL}
    lengths = {"kind": "fixed", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    return Scenario.model_validate(
        {
            "name": f"{pairs} + {pairs}",
            "model": MODEL,
            "prefill": [{**group, "rack": racks[0]}],
            "decode": [{**group, "rack": racks[1]}],
            "network": {"efficiency": EFFICIENCY, "overlap": overlap, **network},
            "kv": {"reserve": "prefill_start" if overlap == "layer_wise" else "prefill_end"},
            "workload": {"kind": "poisson", "rate_per_s": rate_per_s, "lengths": lengths},
            "window": {"requests": requests, "drain_max_s": 0},
        }
    )


def operating_point(requests: int, **network: Any) -> Scenario:
    """The preset as it is, without a warm-up and without load after the measured requests."""
    overrides = {"window.requests": requests, "window.warmup_s": 0.0, "window.drain_max_s": 0.0}
    return load_scenario(
        "operating-point", overrides={**overrides, **{f"network.{key}": value for key, value in network.items()}}
    )


def _uniform_loads() -> list[Load]:
    sizes: list[tuple[int, str, str, float | None, float, tuple[float, ...]]] = [
        (5, "", "", None, 800_000, (5650, 7050)),
        (50, "", "", None, 450_000, (2815,)),
        (500, "-free", ", spine not binding", 0.1, 250_000, ()),
        (500, "-spine", ", spine loaded to 0.85", 0.85, 100_000, ()),
    ]
    return [
        Load(
            f"{pairs}+{pairs}{suffix}-{overlap.replace('_', '-')}",
            f"{pairs} + {pairs} at {8 * pairs:,}/s{spine}, {overlap.replace('_', '-')}",
            partial(uniform, pairs, overlap, spine_load),
            target,
            peer=peer,
        )
        for pairs, suffix, spine, spine_load, target, peer in sizes
        for overlap in ("blocking", "layer_wise")
    ]


def loads() -> list[Load]:
    """Rows of the table of throughputs."""
    rows = _uniform_loads()
    at_point = [
        Load(f"operating-point-{policy}", f"operating-point, layer-wise, {policy}", operating_point, 500_000, policy)
        for policy in ("least-requests", "three-part")
    ]
    busy = partial(uniform, 5, "layer_wise", 0.85, rate_a_pair=20.0)
    title = "5 + 5 at 100/s, prefill about 0.8 busy, spine loaded to 0.85, layer-wise"
    at_point.append(Load("5+5-busy-layer-wise", title, busy, 500_000))
    return [*rows[:4], *at_point, *rows[4:]]


# ---- measuring throughput -------------------------------------------------------------------------------


def arrivals_of(scenario: Scenario) -> workload.Workload:
    """The workload of seed 0, all of it measured."""
    load = workload.build(scenario, seed=0)
    assert (load.measured_from, load.measured_to) == (0, len(load.arrivals))
    return load


def finish(sim: Simulation, load: workload.Workload) -> tuple[Any, Any]:
    """Run until every request has ended; totals at the start and at the last arrival."""
    start = sim.totals()
    sim.run(load.end_s)
    end = sim.totals()
    assert sim.run(), "requests were left over"
    return start, end


def once(scenario: Scenario, load: workload.Workload, policy: str) -> tuple[Raw, Raw]:
    """CPU seconds of one run's parts, and its summary."""
    gc.collect()
    begun = time.process_time()
    cluster = scenario.cluster()
    sim = Simulation(cluster, load.arrivals, load.blocks, rule=policy)
    built = time.process_time()
    start, end = finish(sim, load)
    ran = time.process_time()
    summary = metrics.summarise(scenario, cluster, load, sim.records, start, end, until_s=sim.now)
    done = time.process_time()
    return {"setup_s": built - begun, "run_s": ran - built, "summary_s": done - ran}, summary


def cpu_s(parts: Raw) -> float:
    """What counts: the run and its summary."""
    return float(parts["run_s"] + parts["summary_s"])


def repeat(scenario: Scenario, policy: str, repeats: int) -> Raw:
    """Medians over equal runs, and what the load did to the cluster."""
    load = arrivals_of(scenario)
    parts: list[Raw] = []
    begun = time.perf_counter()
    while len(parts) < repeats and (not parts or time.perf_counter() - begun < ROW_BUDGET_S):
        one, summary = once(scenario, load, policy)
        parts.append(one)
    seconds = median(cpu_s(one) for one in parts)
    return {
        "requests": len(load.arrivals),
        "runs": parts,
        **{key: median(one[key] for one in parts) for key in parts[0]},
        "cpu_s": seconds,
        "requests_per_cpu_s": len(load.arrivals) / seconds,
        "completed": summary["completed"],
        "prefill_utilisation": summary["prefill_utilisation"],
        "spine_utilisation": summary["link_utilisation"].get("spine"),
    }


def without_parts(load: Load, requests: int, repeats: int) -> Raw:
    """The CPU seconds of the same load without link contention, and with the cheapest routing rule."""
    alone, plain = load.scenario(requests, contention="none"), load.scenario(requests)
    return {
        "contention_none": repeat(alone, load.policy, repeats)["cpu_s"],
        "round_robin": repeat(plain, "round-robin", repeats)["cpu_s"],
    }


def throughput(load: Load, requests: int, repeats: int) -> Raw:
    """One row; of a missed target also where the time goes."""
    row: Raw = {"name": load.name, "title": load.title, "policy": load.policy, "target": load.target}
    row |= {"peer": list(load.peer), **repeat(load.scenario(requests), load.policy, repeats)}
    missed = row["requests_per_cpu_s"] < load.target
    return {**row, "without": without_parts(load, requests, min(repeats, 3)) if missed else None}


def linearity(requests: int, repeats: int) -> Raw:
    """Time a request of 5 + 5, blocking."""
    row = repeat(uniform(5, "blocking", None, requests), "least-requests", repeats)
    return {"name": f"linear-{requests}", **row, "us_per_request": 1e6 * row["cpu_s"] / row["requests"]}


def memory(requests: int) -> Raw:
    """Peak bytes a request on 5 + 5, blocking: all that Python and NumPy allocate from the arrivals on."""
    scenario = uniform(5, "blocking", None, requests)
    load, cluster = arrivals_of(scenario), scenario.cluster()
    gc.collect()
    tracemalloc.start()
    sim = Simulation(cluster, load.arrivals, load.blocks, rule="least-requests")
    start, end = finish(sim, load)
    ran = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    metrics.summarise(scenario, cluster, load, sim.records, start, end, until_s=sim.now)
    summarised = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    beyond = ARRIVAL.itemsize - RECORD.itemsize
    return {
        "name": "memory",
        "requests": requests,
        "record_bytes": RECORD.itemsize,
        "arrival_bytes": ARRIVAL.itemsize,
        "run_bytes": ran / requests + beyond,
        "summary_bytes": summarised / requests + beyond,
        "target": MEMORY_TARGET_BYTES,
    }


# ---- measuring start-up ---------------------------------------------------------------------------------

#: Compiles or loads all entry points. Its own simulated load takes milliseconds.
COMPILE = """
import json, time
from pdenv import load_scenario, workload
from pdenv.sim.compiled import compiled
from pdenv.sim.engine import Simulation
scenario = load_scenario("toy")
load = workload.build(scenario)
sim = Simulation(scenario.cluster(), load.arrivals, load.blocks, rule="least-requests")
cpu, wall = time.process_time(), time.perf_counter()
sim.run(1.0)
advance = time.process_time() - cpu
sim.totals()
handle = sim.block.handle()
compiled().iterations_done(handle, 0, sim.now)
compiled().largest_port_excess(handle)
functions = vars(compiled())
left = [name for name, function in functions.items() if not function.dispatcher.signatures]
print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall,
                  "advance_cpu_s": advance, "functions": sorted(functions), "left_out": left}))
"""

IMPORT = """
import json, time
cpu, wall = time.process_time(), time.perf_counter()
import {modules}
print(json.dumps({{"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}}))
"""


def child(code: str, cache: str | None = None) -> Raw:
    """What a new interpreter prints, as JSON."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    if cache is not None:
        environment["PDENV_CACHE_DIR"] = cache
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: Raw = json.loads(done.stdout.splitlines()[-1])
    return result


def compilation(repeats: int) -> Raw:
    """Into an empty cache once, then from it."""
    with tempfile.TemporaryDirectory() as cache:
        cold = child(COMPILE, cache)
        cached = [child(COMPILE, cache) for _ in range(repeats)]
    warm = {key: median(one[key] for one in cached) for key in ("cpu_s", "wall_s")}
    return {"name": "compilation", "cold": cold, "cached": warm, "cached_runs": cached}


def imports(repeats: int) -> Raw:
    """Medians in turn, so that a busy moment of the machine meets all of them."""
    groups = {"pdenv": "pdenv", "base": BASE_IMPORTS, "run": "pdenv.run, pdenv.sim.engine"}
    runs: dict[str, list[Raw]] = {name: [] for name in groups}
    for _ in range(repeats + 1):
        for name, modules in groups.items():
            runs[name].append(child(IMPORT.format(modules=modules)))
    counted = {name: ones[1:] for name, ones in runs.items()}  # the first reads files into memory
    medians = {name: {key: median(one[key] for one in ones) for key in ones[0]} for name, ones in counted.items()}
    return {"name": "imports", **medians, "ratio": medians["pdenv"]["cpu_s"] / medians["base"]["cpu_s"]}


# ---- everything -----------------------------------------------------------------------------------------


def jobs(quick: bool, full: bool) -> dict[str, tuple[str, Callable[[], Raw]]]:
    """Part of the result and measurement, for each row."""
    requests, repeats = (5_000, 1) if quick else (100_000, REPEATS)
    rows: dict[str, tuple[str, Callable[[], Raw]]] = {
        load.name: ("throughput", partial(throughput, load, requests, repeats)) for load in loads()
    }
    sizes = [(requests, repeats), (10 * requests, min(repeats, 3)), *([(10_000_000, 1)] if full else [])]
    rows |= {f"linear-{n}": ("linearity", partial(linearity, n, times)) for n, times in sizes}
    rows |= env_rows.jobs(uniform, quick, repeats)
    rows["memory"] = ("memory", partial(memory, 10 * requests))
    rows["compilation"] = ("compilation", partial(compilation, repeats))
    rows["imports"] = ("imports", partial(imports, repeats))
    return rows


def measure(quick: bool = False, full: bool = False, only: str | None = None) -> Raw:
    """All rows, or those whose name contains `only`."""
    chosen = {name: job for name, job in jobs(quick, full).items() if only is None or only in name}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    result: Raw = {"quick": quick, "date": datetime.now(timezone.utc).date().isoformat()}
    result |= {"machine": machine(), "versions": versions(), "throughput": [], "linearity": [], "envs": []}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("compiling, or loading the compiled engine", total=len(chosen))
        once(small := uniform(5, "blocking", None, 200), arrivals_of(small), "least-requests")
        for name, (part, job) in chosen.items():
            progress.update(task, description=name)
            row = job()
            if part in ("throughput", "linearity", "envs"):
                result[part].append(row)
            else:
                result[part] = row
            progress.advance(task)
    return result


def machine() -> Raw:
    """The processor and its cores."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def versions() -> Raw:
    """Of Python and of what the speed depends on."""
    packages = ("numpy", "numba", "llvmlite", "gymnasium")
    return {
        "pdenv": pdenv.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure pdenv's speed; writes docs/performance.md and .json.")
    parser.add_argument("--full", action="store_true", help="also 10 million requests (5 GB of memory)")
    parser.add_argument("--quick", action="store_true", help="few requests, one run each; rough")
    parser.add_argument("--only", metavar="ROW", help="only rows whose name contains ROW; writes nothing")
    options = parser.parse_args()
    names = list(jobs(options.quick, options.full))
    if options.only is not None and not any(options.only in name for name in names):
        parser.error(f"no row contains '{options.only}'; rows: {', '.join(names)}")
    raw = measure(options.quick, options.full, options.only)
    print(tables_of(raw))
    if options.only is None:
        write_text(RAW, metrics.to_json(raw))
        write_text(PAGE, document(raw))
        print(f"\nwrote {PAGE.relative_to(ROOT)} and {RAW.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
