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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

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

REPEATS = 5
ROW_BUDGET_S = 30.0  # no further repeat of a row that has taken so long
SPREAD = 4 / 3  # time a request may grow by this and still count as linear: identical runs differ as much

MODEL, GPU, TENSOR_PARALLEL = "llama-3.1-70b", "h100", 8
PROMPT_TOKENS, OUTPUT_TOKENS = 1020, 211
EFFICIENCY = 0.8  # of every link of the uniform clusters

MEMORY_TARGET_BYTES = 100
COMPILE_TARGET_S, LOAD_TARGET_S = 45.0, 2.0
IMPORT_TARGET = 2.0
BASE_IMPORTS = "numpy, gymnasium, numba"

Raw = dict[str, Any]


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
left = [name for name, function in functions.items() if not function.signatures]
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
    rows["memory"] = ("memory", partial(memory, 10 * requests))
    rows["compilation"] = ("compilation", partial(compilation, repeats))
    rows["imports"] = ("imports", partial(imports, repeats))
    return rows


def measure(quick: bool = False, full: bool = False, only: str | None = None) -> Raw:
    """All rows, or those whose name contains `only`."""
    chosen = {name: job for name, job in jobs(quick, full).items() if only is None or only in name}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    result: Raw = {"quick": quick, "date": datetime.now(timezone.utc).date().isoformat()}
    result |= {"machine": machine(), "versions": versions(), "throughput": [], "linearity": []}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("compiling, or loading the compiled engine", total=len(chosen))
        once(small := uniform(5, "blocking", None, 200), arrivals_of(small), "least-requests")
        for name, (part, job) in chosen.items():
            progress.update(task, description=name)
            row = job()
            if part in ("throughput", "linearity"):
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


# ---- the page -------------------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = ("---", *["---:"] * (len(head) - 1))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def throughput_table(rows: list[Raw]) -> str:
    """Target beside measured."""
    head = ("load", "requests", "target /CPU-s", "measured /CPU-s", "", "run s", "summary s", "set-up s",
            "prefill busy", "spine busy")  # fmt: skip
    return table(
        head,
        [
            (
                row["title"],
                f"{row['requests']:,}",
                f"{row['target']:,.0f}",
                f"{row['requests_per_cpu_s']:,.0f}",
                verdict(row["requests_per_cpu_s"] >= row["target"]),
                *(f"{row[key]:.3f}" for key in ("run_s", "summary_s", "setup_s")),
                share(row["prefill_utilisation"]),
                share(row["spine_utilisation"]),
            )
            for row in rows
        ],
    )


def peer_lines(rows: list[Raw]) -> str:
    """What the fastest peer known does on the same loads."""
    lines = []
    for row in rows:
        if row["peer"]:
            ratio = row["requests_per_cpu_s"] / max(row["peer"])
            peer = "–".join(f"{value:,.0f}" for value in row["peer"])
            lines.append(f"- {row['title']}: fastest peer known {peer} requests/s, pdenv {ratio:,.0f}× its best.")
    return "\n".join(lines)


def bounds_table(rows: list[Raw]) -> str:
    """Where the time of a missed target goes, from runs that leave one part out."""
    missed = [row for row in rows if row["without"]]
    if not missed:
        return ""
    cells = []
    for row in missed:
        left_out = [1.0 - row["without"][key] / row["cpu_s"] for key in ("contention_none", "round_robin")]
        shares = (row["summary_s"] / row["cpu_s"], *left_out)
        cells.append((row["title"], *(f"{100 * max(value, 0.0):.0f} %" for value in shares)))
    text = "\nWhat bounds the missed targets, as shares of CPU time: the summary; what goes away without link "
    text += "contention (flows re-solved when others start or end); what goes away with round-robin routing. The "
    text += "rest is the events of the requests themselves.\n\n"
    return text + table(("load", "summary", "link contention", "routing rule"), cells) + "\n"


def linearity_table(rows: list[Raw]) -> str:
    """Time a request by number of requests."""
    base = rows[0]["us_per_request"]
    return table(
        (
            "requests",
            "repeats",
            "run µs a request",
            "summary µs a request",
            "both",
            "against the first",
            f"target at most {SPREAD:.2f}",
        ),
        [
            (
                f"{row['requests']:,}",
                str(len(row["runs"])),
                *(f"{1e6 * row[key] / row['requests']:.3f}" for key in ("run_s", "summary_s")),
                f"{row['us_per_request']:.3f}",
                f"{row['us_per_request'] / base:.2f}",
                verdict(row["us_per_request"] <= SPREAD * base),
            )
            for row in rows
        ],
    )


def memory_table(row: Raw) -> str:
    """Bytes a request beyond its own record."""
    return table(
        ("peak, bytes a request", "target below", "measured", ""),
        [
            (what, f"{row['target']:,}", f"{row[key]:.1f}", verdict(row[key] < row["target"]))
            for what, key in (("while it runs", "run_bytes"), ("while it is summarised", "summary_bytes"))
        ],
    )


