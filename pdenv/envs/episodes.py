"""Where an episode starts and how it goes on: windows, warm starts and the stretches of a run.

In training an episode is a window of the training split: a compiled rule serves the warm-up, then the agent's part
runs to the end of the window, where it is cut. In evaluation the agent serves everything from an empty cluster on; the
requests that arrive between warm-up and end are measured, and the run goes on until they have ended or `drain_max_s`
has passed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from pdenv import workload
from pdenv.envs.settings import Settings
from pdenv.errors import InputError
from pdenv.objective import objective_of
from pdenv.scenario import Scenario
from pdenv.sim.engine import Simulation
from pdenv.sim.records import Totals
from pdenv.sim.state import TIE_S
from pdenv.workload.window import count_windows

#: Starts that are kept, the latest ones. One takes about 2 MB.
KEPT_STARTS = 64

#: Requests in flight that there is room for at first; more is made when needed.
POOL = 256


@dataclass(frozen=True)
class Stretch:
    """A part of a run: up to `until_s`, or until the measured requests have ended."""

    until_s: float
    measured_only: bool = False


@dataclass(frozen=True)
class Start:
    """A cluster at the start of an episode.

    Attributes:
        sim: stands at the start and is only copied.
        totals: at the start of what is measured, if that lies behind.
        stretches: of the run that follows.
    """

    scenario: Scenario
    load: workload.Workload
    sim: Simulation
    totals: Totals | None
    stretches: tuple[Stretch, ...]
    window: int


class Starts:
    """Makes starts and keeps the latest ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._own_key = _key_of(settings.scenario)
        self._kept: OrderedDict[tuple, Start] = OrderedDict()
        self._counts: dict[tuple, int | None] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": OrderedDict()}

    def _key(self, scenario: Scenario) -> str:
        return self._own_key if scenario is self.settings.scenario else _key_of(scenario)

    def get(self, scenario: Scenario, split: str, window: int, rate_scale: float | str) -> Start:
        """The start of a window, from the cache or made now.

        Raises:
            InputError: a window that does not exist, a bad trace or rate.
        """
        key = (self._key(scenario), split, window, rate_scale)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make_start(self.settings, scenario, split, window, rate_scale)
            if len(self._kept) > KEPT_STARTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def count(self, scenario: Scenario, split: str, rate_scale: float | str) -> int | None:
        """Windows to draw from: those that `windows` allows and the trace has; None without a limit."""
        settings = self.settings
        key = (self._key(scenario), split, rate_scale)
        if key not in self._counts:
            sized = scenario.model_copy(update={"window": settings.episode_window(scenario)})
            self._counts[key] = count_windows(sized, split, settings.trace, rate_scale, settings.workload_seed)
            if self._counts[key] == 0:
                raise InputError(f"the trace has no window of this length in split '{split}'; shorten the horizon")
        limits = [n for n in (self._counts[key], settings.windows) if n is not None]
        return min(limits, default=None)


def _key_of(scenario: Scenario) -> str:
    return json.dumps(scenario.model_dump(mode="json"), sort_keys=True)


def make_start(settings: Settings, scenario: Scenario, split: str, window: int, rate_scale: float | str) -> Start:
    """Build the workload of a window and bring the cluster to the start of the episode."""
    sized = scenario.model_copy(update={"window": settings.episode_window(scenario)})
    load = workload.build(
        sized,
        seed=settings.workload_seed,
        window=window,
        split=split,
        trace=settings.trace,
        rate_scale=rate_scale,
        span="window",
    )
    sim = Simulation(
        scenario.cluster(),
        load.arrivals,
        load.blocks,
        rule=settings.rule,
        seed=window,
        objective=objective_of(scenario),
        pool=POOL,
        accruing=True,
    )
    totals = None
    if not settings.evaluation:
        totals = _warm_up(sim, settings, load, window)
    sim.block.header["outside"] = settings.outside
    sim.charge(load.measured_from, load.measured_to, load.warmup_s, load.end_s, settings.beta_per_s)
    sim.measure(load.measured_from, load.measured_to)
    return Start(sized, load, sim, totals, _stretches(settings, load), window)


def _warm_up(sim: Simulation, settings: Settings, load: workload.Workload, window: int) -> Totals:
    """A compiled rule serves what arrives before the window."""
    if settings.warm_start is not None and load.warmup_s > 0.0:
        sim.set_rule(settings.warm_start, seed=window)
        sim.run(load.warmup_s - 2 * TIE_S)
        sim.set_rule(settings.rule, seed=window)
    return sim.totals()


def _stretches(settings: Settings, load: workload.Workload) -> tuple[Stretch, ...]:
    if not settings.evaluation:
        return (Stretch(load.end_s),)
    return (Stretch(load.warmup_s), Stretch(load.end_s), Stretch(load.end_s + load.drain_max_s, measured_only=True))


def draw_window(count: int | None, rng: np.random.Generator) -> int:
    """A window of the split at random."""
    return int(rng.integers(count if count is not None else 1 << 31))
