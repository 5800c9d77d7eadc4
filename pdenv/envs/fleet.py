"""Many environments side by side: the one implementation behind the single, vectorised and SB3 forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from pdenv import metrics
from pdenv.envs.episodes import Start, Starts, draw_window
from pdenv.envs.kernels import compiled
from pdenv.envs.kernels.face import FACE, NEW_DECISION
from pdenv.envs.kernels.features import FEATURES, bounds
from pdenv.envs.layout import ACTION_MODES
from pdenv.envs.settings import Settings, load, rate_scale_of
from pdenv.errors import InputError, nearest
from pdenv.run import whole_number
from pdenv.sim.block import handles
from pdenv.sim.compiled import compiled as engine_kernels
from pdenv.sim.engine import Simulation
from pdenv.sim.layout import JIT
from pdenv.sim.records import WAITING, Totals
from pdenv.sim.state import (
    N_TERMS,
    NO_DECISION,
    RETURN_DECISION,
    RETURN_ERROR,
    RETURN_GROW,
    T_FAILURE,
    W_FAILURE,
)
from pdenv.workload.window import SPLITS

OPTIONS = ("window", "scenario", "rate_scale", "split")


def check_options(options: Any) -> None:
    """Raise InputError for options that are not a dict, or that `reset` does not have."""
    if not isinstance(options, Mapping):
        raise InputError(f"are {_short(options)}; give a dict with {', '.join(OPTIONS)}", where="options")
    for name in options:
        if name not in OPTIONS:
            raise InputError(f"no option '{str(name)[:60]}'{nearest(str(name), OPTIONS)}", where="options")


class IllegalAction(InputError):
    """An action that the mask does not allow, or that is not in the action space; nothing has happened."""


class Fleet:
    """`n` environments with the same settings, their arrays, and what happens to them.

    Attributes:
        observations: `(n, size)` float32, of the last step; `layout.parts` names its parts.
        masks: `(n, A)` bool.
        terms: `(n, N_TERMS)` cost units of the last step.
        faces: `(n,)` FACE, with the kind of decision, the time, and what the last step took and cost.
        over: `(n,)` bool, the episode has ended.
        reference_cost: `(n,)` cost units that the reference rule accrued over the last step.
    """

    def __init__(self, settings: Settings, n: int, threads: int = 1, rollouts_per_window: int = 1) -> None:
        self.settings = settings
        self.layout = layout = settings.layout
        self.n = n
        self.rollouts_per_window = rollouts_per_window
        self.starts = Starts(settings)
        self.rngs: list[np.random.Generator] = []
        self.seeds: list[int] = []
        self.sims: list[Simulation] = []
        self.episodes: list[Start] = []
        self.references: list[Simulation | None] = []
        self.stretch = np.zeros(n, np.int64)
        self.begun: list[Totals | None] = [None] * n
        self.ended: list[Totals | None] = [None] * n
        self.observations = np.zeros((n, layout.size), np.float32)
        self.masks = np.zeros((n, layout.n_actions), np.bool_)
        self.terms = np.zeros((n, N_TERMS))
        self.over = np.ones(n, np.bool_)
        self.empty = np.zeros(n, np.bool_)  # no decision falls into the episode: its one step only ends it
        self.some_empty = False
        self.reference_cost = np.zeros(n)
        self.reference_total = np.zeros(n)
        self.faces = np.zeros(n, FACE) if JIT else np.zeros(n, FACE).view(np.recarray)
        self._set_faces()
        self.orders = np.full((n, layout.prefill + layout.decode + layout.colocated), -1, np.int32)
        self.low, self.high = _flat_bounds(settings)
        self.until = np.zeros(n)
        self.measured_only = np.zeros(n, np.bool_)
        self.why = np.full(n, RETURN_DECISION, np.int64)
        self.done = np.zeros(n, np.int64)
        self.all = np.arange(n)
        self._limits = np.array(layout.widths if layout.mode == "factored" else (layout.n_actions,))
        self._action = np.zeros((1, 1), np.int64)
        self.threads = threads
        self._connect()

    # ---- what cannot be copied or pickled -----------------------------------------------------------

    def _connect(self) -> None:
        self._kernels = compiled()
        self._advance = engine_kernels().advance_each
        self._executor = ThreadPoolExecutor(self.threads) if self.threads > 1 else None
        self._addresses: Any = handles([sim.block for sim in self.sims])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_kernels", "_advance", "_executor", "_addresses"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    def close(self) -> None:
        """Let the threads go; the environments can still be used, in one thread."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    # ---- reset --------------------------------------------------------------------------------------

    def seed(self, seeds: Sequence[int | None]) -> None:
        """New random streams; None goes on with the one there is, or starts one at random."""
        fresh = not self.rngs
        for i, seed in enumerate(seeds):
            if fresh:
                if seed is None and i % self.rollouts_per_window:
                    seed = self.seeds[-1]
                rng, used = seeding.np_random(seed)
                self.rngs.append(rng)
                self.seeds.append(used)
            elif seed is not None:
                self.rngs[i], self.seeds[i] = seeding.np_random(seed)

    def seeds_from(self, seed: int | Sequence[int | None] | np.ndarray | None) -> list[int | None]:
        """A seed for each environment: `seed`, `seed + 1`, …; those that share windows share a seed.

        Raises:
            InputError: not a whole number from 0, or another number of them.
        """
        if seed is None:
            return [None] * self.n
        if isinstance(seed, list | tuple | np.ndarray):
            if len(seed) != self.n:
                raise InputError(f"are {len(seed)}; give one for each of the {self.n} environments", where="seeds")
            return [None if one is None else whole_number(one, "seed") for one in seed]
        first = whole_number(seed, "seed")
        return [first + i // self.rollouts_per_window for i in range(self.n)]

    def reset(self, which: np.ndarray, options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start new episodes in the environments `which`; all at the first time. Options are for all, or one each.

        Raises:
            InputError: a bad option.
        """
        if not self.rngs:
            self.seed([None] * self.n)
        if not self.sims:
            which = self.all
        each = options if isinstance(options, Sequence) else [options or {}] * self.n
        for one in each:
            check_options(one)
        chosen = [self._choose(int(i), each[i]) for i in which]
        sims = [start.sim.copy() for start in chosen]
        references = [self._reference(start) for start in chosen]
        if not self.sims:
            self.episodes, self.references = list(chosen), list(references)
        changed = list(self.sims) or list(sims)
        for i, sim in zip(which, sims, strict=True):
            changed[i] = sim
        self.sims, self._addresses = changed, handles([sim.block for sim in changed])
        for i, start, reference in zip(which, chosen, references, strict=True):
            self.episodes[i], self.references[i] = start, reference
            self._begin(int(i), start)
        self.why[which] = RETURN_GROW
        self._run_on(which)
        self._observe(which, first=True)
        self.empty[which] = self.over[which]
        self.some_empty = bool(self.empty.any())
        self.over[which] = False

    def _reference(self, start: Start) -> Simulation | None:
        """The reference rule at the start of an episode, if there is to be one."""
        if self.settings.reference is None:
            return None
        reference = start.sim.copy()
        reference.set_rule(self.settings.reference, seed=start.window)
        reference.block.header["outside"] = 0
        return reference

    def _choose(self, i: int, options: Mapping[str, Any]) -> Start:
        """The start of the next episode of environment i, as the options say."""
        settings = self.settings
        scenario = settings.scenario
        if options.get("scenario") is not None:
            scenario = settings.adapted(load(options["scenario"]))
        split = options.get("split", settings.split)
        if not isinstance(split, str) or split not in SPLITS:
            raise InputError(f"no split '{split}'{nearest(str(split), SPLITS)}", where="options")
        rate_scale = settings.rate_scale
        if options.get("rate_scale") is not None:
            rate_scale = rate_scale_of(options["rate_scale"])
        window = options.get("window", settings.window)
        if isinstance(window, Sequence | np.ndarray) and not isinstance(window, str):
            if len(window) != self.n:
                raise InputError(f"are {len(window)}; give one, or one for each of the {self.n}", where="windows")
            window = window[i]
        if window is None:
            window = draw_window(self.starts.count(scenario, split, rate_scale), self.rngs[i])
        return self.starts.get(scenario, split, whole_number(window, "window"), rate_scale)

    def _begin(self, i: int, start: Start) -> None:
        """Set what belongs to an episode back to its start."""
        self.stretch[i] = 0
        self.begun[i] = start.totals
        self.ended[i] = None
        self.until[i] = start.stretches[0].until_s
        self.measured_only[i] = start.stretches[0].measured_only
        self.over[i] = False
        self.reference_total[i] = self.reference_cost[i] = 0.0
        self.terms[i] = 0.0
        face = self.faces[i]
        face["stage"] = NEW_DECISION
        face["since"] = start.sim.now
        for name in ("replaced", "dt", "cost", "total_cost"):
            face[name] = 0
        self._order(i, start)

    def _order(self, i: int, start: Start) -> None:
        """Which instance each row shows."""
        layout, cluster = self.layout, start.sim.cluster
        at = 0
        for rows, pool in zip(
            (layout.prefill, layout.decode, layout.colocated),
            (cluster.prefill, cluster.decode, cluster.colocated),
            strict=True,
        ):
            shown = self.orders[i, at : at + rows]
            shown[:] = -1
            shown[: len(pool)] = np.arange(len(pool))
            if self.settings.shuffle_instances:
                self.rngs[i].shuffle(shown)
            at += rows

    def _set_faces(self) -> None:
        settings, layout = self.settings, self.layout
        self.faces["mode"] = ACTION_MODES.index(layout.mode)
        self.faces["routes"] = layout.routes
        self.faces["scales"] = layout.scales
        self.faces["work_conserving"] = settings.work_conserving
        self.faces["replace"] = settings.replace_illegal
        for name in ("prefill", "decode", "colocated"):
            self.faces[f"rows_{name}"] = getattr(layout, name)

    # ---- step ---------------------------------------------------------------------------------------

    def actions_from(self, actions: Any) -> np.ndarray:
        """`(n, 1)` or, factored, `(n, 5)` int64.

        Raises:
            IllegalAction: of another shape or type.
        """
        width = len(self.layout.widths) if self.layout.mode == "factored" else 1
        array = _array(actions)
        if array.dtype.kind not in "iu" or array.size != self.n * width or array.shape[:1] != (self.n,):
            shape = (self.n, width) if width > 1 else (self.n,)
            message = f"is {_short(actions)}; give whole numbers of shape {shape} from the action space"
            raise IllegalAction(message, where="action")
        taken = np.ascontiguousarray(array.reshape(self.n, width), np.int64)
        if self.settings.replace_illegal:
            outside = ((taken < 0) | (taken >= self._limits)).any(axis=1) & ~self.over
            if outside.any():
                self.refuse(int(outside.argmax()), taken)
        return taken

    def action_from(self, action: Any) -> np.ndarray:
        """The same for a single environment."""
        if self.layout.mode == "factored":
            array = _array(action)
            if array.dtype.kind not in "iu" or array.size != len(self._limits):
                message = (
                    f"is {_short(action)}; give whole numbers of shape ({len(self._limits)},) from the action space"
                )
                raise IllegalAction(message, where="action")
            return self.actions_from(array[None])
        k = _index(action)
        if k is not None:
            if not 0 <= k < self.layout.n_actions:
                raise IllegalAction(f"{k} is not in {self.layout.action_space()}", where="action")
            self._action[0, 0] = k
            return self._action
        message = f"is {_short(action)}; give a whole number in 0..{self.layout.n_actions - 1}"
        raise IllegalAction(message, where="action")

    def refuse(self, i: int, actions: np.ndarray) -> None:
        """Say why the action of environment i cannot be taken.

        Raises:
            IllegalAction: always.
        """
        action = actions[i].tolist()
        shown = action[0] if len(action) == 1 else tuple(action)
        limits = self.layout.widths if self.layout.mode == "factored" else (self.layout.n_actions,)
        if not all(0 <= k < limit for k, limit in zip(action, limits, strict=True)):
            raise IllegalAction(f"{shown} is not in {self.layout.action_space()}", where="action")
        where = "" if self.n == 1 else f" in environment {i}"
        message = f"{shown} is not legal now{where}; legal: {self._legal_choices(i)}"
        message += "; take one that action_masks() allows, or make the environment with on_illegal='replace'"
        raise IllegalAction(message, where="action")

    def _legal_choices(self, i: int) -> str:
        if self.layout.mode != "factored":
            return _listed(np.flatnonzero(self.masks[i]))
        names = ("kind", "prefill", "decode", "precision", "co-located")
        split = np.split(self.masks[i], np.cumsum(self.layout.widths)[:-1])
        return "; ".join(f"{name} {_listed(np.flatnonzero(part))}" for name, part in zip(names, split, strict=True))

    def step(self, which: np.ndarray, actions: np.ndarray) -> None:
        """Act in the environments `which`, none of which is over, and run each to its next decision.

        Args:
            which: `(m,)` indices, ascending.
            actions: from `actions_from`.

        Raises:
            IllegalAction: nothing has happened.
        """
        if not self.sims or self.over[which].any():
            raise RuntimeError("call reset() first" if not self.sims else "an episode is over: call reset()")
        acting, ending = which, which[:0]
        if self.some_empty:
            acting, ending = which[~self.empty[which]], which[self.empty[which]]
            self._check_nothing_is_done(ending, actions)
        if acting.size:
            self._act(acting, actions)
        for i in ending:
            self._end_empty(int(i))
        if self.settings.reference:
            self._follow(which)

    def _act(self, which: np.ndarray, actions: np.ndarray) -> None:
        """Act where a decision is asked for, and run on."""
        act = self._kernels.act_each
        illegal = act(self._addresses, self.faces, self.orders, self.masks, which, actions, self.why, self.done)
        if illegal >= 0:
            self.refuse(illegal, actions)
        if self._executor is not None and len(which) >= 2 * self.threads:
            held_up = sum(self._executor.map(self._go_on, np.array_split(which, self.threads)))
        else:
            held_up = self._go_on(which)
        if held_up:
            self._finish(which[self.why[which] != RETURN_DECISION])

    def _check_nothing_is_done(self, which: np.ndarray, actions: np.ndarray) -> None:
        """Refuse any other action where no decision is asked for."""
        for i in which:
            k = int(actions[i, 0])
            if not self.settings.replace_illegal and not (0 <= k < self._limits[0] and self.masks[i, k]):
                self.refuse(int(i), actions)

    def _end_empty(self, i: int) -> None:
        """End an episode into which no decision falls."""
        self.empty[i] = False
        self.over[i] = True
        self._observe(np.array([i]))
        self._charge_unfinished(i)

    def _go_on(self, which: np.ndarray) -> int:
        """Run to the next decision where one is complete, and observe; how many are held up by something else."""
        part = slice(which[0], which[-1] + 1)
        self._advance(self._addresses[part], self.until[part], self.measured_only[part], self.why[part])
        return self._observe(which)

    def _finish(self, held_up: np.ndarray) -> None:
        """Run those that stopped for another reason on to a decision, or to their end."""
        self._run_on(held_up)
        self._observe(held_up)
        for i in held_up[self.over[held_up]]:
            self._charge_unfinished(int(i))

    def _advance_some(self, which: np.ndarray) -> None:
        if which.size == 0:
            return
        why = np.full(len(which), RETURN_GROW, np.int64)
        chosen = [self._addresses[i] for i in which]
        blocks = np.array(chosen) if isinstance(self._addresses, np.ndarray) else chosen
        self._advance(blocks, self.until[which], self.measured_only[which], why)
        self.why[which] = why

    def _observe(self, which: np.ndarray, first: bool = False) -> int:
        return self._kernels.observe_each(
            self._addresses,
            self.faces,
            self.orders,
            self.low,
            self.high,
            which,
            self.why,
            first,
            self.observations,
            self.masks,
            self.terms,
        )

    def _run_on(self, which: np.ndarray) -> None:
        """Run those that stopped for another reason than a decision on, until they stand at one or are over."""
        while which.size:
            for i in which:
                self._next_stretch(int(i))
            self._advance_some(which[self.why[which] == RETURN_GROW])
            which = which[self.why[which] != RETURN_DECISION]

    def _next_stretch(self, i: int) -> None:
        """Deal with what stopped environment i: no room, or the end of a stretch."""
        why, sim = int(self.why[i]), self.sims[i]
        if why == RETURN_ERROR:
            raise RuntimeError(f"the engine refused an action at {sim.now} s")
        if why == RETURN_GROW:
            if sim.block.header["free"] < 0:
                sim.block = sim.block.grown(2 * int(sim.block.header["pool"]))
                self._readdress(i)
            return
        stretches = self.episodes[i].stretches
        if self.settings.evaluation:
            if self.stretch[i] == 0:
                self.begun[i] = sim.totals()
            elif self.stretch[i] == 1:
                self.ended[i] = sim.totals()
        self.stretch[i] += 1
        if self.stretch[i] == len(stretches):
            self.over[i] = True
            self.why[i] = RETURN_DECISION
            assert sim.block.header["pending"] == NO_DECISION
            return
        self.until[i] = stretches[self.stretch[i]].until_s
        self.measured_only[i] = stretches[self.stretch[i]].measured_only
        self.why[i] = RETURN_GROW

    def _readdress(self, i: int) -> None:
        address = handles([self.sims[i].block])[0]
        self._addresses[i] = address

    def _charge_unfinished(self, i: int) -> None:
        """At the end of an evaluation, what has not ended is charged as failed."""
        if self.settings.evaluation:
            load = self.episodes[i].load
            left = np.count_nonzero(self.sims[i].records["status"][load.measured_from : load.measured_to] == WAITING)
            cost = left * float(self.sims[i].block.header["cost_weight"][W_FAILURE])
            self.terms[i, T_FAILURE] += cost
            self.faces["cost"][i] += cost
            self.faces["total_cost"][i] += cost

    # ---- the reference ------------------------------------------------------------------------------

    def _follow(self, which: np.ndarray) -> None:
        """Let the reference rule serve the same window up to the same time."""
        for i in which:
            reference = self.references[i]
            assert reference is not None
            if self.over[i] and self.settings.evaluation:
                last = self.episodes[i].stretches[-1]
                reference.step(max(last.until_s, self.sims[i].now), measured_only=True)
            else:
                reference.step(self.sims[i].now)
            cost = float(reference.accrued().sum())
            if self.over[i] and self.settings.evaluation:
                load = self.episodes[i].load
                left = np.count_nonzero(reference.records["status"][load.measured_from : load.measured_to] == WAITING)
                cost += left * float(reference.block.header["cost_weight"][W_FAILURE])
            self.reference_cost[i] = cost
            self.reference_total[i] += cost

    # ---- the end ------------------------------------------------------------------------------------

    def summary(self, i: int) -> dict[str, Any]:
        """The engine's summary of the episode of environment i, as `pdenv simulate` prints it."""
        start, sim = self.episodes[i], self.sims[i]
        begun = self.begun[i]
        assert begun is not None
        ended = self.ended[i] or sim.totals()
        return metrics.summarise(start.scenario, sim.cluster, start.load, sim.records, begun, ended, until_s=sim.now)

    def score(self, i: int) -> dict[str, Any]:
        """Cost a measured request of the episode, and of the reference rule over the same window.

        `better` is the share by which the episode was cheaper than the reference.
        """
        load = self.episodes[i].load
        requests = load.measured_to - load.measured_from
        cost = float(self.faces["total_cost"][i]) / requests
        if not self.settings.reference:
            return {"cost": cost}
        reference = float(self.reference_total[i]) / requests
        better = 1.0 - cost / reference if reference > 0.0 else 0.0
        return {"cost": cost, "reference_cost": reference, "better": better}


def _flat_bounds(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """`(size,)` float32 least and largest values of an observation."""
    layout = settings.layout
    low, high = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32)
    for part in FEATURES:
        for flat, bound in zip((low, high), bounds(part), strict=True):
            layout.parts(flat)[part][...] = bound
    return low, high


def _index(action: Any) -> int | None:
    """A whole number, or an array that holds one, as an int; None for anything else."""
    if type(action) is int or (isinstance(action, np.integer) and action.dtype.kind in "iu"):
        return int(action)
    if isinstance(action, np.ndarray) and action.size == 1 and action.dtype.kind in "iu":
        return int(action.item())
    return None


def _array(actions: Any) -> np.ndarray:
    """As an array; of no use as actions if it is none."""
    try:
        return np.asarray(actions)
    except (ValueError, TypeError):
        return np.asarray(None)


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "…"


def _listed(numbers: np.ndarray) -> str:
    shown = ", ".join(map(str, numbers[:12].tolist()))
    return shown + (f", … ({len(numbers)} in all)" if len(numbers) > 12 else "")