def memory_note(row: Raw) -> str:
    """What bounds a missed target."""
    if row["summary_bytes"] < row["target"]:
        return ""
    columns = (row["summary_bytes"] - row["run_bytes"]) / 8
    text = "The summary bounds the missed target" if row["run_bytes"] < row["target"] else "The summary adds to it"
    return f"\n{text}: beside the run it holds {columns:.0f} columns of 8 bytes a request at its peak.\n"


def start_table(compiling: Raw, importing: Raw) -> str:
    """Compilation, loading and importing."""
    cold, cached, ratio = compiling["cold"], compiling["cached"], importing["ratio"]
    timed = [("compile everything, empty cache", COMPILE_TARGET_S, cold)]
    timed += [("load everything from the cache", LOAD_TARGET_S, cached)]
    rows = [
        (what, f"{target:.0f} s", f"{one['cpu_s']:.2f} s", f"{one['wall_s']:.2f} s", verdict(one["cpu_s"] <= target))
        for what, target, one in timed
    ]
    rows += [
        ("`import pdenv`", f"{IMPORT_TARGET:.0f}×", f"{ratio:.2f}×", "", verdict(ratio <= IMPORT_TARGET)),
        *(
            (f"{what}", "", f"{importing[key]['cpu_s']:.3f} s", f"{importing[key]['wall_s']:.3f} s", "")
            for what, key in (
                ("– time of `import pdenv`", "pdenv"),
                (f"– time of `import {BASE_IMPORTS}`", "base"),
                ("– time of `import pdenv.run, pdenv.sim.engine`, all that a run needs", "run"),
            )
        ),
    ]
    return table(("start", "target at most", "CPU", "wall", ""), rows)


def start_note(compiling: Raw) -> str:
    cold = compiling["cold"]
    part = 100 * cold["advance_cpu_s"] / cold["cpu_s"]
    text = f"{len(cold['functions'])} functions are compiled; the event loop takes {part:.0f} % of that time."
    if cold["left_out"]:
        text += f" Not among them: {', '.join(cold['left_out'])}."
    if cold["cpu_s"] > COMPILE_TARGET_S:
        text += " It bounds the missed target: every rule and every feature is optimised beneath it."
    return text


def document(raw: Raw) -> str:
    """`docs/performance.md`."""
    cpu, used, memory_row = raw["machine"], raw["versions"], raw["memory"]
    fewer = " **This is a quick run: few requests, once each; its numbers are rough.**" if raw["quick"] else ""
    return f"""# Performance

Written by `make bench` (`benchmarks/bench.py`) on {raw["date"]}; raw numbers are in `performance.json`.{fewer}

Machine: {cpu["cpu"]}, {cpu["cores"]} cores, {cpu["system"]}.
Versions: {", ".join(f"{name} {number}" for name, number in used.items())}.

## Requests per CPU-second

Process CPU time of one thread after compilation, from the first event until every request has ended, and the
summary with all its percentiles: the median of {REPEATS} runs, fewer where a row takes longer than
{ROW_BUDGET_S:.0f} s. Set-up (cluster, state block, empty records) is given beside it and not counted; nor is making
the arrivals.

P + D prefill and decode instances of {TENSOR_PARALLEL} {GPU.upper()} serve {MODEL}: prompts of {PROMPT_TOKENS:,}
tokens, outputs of {OUTPUT_TOKENS}, Poisson arrivals, policy `least-requests`, KV in BF16, max-min fair link
contention on. *Blocking* sends KV after prefill, *layer-wise* while it computes. With a spine, every transfer
crosses it. `operating-point` is the preset with its own lengths, tiers, racks and rate.

{throughput_table(raw["throughput"])}

{peer_lines(raw["throughput"])}
{bounds_table(raw["throughput"])}
## Linear in requests

5 + 5, blocking, as above. The target allows for the spread of identical runs.

{linearity_table(raw["linearity"])}

## Memory

5 + 5, blocking, {memory_row["requests"]:,} requests: the peak of all that Python and NumPy allocate, the fixed state
of the cluster included, without the {memory_row["record_bytes"]} bytes of a request's own record.
{memory_row["arrival_bytes"]} bytes of it are the arrival that the caller hands in.

{memory_table(memory_row)}
{memory_note(memory_row)}
## Start

Each in a new interpreter. Compilation is measured once into an empty folder, loading and importing as medians of
{REPEATS}. The target for `import pdenv` is relative to importing {BASE_IMPORTS}.

{start_table(raw["compilation"], raw["imports"])}

{start_note(raw["compilation"])}
"""


def tables_of(raw: Raw) -> str:
    """The tables of the rows that were measured."""
    parts = [throughput_table(raw["throughput"]), bounds_table(raw["throughput"])] if raw["throughput"] else []
    parts += [linearity_table(raw["linearity"])] if raw["linearity"] else []
    parts += [memory_table(raw["memory"])] if "memory" in raw else []
    if "compilation" in raw and "imports" in raw:
        parts.append(start_table(raw["compilation"], raw["imports"]))
    else:
        parts += [json.dumps(raw[key], indent=2) for key in ("compilation", "imports") if key in raw]
    return "\n\n".join(part for part in parts if part)


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
