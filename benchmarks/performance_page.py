"""Makes `docs/performance.md` from what `bench.py` measured; nothing here measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

REPEATS = 5
ROW_BUDGET_S = 30.0  # no further repeat of a row that has taken so long
SPREAD = 4 / 3  # time a request may grow by this and still count as linear: identical runs differ as much

MODEL, GPU, TENSOR_PARALLEL = "llama-3.1-70b", "h100", 8
PROMPT_TOKENS, OUTPUT_TOKENS = 1020, 211

MEMORY_TARGET_BYTES = 100
COMPILE_TARGET_S, LOAD_TARGET_S = 45.0, 2.0
IMPORT_TARGET = 2.0
BASE_IMPORTS = "numpy, gymnasium, numba"

Raw = dict[str, Any]


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


def steps_table(rows: list[Raw]) -> str:
    """Environment steps per CPU-second."""
    return table(
        ("environments", "target /CPU-s", "measured /CPU-s", "", "lowest and highest run"),
        [
            (
                row["title"],
                "–" if row["target"] is None else f"{row['target']:,.0f}",
                f"{row['steps_per_cpu_s']:,.0f}",
                "" if row["target"] is None else verdict(row["steps_per_cpu_s"] >= row["target"]),
                f"{min(row['runs']):,.0f} … {max(row['runs']):,.0f}",
            )
            for row in rows
        ],
    )


def steps_note(rows: list[Raw]) -> str:
    """What bounds the missed targets."""
    lines = [
        f"{row['title']}: {100 * row['parts']['engine']:.0f} % of a step is the engine, "
        f"{100 * row['parts']['observing']:.0f} % observation, mask and accounts, "
        f"{100 * row['parts']['rest']:.0f} % the rest."
        for row in rows
        if row["parts"]
    ]
    return "\nWhat bounds the missed targets: " + " ".join(lines) + "\n" if lines else ""


def resets_table(row: Raw) -> str:
    """Milliseconds of a reset."""
    return table(
        ("reset", "target below", "CPU", ""),
        [
            (
                what,
                f"{1e3 * row['targets'][key]:.0f} ms",
                f"{1e3 * row[f'{key}_s']:.2f} ms",
                verdict(row[f"{key}_s"] < row["targets"][key]),
            )
            for what, key in (("to a window that is kept", "cached"), ("to another one", "fresh"))
        ],
    )


def training_line(row: Raw) -> str:
    """Training steps per second."""
    return (
        f"MaskablePPO of sb3-contrib on 64 environments of `operating-point` (64 × 64 steps an update, 4 epochs, one "
        f"thread of torch): {row['steps_per_cpu_s']:,.0f} steps per CPU-second, updates included."
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
## Environment steps per CPU-second

`pdenv/Routing-v0`, one step is one action, observations, masks and infos included, resets too; the actions are those
of `least-work` and not timed. A sequential decision is four steps. P + P are equal instances as above, layer-wise.

{steps_table(raw["envs"])}
{steps_note(raw["envs"])}
{resets_table(raw["env_resets"])}

{training_line(raw["env_training"])}

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
    parts += [steps_table(raw["envs"]), steps_note(raw["envs"])] if raw["envs"] else []
    parts += [resets_table(raw["env_resets"])] if "env_resets" in raw else []
    parts += [training_line(raw["env_training"])] if "env_training" in raw else []
    parts += [memory_table(raw["memory"])] if "memory" in raw else []
    if "compilation" in raw and "imports" in raw:
        parts.append(start_table(raw["compilation"], raw["imports"]))
    else:
        parts += [json.dumps(raw[key], indent=2) for key in ("compilation", "imports") if key in raw]
    return "\n\n".join(part for part in parts if part)
