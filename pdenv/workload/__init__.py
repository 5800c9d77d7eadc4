"""Workloads: what arrives in a run, generated or read from a trace, and which part of it is measured."""

from pdenv.workload.load import offered_prefill_load
from pdenv.workload.traces import Trace, read_trace
from pdenv.workload.window import SPLITS, Workload, build

__all__ = ["SPLITS", "Trace", "Workload", "build", "offered_prefill_load", "read_trace"]
