"""Runs the jobs of a comparison: here, in processes, or on a Ray cluster; and keeps what has finished.

Each finished run becomes a file at once, named by a digest of everything that its numbers depend on. A comparison that
is started again reads those files and runs only what is missing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pdenv
from pdenv import atomic
from pdenv.bench.plugins import Contender, Given
from pdenv.bench.results import CDF_SHARES, Failure, Run, run_from
from pdenv.bench.suite import digest_of
from pdenv.errors import InputError
from pdenv.run import PolicyError, Result
from pdenv.scenario import Scenario
from pdenv.sim.compiled import source_key

BACKENDS = ("local", "ray")

#: Of the names that a run's numbers do not depend on.
_NO_NUMBERS = ("bench", "render", "cli.py", "__main__.py")


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    contender: Contender
    given: Given

    @property
    def label(self) -> str:
        """Scenario and policy, for people."""
        return f"{self.given.scenario.name} · {self.contender.name}"


# ---- one run -----------------------------------------------------------------------------------------


def _cdf(values: np.ndarray) -> list[float]:
    sample = values[~np.isnan(values)]
    return [float(f"{value:.5g}") for value in np.quantile(sample, CDF_SHARES)] if sample.size else []


def run_job(job: Job) -> Run:
    """Run a job; a policy that fails gives a run without numbers.

    Raises:
        InputError: what was given cannot run.
    """
    name, window = job.contender.name, job.given.window
    began = time.process_time()
    try:
        result = job.contender.run(job.given)
    except PolicyError as error:
        message = re.sub(r"^policy '[^']*': ", "", str(error))
        failure = Failure(name, window, error.step, error.time_s, message)
        return Run(job.given.scenario.name, name, window, {}, [], [], None, failure, time.process_time() - began)
    return _kept(job, result, time.process_time() - began)


def _kept(job: Job, result: Result, seconds: float) -> Run:
    measured = slice(result.workload.measured_from, result.workload.measured_to)
    return Run(
        job.given.scenario.name,
        job.contender.name,
        job.given.window,
        {key: value for key, value in result.summary.items() if key != "definitions"},
        _cdf(result.times.ttft_s[measured]),
        _cdf(result.times.tpot_s[measured]),
        result.series,
        None,
        round(seconds, 3),
    )


# ---- what has finished -------------------------------------------------------------------------------


@functools.cache
def engine_digest() -> str:
    """Of the version, and of every source and data file of this package that numbers may depend on."""
    folder = Path(pdenv.__file__).parent
    digest = hashlib.sha256(f"{pdenv.__version__} {source_key(folder / 'sim')}".encode())
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in (".py", ".yaml") and not set(parts) & {*_NO_NUMBERS, "presets"}:
            digest.update("/".join(parts).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _trace_digest(path: str, changed_ns: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _traces(given: Given) -> list[str]:
    """Digests of the trace files that are read; a file that cannot be read fails when it is."""
    own = getattr(given.scenario.workload, "trace", None)
    paths = [str(path) for path in (given.trace, own) if path is not None]
    return [_trace_digest(path, os.stat(path).st_mtime_ns) if os.path.isfile(path) else "" for path in paths]


def key_of(job: Job, scenario_digest: str) -> str:
    """Digest of everything that the numbers of a job depend on."""
    given = job.given
    parts = {
        "scenario": scenario_digest,
        "policy": [job.contender.name, job.contender.digest],
        "params": given.params,
        "window": given.window,
        "seed": given.seed,
        "trace": _traces(given),
        "rate_scale": given.rate_scale,
        "span": given.span,
        "engine": engine_digest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _checksum(run: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(run).encode()).hexdigest()


class Store:
    """A folder with a file a finished run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[int, tuple[Scenario, str]] = {}  # by identity: jobs share their scenario
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {(error.strerror or str(error)).lower()}", where=str(folder)) from None

    def _key(self, job: Job) -> str:
        scenario = job.given.scenario
        if id(scenario) not in self._digests:
            self._digests[id(scenario)] = scenario, digest_of(scenario)
        return key_of(job, self._digests[id(scenario)][1])

    def read(self, job: Job) -> Run | None:
        """The run of a job; None if it is not there, or its file is damaged."""
        key = self._key(job)
        try:
            data = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            if data["key"] != key or data["sha256"] != _checksum(data["run"]):
                return None
            return run_from(data["run"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, job: Job, run: Run) -> None:
        """Keep a finished run, in one step. One that failed is not kept: its policy may be repaired."""
        if run.failure is None:
            key, found = self._key(job), run.to_dict()
            kept = {"key": key, "sha256": _checksum(found), "run": found}
            atomic.write_text(self.folder / f"{key}.json", json.dumps(kept))


# ---- all runs ----------------------------------------------------------------------------------------


def run_all(
    jobs: list[Job], workers: int, backend: str, store: Store | None, report: Callable[[int, int, str], None]
) -> list[Run]:
    """Run all jobs that the store does not have; runs in the order of the jobs."""
    runs = {i: run for i, job in enumerate(jobs) if store and (run := store.read(job)) is not None}
    left = [i for i in range(len(jobs)) if i not in runs]
    report(len(runs), len(jobs), jobs[left[0]].label if left else "")

    def finished(i: int, run: Run) -> None:
        runs[i] = run
        if store:
            store.write(jobs[i], run)
        report(len(runs), len(jobs), jobs[i].label)

    if backend == "ray":
        _ray()
    if left:
        # The first run stays here: it compiles the engine once, so that workers find it in the cache.
        finished(left[0], run_job(jobs[left[0]]))
    rest = [jobs[i] for i in left[1:]]
    for k, run in _runs(rest, workers, backend) if rest else ():
        finished(left[1 + k], run)
    return [runs[i] for i in range(len(jobs))]


def _runs(jobs: list[Job], workers: int, backend: str) -> Iterator[tuple[int, Run]]:
    """(index, run) as they finish."""
    if backend == "ray":
        return _on_ray(jobs, workers)
    return in_processes(_numbered, list(enumerate(jobs)), workers)


def _numbered(i: int, job: Job) -> tuple[int, Run]:
    return i, run_job(job)


def start_worker(parent: int) -> None:
    """An interrupted worker ends without a traceback of its own, and one whose parent is gone ends too.

    What a policy prints goes to stderr.
    """
    os.dup2(2, 1)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process within a second after its parent, which a kill leaves no time to end its workers."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


@contextmanager
def pool(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A function that runs another in processes: `run(call, arguments)` gives what it returns as it finishes.

    Workers are joblib's, and gone when the block ends, however it ends. One worker is this process.

    Raises:
        InputError: a worker ended early.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    def here(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        return (call(*given) for given in arguments)

    def in_workers(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        parallel = Parallel(
            n_jobs=workers,
            backend="loky",
            return_as="generator_unordered",
            batch_size=1,
            max_nbytes=None,
            initializer=start_worker,
            initargs=(os.getpid(),),
        )
        return parallel(delayed(call)(*given) for given in arguments)

    if workers < 2:
        yield here
        return
    try:
        yield in_workers
    except BrokenProcessPool:
        message = "a worker process ended early: out of memory, or killed; jobs=1 needs no workers"
        raise InputError(message, where="jobs") from None
    finally:
        get_reusable_executor().shutdown(wait=False, kill_workers=True)


def in_processes(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], workers: int) -> Iterator[Any]:
    """What a function returns for each of the arguments, as they finish; see `pool`."""
    with pool(min(workers, len(arguments))) as run:
        yield from run(call, arguments)


def _checked(i: int, job: Job, digest: str) -> tuple[int, Run]:
    """A job on another machine, if that has the same pdenv."""
    if engine_digest() != digest:
        raise InputError(f"machine {os.uname().nodename} has another version of pdenv", where="--backend ray")
    return _numbered(i, job)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("needs Ray: pip install '.[ray]' in a checkout", where="--backend ray") from None
    return ray


def _on_ray(jobs: list[Job], workers: int) -> Iterator[tuple[int, Run]]:
    """Tasks of one CPU each, on the cluster that is running, else on one made here with `workers` CPUs."""
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        _join(ray, workers)
    try:
        task = ray.remote(num_cpus=1)(_checked)
        pending = [task.remote(i, job, engine_digest()) for i, job in enumerate(jobs)]
        while pending:
            done, pending = ray.wait(pending)
            yield ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, InputError) else InputError(str(cause), where="--backend ray") from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
        raise InputError("a worker ended early: out of memory, or killed", where="--backend ray") from None
    finally:
        if started:
            ray.shutdown()


def _join(ray: Any, workers: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        ray.init(num_cpus=workers if workers > 1 else None, include_dashboard=False, **quiet)
