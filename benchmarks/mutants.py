"""Breaks the engine one line at a time, and looks whether a test notices. Run as `make mutants`.

Every mutant gets a copy of the checkout of its own; the checkout itself is never touched. The engine runs uncompiled
(`NUMBA_DISABLE_JIT=1`), so that nothing has to be compiled anew. A mutant is killed by the first check that fails:
tests with values worked out by hand, then drawn cases that must agree with the reference simulator, then the
conservation laws. Exit code 1 if one survives, 2 if the unbroken engine fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SEEDS = range(60)
TIMEOUT_S = 150  # a mutant may run for ever: that is noticed too


class Mutant(NamedTuple):
    file: str  # below pdenv/sim
    old: str  # occurs exactly once
    new: str
    what: str


MUTANTS = (
    Mutant("state.py", "TIE_S = 1e-9", "TIE_S = 0.0", "no 1 ns rule for ties"),
    Mutant("steps.py", "t + law.prefill_c * squares", "t", "prefill without its quadratic term"),
    Mutant("steps.py", "g += law.decode_c[q] * it.count[q]", "g += law.decode_c[q]", "context grows too slowly"),
    Mutant(
        "prefilling.py",
        "squares += (before + x) * (before + x) - before * before",
        "squares += float(x) * x",
        "a chunk does not attend to earlier chunks",
    ),
    Mutant(
        "prefilling.py",
        "request(S, other).prompt <= it.prompt",
        "request(S, other).prompt < it.prompt",
        "shortest first is not stable",
    ),
    Mutant("prefix.py", "node = c.oldest", "node = c.newest", "the prefix cache evicts the most recent block"),
    Mutant("prefix.py", "request(S, r).prompt - 1)", "request(S, r).prompt)", "a prefix hit may leave nothing to do"),
    Mutant("transfer.py", ") / header(S).layers", ")", "layer-wise KV appears only when the step ends"),
    Mutant("transfer.py", "it.unsent = it.bytes - it.sent", "it.unsent = it.bytes", "sent bytes pay costs again"),
    Mutant("transfer.py", "    source.staging_used -= held\n", "", "staging memory is never freed"),
    Mutant(
        "maxmin.py", "s = max(it.left, 0.0) / it.unfixed", "s = it.capacity / it.flows", "shares left over are lost"
    ),
    Mutant(
        "transfer.py",
        "set_bound(S, r, min(cap, path_of(S, r).smallest))",
        "set_bound(S, r, path_of(S, r).smallest)",
        "a flow runs ahead of the KV that there is",
    ),
    Mutant("batch.py", "it.slope_s * (j * (j - 1) / 2))", "it.slope_s * (j * j / 2))", "iterations grow too early"),
    Mutant("batch.py", "it.priority < least.priority", "it.priority > least.priority", "preempts the highest priority"),
    Mutant(
        "batch.py",
        "        it.event_at = fits\n",
        "        it.event_at = it.event_at\n",
        "a grant does not shorten the leap: memory overflows",
    ),
    Mutant("decode.py", "max(it.emitted - 1, 0)", "it.emitted", "a token too many is recomputed"),
    Mutant("decode.py", "x.join_order < y.join_order", "x.join_order > y.join_order", "newest preempted comes first"),
    Mutant("receive.py", "elif not h.receive_bypass:", "elif h.receive_bypass:", "bypass where it is not allowed"),
    Mutant("colocated.py", "* min(decode, chunk)", "* max(decode, chunk)", "piggyback hides the longer part"),
    Mutant(
        "scaling.py",
        "prefill(S, p).staging_used < prefill(S, best).staging_used",
        "prefill(S, p).staging_used > prefill(S, best).staging_used",
        "drains the fullest prefill instance",
    ),
    Mutant("gateway.py", "    h.hold_until = h.now + h.hold_max_s", "    h.hold_until = np.inf", "a hold never ends"),
    Mutant(
        "gaps.py",
        "    bulk = it.active - queue(S, lists.fresh_list(S, b)).count",
        "    bulk = it.active",
        "the first gap after a join is counted twice",
    ),
    Mutant(
        "accrual.py",
        "it.value -= delta * phi(S, t)",
        "it.value -= delta * phi(S, header(S).now)",
        "cost accrues from when a change is noticed, not from when it happens",
    ),
    Mutant(
        "accrual.py",
        "return it.output if header(S).decode_first and it.mode == 1 else it.output - 1",
        "return it.output - 1",
        "a first token emitted by decode is not counted in m",
    ),
    Mutant(
        "accrual.py",
        "charge(S, T_QUALITY, price - it.quality, header(S).now)",
        "charge(S, T_QUALITY, price, header(S).now)",
        "a request that is dispatched again pays for quality again",
    ),
)

#: pytest in a copy; 64-bit hashes wrap round, of which uncompiled numpy scalars warn.
PYTEST = ("-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore:overflow:RuntimeWarning")

#: Checks in the order in which they run, as arguments of Python; the second one is this script itself.
CHECKS = (
    (*PYTEST, "tests/test_toy.py", "tests/test_physics.py"),
    ("benchmarks/mutants.py", "--compare"),
    (*PYTEST, "tests/test_conservation.py"),
    (*PYTEST, "tests/test_accrual.py"),
)


class Verdict(NamedTuple):
    killer: str | None  # None: it survived
    seconds: float


def copy_checkout(folder: Path) -> Path:
    for name in ("pdenv", "baselines", "tests", "benchmarks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if (ROOT / "pyproject.toml").is_file():
        shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def break_line(checkout: Path, mutant: Mutant) -> None:
    path = checkout / "pdenv" / "sim" / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def run_check(checkout: Path, arguments: tuple[str, ...]) -> str | None:
    """What failed first, or None."""
    environment = {
        **os.environ,
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "tests")]),
    }
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{arguments[-1]} never ends"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return failed.group(1) if failed else lines[-1]


def judge(mutant: Mutant | None) -> Verdict:
    """Run the checks on a broken copy (or, without a mutant, on an unbroken one)."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pdenv-mutant-") as folder:
        checkout = copy_checkout(Path(folder))
        if mutant is not None:
            break_line(checkout, mutant)
        killer = next(filter(None, (run_check(checkout, check) for check in CHECKS)), None)
    return Verdict(killer, time.perf_counter() - begun)


