"""Fit the quantile tables and arrival statistics of `pdenv/workload/fitted/` from public trace files.

    python benchmarks/fit_workloads.py DIRECTORY

DIRECTORY holds azure_2023_code.csv, azure_2023_conv.csv (Azure/AzurePublicDataset) and
mooncake_conversation.jsonl (kvcache-ai/Mooncake). The traces themselves are not part of the project.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import yaml

from pdenv.atomic import write_text
from pdenv.workload.config import FITTED
from pdenv.workload.traces import Trace, read_trace

AZURE = "Azure LLM inference trace 2023 (Azure/AzurePublicDataset, CC-BY-4.0; Splitwise, ISCA 2024)"
MOONCAKE = "Mooncake conversation trace (kvcache-ai/Mooncake, FAST25 release, Apache-2.0)"
SOURCES = {
    "azure-code": ("azure_2023_code.csv", AZURE),
    "azure-conv": ("azure_2023_conv.csv", AZURE),
    "mooncake-conversation": ("mooncake_conversation.jsonl", MOONCAKE),
}
EXTREMES = (0.0005, 0.001, 0.002, 0.005, 0.995, 0.998, 0.999, 0.9995)
PROBABILITIES = np.unique(np.round([*np.linspace(0.0, 1.0, 101), *EXTREMES], 4))


def ranks(values: np.ndarray) -> np.ndarray:
    """`(n,)` ranks from 0, ties sharing their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    return (first + (counts - 1) / 2)[group]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def fit(trace: Trace, source: str) -> dict[str, object]:
    """The content of a fitted file; tokens, s and requests/s as the keys say."""
    gaps = np.diff(trace.arrival_s)
    return {
        "source": source,
        "requests": len(trace.arrival_s),
        "span_s": round(trace.span_s, 3),
        "rate_per_s": round(len(gaps) / trace.span_s, 4),
        "gap_cv": round(float(gaps.std() / gaps.mean()), 3),
        "spearman": round(spearman(trace.prompt_tokens, trace.output_tokens), 4),
        "probabilities": [float(p) for p in PROBABILITIES],
        "prompt_tokens": np.round(np.quantile(trace.prompt_tokens, PROBABILITIES), 1).tolist(),
        "output_tokens": np.round(np.quantile(trace.output_tokens, PROBABILITIES), 1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="folder of the trace files")
    directory = parser.parse_args().directory
    for name, (file, source) in SOURCES.items():
        fitted = fit(read_trace(directory / file), source)
        text = yaml.safe_dump(fitted, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
        write_text(FITTED / f"{name}.yaml", f"# Written by benchmarks/fit_workloads.py\n{text}")
        print(f"{name}: {fitted['requests']} requests, rank correlation {fitted['spearman']}")


if __name__ == "__main__":
    main()
