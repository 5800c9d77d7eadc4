"""Fit the latency profiles of `pdenv/catalog/profiles` and the link constants to measured tables.

    python benchmarks/fit_profiles.py FOLDER

FOLDER holds `measured/prefill.csv`, `decode.csv` and
`mixed_step.csv` (compositions of measured kernels, NVIDIA AIConfigurator, Apache-2.0) and
`facts/kv_transfer_measured.csv`. Profiles are written; link constants are printed, for `links.yaml`.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pdenv.latency_fit import FitError, fit_decode, fit_piggyback, fit_prefill, relative_error
from pdenv.topology import StepLaw

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "pdenv" / "catalog" / "profiles"
GPUS = {"a100_sxm": "a100", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s"}
#: Measured quantisations and the weight (and KV) precision that they stand for, the preferred one first.
#: FP8 attention stands in where a backend has no FP8 rows with 16-bit attention.
QUANTS = {"bf16": "bf16", "fp8": "fp8", "fp8_fp8attn": "fp8"}
#: Below it a step costs what reading the weights costs, which no line in N shows; the table form does.
SHORTEST_AFFINE_PROMPT = 256

Row = dict[str, str]
Key = tuple[str, str, str, str, str]  # system, backend, model, quant, tp


def read(path: Path) -> dict[Key, list[Row]]:
    """Rows of a measured table, grouped by configuration."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            groups[row["system"], row["backend"], row["model"], row["quant"], row["tp"]].append(row)
    return groups


def column(rows: list[Row], name: str) -> np.ndarray:
    """(n,) numbers of one column."""
    return np.array([float(row[name]) for row in rows])


def fit_prefill_rows(rows: list[Row], one_token_s: float) -> dict[str, Any]:
    """Affine and table form from the uncached rows, and the affine form's error on rows with a cached prefix.

    The table starts at one token, which costs what a decode iteration of one sequence does (`one_token_s`):
    extended from 128 tokens down, some tables would cross zero.
    """
    fresh = [row for row in rows if row["prefix_tokens"] == "0"]
    batch, tokens = column(fresh, "batch"), column(fresh, "input_tokens")
    seconds = column(fresh, "latency_ms") / 1e3
    linear = tokens >= SHORTEST_AFFINE_PROMPT
    affine, affine_error = fit_prefill(batch[linear], tokens[linear], seconds[linear])
    table, table_error = fit_prefill(batch, tokens, seconds, np.unique(batch * tokens).tolist())
    table = StepLaw(
        c_s=table.c_s,
        table_x=(1.0, *table.table_x),
        table_s=(min(one_token_s, table.table_s[0]), *table.table_s),
    )
    return {
        "affine": form(affine, affine_error),
        "table": form(table, table_error),
        "cached_prefix": rounded(asdict(prefix_error(affine, rows))),
    }


def prefix_error(law: StepLaw, rows: list[Row]) -> FitError:
    """Error of `a + b·N + c·(n² − cached²)` on rows that the fit has not seen."""
    cached = [row for row in rows if row["prefix_tokens"] != "0"]
    batch, total, done = (column(cached, name) for name in ("batch", "input_tokens", "prefix_tokens"))
    predicted = law.a_s + law.b_s * batch * (total - done) + law.c_s[0] * batch * (total**2 - done**2)
    return relative_error(predicted / (column(cached, "latency_ms") / 1e3))


def fit_decode_rows(rows: list[Row]) -> dict[str, Any]:
    batch, context = column(rows, "batch"), column(rows, "context_tokens")
    seconds = column(rows, "step_latency_ms") / 1e3
    return {
        "affine": form(*fit_decode(batch, context, seconds)),
        "table": form(*fit_decode(batch, context, seconds, np.unique(batch).tolist())),
    }


def one_sequence_s(rows: list[Row]) -> float:
    """Seconds of the decode iteration of one sequence with the least context."""
    shortest = min(rows, key=lambda row: (int(row["batch"]), int(row["context_tokens"])))
    return float(shortest["step_latency_ms"]) / 1e3


def fit_mixed_rows(mixed: list[Row], prefill: list[Row]) -> dict[str, Any]:
    """κ against the measured decode step (chunk 0) and the measured prefill of one prompt of that size."""
    alone = {(r["decode_batch"], r["decode_ctx"]): r["step_ms"] for r in mixed if r["prefill_chunk_tokens"] == "0"}
    chunk_ms = {r["input_tokens"]: r["latency_ms"] for r in prefill if r["batch"] == "1" and r["prefix_tokens"] == "0"}
    steps = [row for row in mixed if row["prefill_chunk_tokens"] != "0"]
    kappa, error = fit_piggyback(
        [float(alone[row["decode_batch"], row["decode_ctx"]]) for row in steps],
        [float(chunk_ms[row["prefill_chunk_tokens"]]) for row in steps],
        column(steps, "step_ms"),
    )
    return rounded({"kappa": kappa, **asdict(error)})


