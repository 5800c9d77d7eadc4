"""The simulator's Python face: `Simulation`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdenv.errors import InputError, nearest
from pdenv.sim import records
from pdenv.sim.block import build_block, handles
from pdenv.sim.compiled import compiled
from pdenv.sim.records import ARRIVAL, INSTANCE_TOTALS, Totals, empty_records
from pdenv.sim.rules import find_rule
from pdenv.sim.rules.rows import WEIGHTS
from pdenv.sim.state import (
    ACTIVE_SEQ,
    FLOWING,
    N_TERMS,
    OUTSIDE_PAIR,
    OUTSIDE_ROUTE,
    OUTSIDE_SCALE,
    RETURN_DECISION,
    RETURN_DONE,
    RETURN_ERROR,
    RETURN_GROW,
    RETURN_TIME,
    TAIL,
)
from pdenv.topology import N_PRECISIONS, Cluster

_BLOCK_HASH = np.dtype([("hash", np.int64)], align=True)


@dataclass(frozen=True)
class Objective:
    """What cost is made of; see `pdenv.objective` and the scenario's `cost` for the meaning of each number."""

    ttft_limit_s: float = np.inf
    tpot_limit_s: float = np.inf
    ttft_step: float = 0.0
    ttft_slope_per_s: float = 0.0
    tpot_step: float = 0.0
    tpot_slope_per_s: float = 0.0
    w_prefill: float = 1.0
    w_transfer: float = 1.0
    w_decode: float = 1.0
    standard: bool = False  # w_decode weighs standard TPOT, which runs from the first token on
    quality: tuple[float, ...] = (0.0,) * N_PRECISIONS  # cost units a request, by precision
    rejection: float = 0.0
    failure: float = 0.0
    gpu_s: float = 0.0  # cost units a GPU-second
    churn: float = 0.0  # cost units an instance switched on or drained


