"""Decisions by rolling copies of the engine forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdenv.objective import objective_of
from pdenv.references.futures import Futures
from pdenv.references.kernels import ACTION, compiled, no_actions
from pdenv.scenario import Scenario
from pdenv.sim import compiled as engine
from pdenv.sim.block import Block, handles
from pdenv.sim.engine import Simulation
from pdenv.sim.records import empty_records
from pdenv.sim.state import OUTSIDE_ROUTE, OUTSIDE_SCALE, RETURN_GROW, ROUTE
from pdenv.topology import Cluster
from pdenv.workload import Workload

CANDIDATES = 8  # of greedy, beside the base rule's own choice
AHEAD = 28  # imagined arrivals that a routing decision looks ahead
KNOWN_AHEAD = 150  # the same where they are known
ROLL_MAX_S = 300.0  # a rollout goes on until all its requests have ended, but no longer
SCALE_AHEAD_TICKS = 24  # control intervals that a scaling decision looks ahead, beyond the start-up of an instance
SCALE_AHEAD = 4096  # arrivals, at most


@dataclass(frozen=True)
class Search:
    """How candidates are tried.

    Attributes:
        rounds: futures of a round, and how many actions beside the base rule's choice go into it.
        margin: standard errors by which an action has to be cheaper than the base rule's choice.
    """

    rounds: tuple[tuple[int, int], ...]
    margin: float

    @property
    def futures(self) -> int:
        """In all rounds."""
        return sum(futures for futures, _ in self.rounds)


ROUTING = Search(((2, CANDIDATES), (4, 3), (6, 1)), margin=1.0)
#: Scaling decisions are few; what each is worth shows late and varies much from future to future.
SCALING = Search(((3, 9), (6, 3), (15, 1)), margin=2.0)


class Lookahead:
    """Takes a run's decisions by what they lead to.

    Every candidate is tried in every future: a copy of the engine takes it, goes on under the base rule, and the one
    with the least mean cost is taken. Candidates are the base rule's choice and greedy's cheapest, or all pool deltas.

    Args:
        sim: made by `run_of`.
        futures: where imagined arrivals and output lengths come from; None: the true ones.
        seed: of the futures.
    """

    def __init__(self, sim: Simulation, futures: Futures | None, seed: int) -> None:
        self.sim = sim
        self.futures = futures
        self.rng = np.random.default_rng([seed, 0x100C])
        self.decisions = 0
        self._actions = no_actions(CANDIDATES + 1)
        self._deltas = _pool_deltas()
        self._kernels, self._engine = compiled(), engine.compiled()
        self._until, self._measured = np.zeros(1), np.zeros(1, bool)
        self._why = np.zeros(1, np.int64)
        self._blank = empty_records(1)
        self.ahead = KNOWN_AHEAD if futures is None else AHEAD
        rows = len(sim.arrivals) + SCALE_AHEAD
        self._records = empty_records(rows)
        self._known = 0  # true arrivals that the imagined ones have taken over
        n_futures = 1 if futures is None else max(ROUTING.futures, SCALING.futures)
        self._imagined = [_padded(sim.arrivals, rows) for _ in range(n_futures)]
        self._edges = np.zeros(0) if futures is None else futures.lengths.edges
        self._ratios = np.ones((1, 1)) if futures is None else futures.lengths.ratios
        self._copies: list[Block] = []

    def drive(self, until_s: float = np.inf, measured_only: bool = False) -> bool:
        """Run to `until_s` (or until the measured requests have ended); True if all that counts has ended."""
        while self.sim.step(until_s, measured_only):
            self.decide()
        h = self.sim.block.header
        return bool(h["measured_left"] == 0) if measured_only else bool(h["ended"] == h["n_arrivals"])

    def decide(self) -> None:
        """Answer the pending decision."""
        self.decisions += 1
        handle = self.sim.block.handle()
        if int(self.sim.block.header["pending"]) == ROUTE:
            self._kernels.base_route(handle)
            actions = self._actions
            n = 1 + int(self._kernels.cheapest_actions(handle, actions[1:]))
            self._note_base(actions)
            if n > 1:
                self._choose(actions[:n], ROUTING, self.ahead, self.sim.now + ROLL_MAX_S, charge_gpus=False)
        else:
            self._kernels.base_scale(handle)
            self._note_base(self._deltas)
            until_s = self.sim.now + self._scale_horizon_s()
            self._choose(self._deltas, SCALING, SCALE_AHEAD, until_s, charge_gpus=True)

    def _note_base(self, actions: np.ndarray) -> None:
        h = self.sim.block.header
        for name in ACTION.names or ():
            if name != "cost":
                actions[name][0] = h[f"act_{name}"]

    def _scale_horizon_s(self) -> float:
        views, h = self.sim.block.views, self.sim.block.header
        startup_s = max(float(views["prefill"]["startup_s"].max()), float(views["batch"]["startup_s"].max()))
        return startup_s + SCALE_AHEAD_TICKS * float(h["scaling_interval_s"])

    def _choose(self, actions: np.ndarray, search: Search, ahead: int, until_s: float, charge_gpus: bool) -> None:
        """Put the best action into the header: the base rule's (the first), unless another one is clearly cheaper.

        All actions of a round meet the same futures. The cheapest of them go on to the next round.
        """
        first = int(self.sim.block.header["next_arrival"])
        tried = [np.zeros(0) for _ in actions]  # cost in each future so far
        left = list(range(1, len(actions)))
        future = 0
        for futures, others in search.rounds if self.futures is not None else ((1, len(actions)),):
            left = sorted(left, key=lambda k: float(tried[k].sum()))[:others]
            for _ in range(futures):
                last = self._foresee(future, first, ahead, until_s)
                seed = int(self.rng.integers(1 << 62))
                for k in (0, *left):
                    cost = self._roll(future, actions, k, seed, last, until_s, charge_gpus)
                    tried[k] = np.append(tried[k], cost)
                future += 1
        self._known = first
        best = min((0, *left), key=lambda k: (float(tried[k].sum()), k))
        taken = best if _is_better(tried[best], tried[0], search.margin) else 0
        self._kernels.answer_with(self.sim.block.handle(), actions, taken)

    def _foresee(self, future: int, first: int, ahead: int, until_s: float) -> int:
        """Arrivals of a future from row `first` on; returns the row at which they end."""
        if self.futures is None:
            return min(first + ahead, int(self.sim.block.header["offer_until"]))
        rows = self._imagined[future]
        rows[self._known : first] = self.sim.arrivals[self._known : first]
        to_come = rows[first : first + ahead]
        self.futures.fill(to_come, self.sim.arrivals["arrival_s"][max(first - 64, 0) : first], self.sim.now, self.rng)
        return first + int(np.searchsorted(to_come["arrival_s"], until_s))

    def _roll(
        self, future: int, actions: np.ndarray, k: int, seed: int, last: int, until_s: float, charge_gpus: bool
    ) -> float:
        """What action k costs from now on in a future, cost units."""
        while True:
            copy = self._copy(future)
            handle = copy.handle()
            self._kernels.imagine(
                handle, actions, k, seed, last, self.sim.records, self._records, self._blank,
                self.futures is not None, self._edges, self._ratios,
            )  # fmt: skip
            self._until[0], self._why[0] = until_s, RETURN_GROW
            self._engine.advance_each(handles([copy]), self._until, self._measured, self._why)
            if self._why[0] != RETURN_GROW:
                return float(self._kernels.spent(handle, until_s if charge_gpus else np.nan))
            self.sim.block = self.sim.block.grown(2 * int(self.sim.block.header["pool"]))

    def _copy(self, future: int) -> Block:
        """The run as it stands, with the arrivals of a future."""
        source = self.sim.block
        if not self._copies or self._copies[0].bytes.size != source.bytes.size:
            self._copies = [source.copied({"record": self._records, "arrival": rows}) for rows in self._imagined]
        copy = self._copies[future]
        copy.bytes[:] = source.bytes
        h = copy.header
        h["at_arrival"] = copy.external["arrival"].ctypes.data
        h["at_record"] = copy.external["record"].ctypes.data
        return copy


def _is_better(cost: np.ndarray, base: np.ndarray, margin: float) -> bool:
    """Is the mean of the paired differences below 0 by more than `margin` standard errors?"""
    gain = base - cost
    if len(gain) < 2:
        return bool(gain.sum() > 0.0)
    return bool(gain.mean() > margin * gain.std(ddof=1) / np.sqrt(len(gain)))


def _padded(arrivals: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros(rows, arrivals.dtype)
    out[: len(arrivals)] = arrivals
    return out


def _pool_deltas() -> np.ndarray:
    """`(10,)` ACTION: a place for the base rule's choice, then every pair of deltas."""
    actions = no_actions(10)
    actions["scale_prefill"][1:] = np.repeat((-1, 0, 1), 3)
    actions["scale_decode"][1:] = np.tile((-1, 0, 1), 3)
    return actions


def run_of(
    base: str, parameters: dict[str, float], seed: int, scenario: Scenario, cluster: Cluster, load: Workload
) -> Simulation:
    """A run whose route decisions a `Lookahead` takes, and those on scaling where the cluster has control ticks.

    Args:
        base: compiled rule that takes the decisions after the one in question.
    """
    return Simulation(
        cluster,
        load.arrivals,
        load.blocks,
        rule=base,
        parameters=parameters,
        seed=seed,
        objective=objective_of(scenario),
        pool=256,
        outside=OUTSIDE_ROUTE | (OUTSIDE_SCALE if cluster.scaling_interval_s > 0.0 else 0),
        accruing=True,
    )