def form(law: StepLaw, error: FitError) -> dict[str, Any]:
    shape = {"x": law.table_x, "s": law.table_s} if law.table_x else {"a_s": law.a_s, "b_s": law.b_s}
    return rounded({**shape, "c_s": law.c_s[0], **asdict(error)})


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """The same with six significant digits and plain lists."""
    return {key: _six_digits(value) for key, value in values.items()}


def _six_digits(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_six_digits(item) for item in value]
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def fit_profiles(measured: Path) -> dict[str, list[dict[str, Any]]]:
    """Profile rows of every GPU."""
    prefill, decode = read(measured / "prefill.csv"), read(measured / "decode.csv")
    mixed = read(measured / "mixed_step.csv")
    profiles: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key in sorted(prefill):
        system, backend, model, quant, tp = key
        if quant == "fp8_fp8attn" and (system, backend, model, "fp8", tp) in prefill:
            continue
        version = prefill[key][0]["version"]
        row = {
            "model": model,
            "tensor_parallel": int(tp),
            "weights": QUANTS[quant],
            "kv": QUANTS[quant],
            "backend": backend,
            "source": f"AIConfigurator 0.12.0 kernel tables, {backend} {version}, {system}, {quant}",
            "prefill": fit_prefill_rows(prefill[key], one_sequence_s(decode[key])),
            "decode": fit_decode_rows(decode[key]),
        }
        if key in mixed:
            row["piggyback"] = fit_mixed_rows(mixed[key], prefill[key])
        profiles[GPUS[system]].append(row)
    return profiles


def fit_posting(facts: Path) -> tuple[float, FitError]:
    """op_s from the block-size sweep of Mooncake over EFA: time of a block = block/line + op_s."""
    sweep = next(r for r in transfers(facts) if "block size sweep" in r["source"])
    points = sweep["source"].split("sweep ")[1].replace("GB/s", "").split()
    sizes, rates = zip(*(point.split("->") for point in points), strict=True)
    blocks = np.array([float(size[:-1]) * (2**20 if size.endswith("M") else 2**10) for size in sizes])
    seconds = blocks / (np.array(rates, dtype=float) * 1e9)
    at_line = blocks / (float(sweep["line_rate_GBps"]) * 1e9)
    op_s = float(np.sum((seconds - at_line) / seconds**2) / np.sum(1 / seconds**2))
    return op_s, relative_error((at_line + op_s) / seconds)


def fit_transfers(facts: Path, stacks: list[str], op_s: float, block_bytes: int) -> tuple[float, float, FitError]:
    """Latency and efficiency of whole transfers: latency + bytes/(line·efficiency) + bytes/block·op_s."""
    rows = [r for r in transfers(facts) if r["time_ms"] and any(r["stack"].startswith(s) for s in stacks)]
    size = np.array([payload_bytes(row["payload"]) for row in rows])
    seconds, line = column(rows, "time_ms") / 1e3, column(rows, "line_rate_GBps") * 1e9
    matrix = np.stack([np.ones_like(size), size / line], axis=1) / seconds[:, None]
    posting = size / block_bytes * op_s / seconds
    latency_s, inverse = np.linalg.lstsq(matrix, 1 - posting, rcond=None)[0]
    return float(latency_s), float(1 / inverse), relative_error(matrix @ [latency_s, inverse] + posting)


def transfers(facts: Path) -> list[Row]:
    with (facts / "kv_transfer_measured.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def payload_bytes(text: str) -> float:
    number, unit = text.split()[:2]
    return float(number) * {"MB": 1e6, "GB": 1e9}[unit]


def write(path: Path, text: str) -> None:
    """Write atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


HEADER = "# Written by benchmarks/fit_profiles.py. Seconds; relative errors, in-sample except cached_prefix.\n"


def main(folder: Path) -> None:
    PROFILES.mkdir(exist_ok=True)
    for gpu, rows in fit_profiles(folder / "measured").items():
        body = yaml.safe_dump({"profiles": rows}, sort_keys=False, default_flow_style=None, width=110)
        write(PROFILES / f"{gpu}.yaml", HEADER + body)
        worst = {
            f"{p} {f}": max(r[p][f]["mape"] for r in rows) for p in ("prefill", "decode") for f in ("affine", "table")
        }
        print(gpu, len(rows), "profiles; worst mean error:", {k: round(v, 3) for k, v in worst.items()})
    facts = folder / "facts"
    op_s, error = fit_posting(facts)
    print(f"op_s {op_s:.3g} (max error {error.max:.2f})")
    for stacks in (["vLLM Mooncake"], ["SGLang Mooncake"], ["vLLM Mooncake", "SGLang Mooncake"]):
        latency_s, efficiency, error = fit_transfers(facts, stacks, op_s, 1 << 20)
        print(stacks, f"latency_s {latency_s:.3g} efficiency {efficiency:.3f} (max error {error.max:.2f})")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/fit_profiles.py FOLDER")
    main(Path(sys.argv[1]))