class Simulation:
    """One run of a cluster over a given list of arrivals.

    Args:
        cluster: plain numbers, see `pdenv.topology`.
        arrivals: (n,) ARRIVAL, sorted by arrival time.
        blocks: int64 prefix-block hashes that `arrivals` points into.
        rule: name of a compiled scheduler (see `pdenv.sim.rules.find_rule`), or None: all decisions come from outside.
        parameters: of the rule, by name.
        seed: of the rule's own random stream.
        objective: what cost-minimising rules aim at, and what accrues.
        outside: kinds of decision that come from outside although there is a rule, a sum of `OUTSIDE_…` of
            `pdenv.sim.state`; `step` stops at each (see `pdenv.sim.decisions`).
        accruing: make room for cost that accrues (see `charge`).

    Raises:
        InputError: unknown rule or parameter.
        ValueError: arrivals that are not sorted or not positive.
    """

    def __init__(
        self,
        cluster: Cluster,
        arrivals: np.ndarray,
        blocks: np.ndarray | None = None,
        rule: str | None = "three-part",
        parameters: dict[str, float] | None = None,
        seed: int = 0,
        objective: Objective | None = None,
        pool: int = 1024,
        outside: int = 0,
        accruing: bool = False,
    ) -> None:
        _check_arrivals(arrivals, len(cluster.tier_precisions), 0 if blocks is None else len(blocks))
        self.cluster = cluster
        self.arrivals = np.ascontiguousarray(arrivals, dtype=ARRIVAL)
        self.records = empty_records(arrivals.shape[0])
        hashes = np.zeros(0 if blocks is None else blocks.shape[0], _BLOCK_HASH)
        if blocks is not None:
            hashes["hash"] = blocks
        external = {"arrival": self.arrivals, "record": self.records, "prefix_block": hashes}
        self.block = build_block(cluster, external, pool, accruing)
        self._kernels = compiled()
        self.block.header["outside"] = outside
        self._set_objective(objective or Objective())
        self.set_rule(rule, parameters, seed)

    def _set_objective(self, objective: Objective) -> None:
        h = self.block.header
        h["ttft_limit_s"] = objective.ttft_limit_s
        h["tpot_limit_s"] = objective.tpot_limit_s
        h["standard"] = objective.standard
        h["cost_weight"] = (
            objective.ttft_step,
            objective.ttft_slope_per_s,
            objective.tpot_step,
            objective.tpot_slope_per_s,
            objective.w_prefill,
            objective.w_transfer,
            objective.w_decode,
            *objective.quality,
            objective.rejection,
            objective.failure,
            objective.gpu_s,
            objective.churn,
        )

    def set_rule(self, name: str | None, parameters: dict[str, float] | None = None, seed: int = 0) -> None:
        """Let a compiled scheduler take the decisions from now on, but those that come from outside.

        Raises:
            InputError: unknown rule or parameter.
        """
        h = self.block.header
        h["random"] = np.uint64(int(seed) % (1 << 64))
        if name is None:
            h["outside"] = OUTSIDE_ROUTE | OUTSIDE_PAIR | OUTSIDE_SCALE
            return
        rule = find_rule(name)
        h["rule"] = rule.route
        h["scaler"] = rule.scaler
        h["parameter"] = 0.0
        for row in WEIGHTS:
            h["parameter"][row] = 1.0
        for parameter in rule.parameters.values():
            h["parameter"][parameter.row] = parameter.default
        for key, value in (parameters or {}).items():
            if key not in rule.parameters:
                raise InputError(f"policy '{name}' has no parameter '{key}'{nearest(key, rule.parameters)}")
            h["parameter"][rule.parameters[key].row] = value

    @property
    def now(self) -> float:
        """Simulated time, s."""
        return float(self.block.header["now"])

    def run(self, until_s: float = np.inf) -> bool:
        """Process all events up to `until_s`; True if every request has ended."""
        return self._advance(until_s, False) == RETURN_DONE

    def run_measured(self, first: int, last: int, deadline_s: float) -> bool:
        """Run until requests first..last−1 have ended, or to the deadline; True if they have."""
        self.measure(first, last)
        return self._advance(deadline_s, True) == RETURN_DONE

    def measure(self, first: int, last: int) -> None:
        """Say that requests first..last−1 are those that a run with `measured_only` waits for."""
        h = self.block.header
        h["measured_from"], h["measured_to"] = first, last
        ended = np.count_nonzero(self.records["status"][first:last] != records.WAITING)
        h["measured_left"] = last - first - ended

    def charge(
        self, first: int, last: int, since_s: float = 0.0, until_s: float = np.inf, beta_per_s: float = 0.0
    ) -> None:
        """Let cost accrue from now on (the run must have been made with `accruing`).

        Args:
            first, last: requests first..last−1 are charged, of those that have not arrived yet.
            since_s, until_s: time in which GPUs and scaling are charged.
            beta_per_s: discount rate within an interval.
        """
        assert self.block.header["due_rows"] > 0, "Simulation(..., accruing=True)"
        h = self.block.header
        h["charged_from"], h["charged_to"] = first, last
        h["charged_since_t"], h["charged_until_t"] = since_s, until_s
        h["beta_per_s"] = beta_per_s
        self._kernels.start_accrual(self.block.handle())

    def accrued(self) -> np.ndarray:
        """`(len(TERMS),)` cost units of each of `pdenv.sim.state.TERMS` since the last call, discounted to it."""
        out = np.zeros(N_TERMS)
        self._kernels.take_accrual(self.block.handle(), out)
        return out

    def step(self, until_s: float = np.inf, measured_only: bool = False) -> bool:
        """Run to the next decision from outside (True), or to `until_s` or the end of all that counts (False)."""
        return self._advance(until_s, measured_only) == RETURN_DECISION

    def _advance(self, until_s: float, measured_only: bool) -> int:
        until, measured, why_each = np.array([until_s]), np.array([measured_only]), np.array([RETURN_GROW])
        while True:
            self._kernels.advance_each(handles([self.block]), until, measured, why_each)
            why = int(why_each[0])
            if why == RETURN_GROW:
                self.block = self.block.grown(2 * int(self.block.header["pool"]))
            elif why == RETURN_ERROR:
                raise RuntimeError(f"illegal action at {self.now} s: {self._action()}")
            else:
                assert why in (RETURN_TIME, RETURN_DONE, RETURN_DECISION), why
                return why

    def _action(self) -> dict[str, int]:
        h = self.block.header
        names = ("kind", "p", "d", "h", "precision", "scale_prefill", "scale_decode", "flip")
        return {name: int(h[f"act_{name}"]) for name in names}

    def copy(self) -> Simulation:
        """An independent run that stands where this one stands and goes on from there."""
        other = copy.copy(self)
        other.records = self.records.copy()
        other.block = self.block.copied({"record": other.records})
        return other

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_kernels"], state["records"]  # the block holds the records
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.records = self.block.external["record"]
        self._kernels = compiled()

    def close(self) -> None:
        """Write what is known of requests that have not ended: tokens emitted, bytes sent, status unfinished."""
        batches = self.block.views["batch"]
        for row in self.block.views["request"]:
            if row["id"] < 0:
                continue
            out = self.records[row["id"]]
            out["emitted"] = row["emitted"]
            if row["decode_state"] == ACTIVE_SEQ:
                box = batches[row["b"]]
                done = self._kernels.iterations_done(self.block.handle(), int(row["b"]), self.now)
                out["emitted"] += box["iterations"] - row["joined_at"] + done
                if done > 0 and np.isnan(out["first_token_s"]):
                    out["first_token_s"] = box["anchor_t"] + box["first_s"]
            if row["flow_state"] == FLOWING:
                out["wire_bytes"] += row["sent"] + row["rate"] * (self.now - row["sent_t"])
            elif row["flow_state"] == TAIL:
                out["wire_bytes"] += row["sent"]
            out["status"] = records.UNFINISHED
        waiting = self.records["status"] == records.WAITING
        self.records["status"][waiting] = records.UNFINISHED

    def totals(self) -> Totals:
        """What the run has accumulated until now."""
        h = self.block.header
        n_prefill, n_decode, n_colocated = int(h["n_prefill"]), int(h["n_decode"]), int(h["n_colocated"])
        filled = np.zeros((n_prefill + n_decode + n_colocated, INSTANCE_TOTALS.itemsize // 8))
        ports = np.zeros(int(h["n_ports"]))
        handle = self.block.handle()
        self._kernels.instance_totals(handle, self.now, filled)
        self._kernels.port_totals(handle, self.now, ports)
        rows = filled.view(INSTANCE_TOTALS)[:, 0]
        return Totals(
            time_s=self.now,
            prefill=rows[:n_prefill],
            decode=rows[n_prefill : n_prefill + n_decode],
            colocated=rows[n_prefill + n_decode :],
            port_bytes=ports,
            decode_starved_s=float(self._kernels.starved_total(handle, self.now)),
            gap_counts=self.block.views["gap_bin"]["count"].copy(),
            gap_sum_s=float(h["gap_sum_s"]),
            gap_max_s=float(h["gap_max_s"]),
            preemptions=int(h["preemptions"]),
            scalings=int(h["scalings"]),
        )


def _check_arrivals(arrivals: np.ndarray, n_tiers: int, n_blocks: int) -> None:
    if arrivals.shape[0] == 0:
        return
    if np.any(np.diff(arrivals["arrival_s"]) < 0.0) or not np.all(np.isfinite(arrivals["arrival_s"])):
        raise ValueError("arrivals must be sorted by a finite arrival_s")
    if arrivals["prompt_tokens"].min() < 1 or arrivals["output_tokens"].min() < 1:
        raise ValueError("prompt_tokens and output_tokens must be at least 1")
    if arrivals["tier"].min() < 0 or arrivals["tier"].max() >= n_tiers:
        raise ValueError(f"tier must be in 0..{n_tiers - 1}")
    first, count = arrivals["block_start"], arrivals["block_count"]
    if count.min() < 0 or np.any((count > 0) & ((first < 0) | (first > n_blocks - count))):
        raise ValueError(f"block_start and block_count must lie within the {n_blocks} block hashes")
