"""Where things lie in an observation, and what every action means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from pdenv.envs.kernels.features import FEATURES, bounds
from pdenv.errors import InputError, nearest
from pdenv.topology import N_PRECISIONS, PRECISIONS, Cluster

ActionMode = Literal["pair", "factored", "sequential"]
ACTION_MODES = ("pair", "factored", "sequential")

#: Kinds of action on a request, in the order of the `factored` and `sequential` forms.
KINDS = ("pair", "colocated", "hold", "reject")
K_PAIR, K_COLOCATED, K_HOLD, K_REJECT = range(len(KINDS))

#: Scaling actions: (prefill delta, decode delta, flip). Flip 1 turns a prefill instance into a decode instance, 2 the
#: other way round.
SCALINGS = (*((p, d, 0) for p in (-1, 0, 1) for d in (-1, 0, 1)), (0, 0, 1), (0, 0, 2))
SCALE_NOTHING = SCALINGS.index((0, 0, 0))

# Stages of a sequential decision.
STAGE_KIND, STAGE_PREFILL, STAGE_DECODE, STAGE_PRECISION, STAGE_COLOCATED, STAGE_SCALE = range(6)


@dataclass(frozen=True)
class Choice:
    """What an action does. Instances are positions in the observation; −1 or "" where it does not apply."""

    kind: str  # "pair", "colocated", "hold", "reject" or "scale"
    prefill: int = -1
    decode: int = -1
    precision: str = ""
    colocated: int = -1
    scaling: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """Shapes of one environment.

    Attributes:
        prefill, decode, colocated: rows in the observation, at least 1 each; P, D and H below.
        mode: form of the actions.
        routes: dispatch and pairing are actions.
        scales: scaling is.
    """

    prefill: int
    decode: int
    colocated: int
    mode: ActionMode
    routes: bool
    scales: bool

    # ---- observation --------------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each part of the observation."""
        rows: dict[str, tuple[int, ...]] = {
            "request": (),
            "prefill": (self.prefill,),
            "decode": (self.decode,),
            "pair": (self.prefill, self.decode),
            "colocated": (self.colocated,),
            "cluster": (),
        }
        return {part: (*rows[part], len(features)) for part, features in FEATURES.items()}

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each part lies in the flat form."""
        found, at = {}, 0
        for part, shape in self.shapes.items():
            size = int(np.prod(shape))
            found[part] = slice(at, at + size)
            at += size
        return found

    @property
    def size(self) -> int:
        """Numbers in an observation."""
        return self.slices["request"].stop

    def observation_space(self) -> spaces.Dict:
        """float32 boxes with finite bounds."""
        boxes: dict[str, spaces.Space[Any]] = {}
        for part, shape in self.shapes.items():
            low, high = bounds(part)
            boxes[part] = spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=np.float32)
        return spaces.Dict(boxes)

    def parts(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of `(..., size)` numbers as the parts of the observation."""
        if flat.ndim == 1:
            return {part: flat[where].reshape(shape) for part, where, shape in self._places}
        lead = flat.shape[:-1]
        return {part: flat[..., where].reshape(*lead, *shape) for part, where, shape in self._places}

    @cached_property
    def _places(self) -> list[tuple[str, slice, tuple[int, ...]]]:
        return [(part, where, self.shapes[part]) for part, where in self.slices.items()]

    # ---- actions ------------------------------------------------------------------------------------

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Choices of each factor of the `factored` form: kind, prefill, decode, precision, co-located."""
        return (len(KINDS), self.prefill, self.decode, N_PRECISIONS, self.colocated)

    @cached_property
    def n_pairs(self) -> int:
        return self.prefill * self.decode * N_PRECISIONS if self.routes else 0

    @cached_property
    def n_routes(self) -> int:
        """Actions on a request in the `pair` form."""
        return self.n_pairs + self.colocated + 2 if self.routes else 0

    @cached_property
    def n_actions(self) -> int:
        """Width of the mask."""
        if self.mode == "factored":
            return sum(self.widths)
        if self.mode == "pair":
            return self.n_routes + (len(SCALINGS) if self.scales else 0)
        return max(*(self.widths if self.routes else (1,)), len(SCALINGS) if self.scales else 1)

    def action_space(self, seed: int | None = None) -> spaces.Discrete | spaces.MultiDiscrete:
        if self.mode == "factored":
            return spaces.MultiDiscrete(np.array(self.widths), seed=seed)
        return spaces.Discrete(self.n_actions, seed=seed)

    def index(
        self,
        kind: str,
        prefill: int = 0,
        decode: int = 0,
        precision: str | int = 0,
        colocated: int = 0,
        scaling: tuple[int, int, int] = (0, 0, 0),
    ) -> Any:
        """The action that does this: an int, or in the `factored` form `(5,)` int64.

        In the `sequential` form a decision is several actions; see `stages`.

        Args:
            kind: "pair", "colocated", "hold", "reject" or "scale".
            prefill, decode, colocated: positions in the observation.
            precision: a name of `PRECISIONS` or its index.
            scaling: (prefill delta, decode delta, flip), one of `SCALINGS`.

        Raises:
            InputError: no such action in this environment.
        """
        q = PRECISIONS.index(precision) if precision in PRECISIONS else precision
        if not isinstance(q, int | np.integer):
            raise InputError(f"no precision '{precision}'{nearest(str(precision), PRECISIONS)}", where="action")
        self._check(kind, prefill, decode, int(q), colocated, scaling)
        if self.mode == "sequential":
            raise InputError("a sequential decision is several actions; use stages()", where="action")
        if kind == "scale":
            return self.n_routes + SCALINGS.index(scaling)
        if self.mode == "factored":
            return np.array((KINDS.index(kind), prefill, decode, q, colocated), np.int64)
        if kind == "pair":
            return (prefill * self.decode + decode) * N_PRECISIONS + int(q)
        return self.n_pairs + {"colocated": colocated, "hold": self.colocated, "reject": self.colocated + 1}[kind]

    def stages(
        self,
        kind: str,
        prefill: int = 0,
        decode: int = 0,
        precision: str | int = 0,
        colocated: int = 0,
        scaling: tuple[int, int, int] = (0, 0, 0),
        late_binding: bool = False,
        pairing: bool = False,
    ) -> list[int]:
        """The actions of a sequential decision, one a stage.

        Args:
            late_binding: decode instances are chosen when the prefill ends, so a dispatch has no decode stage.
            pairing: the decision is that later one, and has no other.
        """
        q = PRECISIONS.index(precision) if precision in PRECISIONS else int(precision)
        self._check(kind, prefill, decode, q, colocated, scaling)
        if pairing:
            return [decode]
        if kind == "scale":
            return [SCALINGS.index(scaling)]
        if kind == "pair":
            return [K_PAIR, prefill, *([] if late_binding else [decode]), q]
        return [KINDS.index(kind), *([colocated] if kind == "colocated" else [])]

    def choice(self, action: Any) -> Choice:
        """What an action of the `pair` or `factored` form does.

        Raises:
            InputError: outside the action space, or a sequential environment.
        """
        if self.mode == "sequential":
            raise InputError("what a sequential action does depends on its stage", where="action")
        if not self.action_space().contains(action):
            raise InputError(f"{action!r} is not in {self.action_space()}", where="action")
        if self.mode == "factored":
            kind, p, d, q, h = (int(x) for x in action)
            return self._named(KINDS[kind], p, d, q, h)
        k = int(action)
        if k >= self.n_routes:
            return Choice("scale", scaling=SCALINGS[k - self.n_routes])
        if k < self.n_pairs:
            p, rest = divmod(k, self.decode * N_PRECISIONS)
            return self._named("pair", p, *divmod(rest, N_PRECISIONS), 0)
        k -= self.n_pairs
        if k < self.colocated:
            return Choice("colocated", colocated=k)
        return Choice(KINDS[K_HOLD + k - self.colocated])

    def _named(self, kind: str, p: int, d: int, q: int, h: int) -> Choice:
        if kind == "pair":
            return Choice("pair", p, d, PRECISIONS[q])
        return Choice(kind, colocated=h if kind == "colocated" else -1)

    def _check(self, kind: str, p: int, d: int, q: int, h: int, scaling: tuple[int, int, int]) -> None:
        kinds = (*(KINDS if self.routes else ()), *(("scale",) if self.scales else ()))
        if kind not in kinds:
            raise InputError(f"no kind '{kind}'{nearest(kind, kinds)}", where="action")
        limits = {"prefill": (p, self.prefill), "decode": (d, self.decode), "colocated": (h, self.colocated)}
        limits["precision"] = (q, N_PRECISIONS)
        for name, (value, limit) in limits.items():
            if not 0 <= value < limit:
                raise InputError(f"{name} {value} is not in 0..{limit - 1}", where="action")
        if kind == "scale" and scaling not in SCALINGS:
            raise InputError(f"{scaling} is not one of {SCALINGS}", where="action")


def layout_of(
    cluster: Cluster, mode: str, routes: bool, scales: bool, pad: tuple[int, int, int] | None = None
) -> Layout:
    """The layout of a cluster's environment; with `pad` = (P, D, H), of all clusters up to that size.

    Raises:
        InputError: unknown mode, a mode that the environment does not have, or a cluster larger than `pad`.
    """
    if not isinstance(mode, str) or mode not in ACTION_MODES:
        raise InputError(f"no action mode {mode!r}{nearest(str(mode), ACTION_MODES)}", where="action_mode")
    if mode == "factored" and scales:
        raise InputError("'factored' is for pdenv/Routing-v0; scaling is one choice, use 'pair'", where="action_mode")
    sizes = [max(1, len(pool)) for pool in (cluster.prefill, cluster.decode, cluster.colocated)]
    if pad is not None:
        if (
            not isinstance(pad, Sequence)
            or len(pad) != 3
            or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= 4096 for n in pad)
        ):
            raise InputError(
                f"is {pad!r}; give three whole numbers in 1..4096: prefill, decode, co-located", where="pad"
            )
        if any(n > limit for n, limit in zip(sizes, pad, strict=True)):
            raise InputError(f"{tuple(pad)} is too small for a cluster of {tuple(sizes)} instances", where="pad")
        sizes = [int(n) for n in pad]
    return Layout(sizes[0], sizes[1], sizes[2], mode, routes, scales)  # type: ignore[arg-type]