# ---- the comparison with the reference simulator, run inside a copy -------------------------------------------------


def first_difference(seed: int) -> str | None:
    """The first field in which engine and reference differ on a drawn case."""
    import numpy as np
    from driving import run_engine
    from reference import simulate
    from strategies import draw_case

    from pdenv.sim.records import WAITING

    case = draw_case(seed)
    expected = simulate(case.cluster, case.arrivals, case.blocks, case.script).records
    sim = run_engine(case)
    if np.any(sim.records["status"] == WAITING):
        sim.close()
    for name in expected.dtype.names:
        a, b = expected[name], sim.records[name]
        if a.dtype.kind == "f":
            same = np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
        else:
            same = np.array_equal(a, b)
        if not same:
            return f"reference case {seed}: {name}"
    return None


def compare() -> int:
    for seed in SEEDS:
        try:
            difference = first_difference(seed)
        except Exception as error:  # a broken engine may raise anything
            difference = f"reference case {seed}: {type(error).__name__}"
        if difference:
            print(difference)
            return 1
    return 0


def main() -> int:
    if sys.argv[1:] == ["--compare"]:
        return compare()
    for mutant in MUTANTS:  # an outdated table is noticed before anything runs
        text = (ROOT / "pdenv" / "sim" / mutant.file).read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            print(f"{mutant.file}: {mutant.old.strip()!r} does not occur exactly once; bring MUTANTS up to date")
            return 2
    whole = judge(None)
    if whole.killer:
        print(f"the unbroken engine fails {whole.killer}")
        return 2
    print(f"the unbroken engine passes every check ({whole.seconds:.0f} s)", flush=True)
    survivors = 0
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as workers:
        for mutant, verdict in zip(MUTANTS, workers.map(judge, MUTANTS), strict=True):
            survivors += verdict.killer is None
            word = "killed" if verdict.killer else "SURVIVED"
            print(f"{word:9}{mutant.file:15}{mutant.what:52}{verdict.killer or ''}", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
