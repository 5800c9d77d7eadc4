"""Compares a scripted case on the engine and on the reference simulator."""

from __future__ import annotations

import numpy as np
from driving import run_engine
from reference import ReferenceResult, simulate
from strategies import Case

from pdenv.sim.engine import Simulation
from pdenv.sim.records import GAP_BINS, GAP_FIRST_S, GAP_RATIO, INSTANCE_TOTALS, RECORD

RELATIVE = 1e-9


def close(a: np.ndarray, b: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Elementwise: equal to 1e-9 relative (absolute below `scale`), NaN equal to NaN."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= RELATIVE * np.maximum(scale, np.abs(a)))


def record_differences(reference: np.ndarray, engine: np.ndarray) -> list[str]:
    found = []
    for name in RECORD.names or ():
        same = close(reference[name], engine[name])
        for i in np.flatnonzero(~same)[:3]:
            found.append(f"request {i} {name}: reference {reference[name][i]!r}, engine {engine[name][i]!r}")
    return found


def total_differences(reference: ReferenceResult, sim: Simulation) -> list[str]:
    totals, expected = sim.totals(), reference.totals
    found = []
    for pool in ("prefill", "decode", "colocated"):
        for name in INSTANCE_TOTALS.names or ():
            scale = 1e12 if name == "memory_byte_s" else 1.0
            want, got = expected[pool][name], getattr(totals, pool)[name]
            if not close(want, got, scale).all():
                found.append(f"{pool} {name}: reference {want}, engine {got}")
    gaps = np.array(expected["gaps"])
    for name, want, got in (
        ("port_bytes", expected["port_bytes"], totals.port_bytes),
        ("decode_starved_s", expected["decode_starved_s"], totals.decode_starved_s),
        ("gap sum", gaps.sum(), totals.gap_sum_s),
        ("gap max", gaps.max(initial=0.0), totals.gap_max_s),
        ("gaps", gaps.size, totals.gap_counts.sum()),
        ("preemptions", expected["preemptions"], totals.preemptions),
    ):
        if not close(want, got).all():
            found.append(f"{name}: reference {want}, engine {got}")
    return found + gap_differences(gaps, totals.gap_counts)


def gap_differences(gaps: np.ndarray, counts: np.ndarray) -> list[str]:
    """Histogram against the list; a gap within rounding of a bin's edge may lie on either side."""
    place = np.log(np.maximum(gaps, 1e-12) / GAP_FIRST_S) / np.log(GAP_RATIO)
    lows = np.bincount(np.clip(np.floor(place - 1e-6).astype(int), 0, GAP_BINS - 1), minlength=GAP_BINS)
    highs = np.bincount(np.clip(np.floor(place + 1e-6).astype(int), 0, GAP_BINS - 1), minlength=GAP_BINS)
    got = np.cumsum(counts)
    wrong = (got > np.cumsum(lows)) | (got < np.cumsum(highs))
    return [f"gap bin {k}: {counts[k]}" for k in np.flatnonzero(wrong)[:3]]


def compare(case: Case) -> tuple[list[str], ReferenceResult]:
    """What differs between the engine and the reference on this case."""
    reference = simulate(case.cluster, case.arrivals, case.blocks, case.script)
    sim = run_engine(case)
    sim.close()
    found = record_differences(reference.records, sim.records)
    if reference.happened["stuck"]:  # both gave up on what nothing can serve, not at the same tick
        return found, reference
    if not found and abs(sim.now - reference.time_s) < 1e-9:
        found += total_differences(reference, sim)
    elif not found:
        found.append(f"ends at {sim.now}, reference at {reference.time_s}")
    return found, reference
