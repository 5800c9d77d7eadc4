"""Where the instances lie on the page: racks as bands, prefill on the left, decode on the right, co-located after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pdenv.envs.render.canvas import Box
from pdenv.envs.render.scene import Scene

#: The area of the racks, points.
RACKS = Box(180, 64, 1084, 492)
RACK_HEAD, RACK_PAD, RACK_GAP = 24.0, 8.0, 8.0
SLIM_HEAD, SLIM_PAD, SLIM_GAP = 19.0, 3.0, 6.0
#: More racks than this are drawn as one.
MAX_RACKS = 10

COLUMNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
#: Boxes of this size can be read in full; smaller ones only say the most important.
FULL_BOX = (230.0, 68.0)
SHORT_BOX = (112.0, 36.0)
SMALL_BOX = (32.0, 25.0)
WIDEST_BOX, TALLEST_BOX, LARGEST_PITCH = 400.0, 96.0, 150.0


@dataclass(frozen=True)
class Rack:
    """A band of the page."""

    name: str
    box: Box
    head: float  # height of its title


@dataclass(frozen=True)
class Layout:
    """Boxes of racks and instances, in the order of the scene, and where flows leave and arrive."""

    racks: list[Rack]
    prefill: list[Box]
    decode: list[Box]
    colocated: list[Box]
    prefill_edge: Box  # the columns of each pool, over the whole height
    decode_edge: Box
    sources: list[tuple[float, float]]  # (P,) points
    sinks: list[tuple[float, float]]  # (D,) points
    lane: float  # height on the page that one instance's flows may take, points
    columns: int  # instances side by side


@dataclass(frozen=True)
class _Grid:
    """Members of a pool in each rack, side by side in so many columns."""

    members: list[list[int]]  # instances of each rack
    columns: int
    x: float
    width: float

    def rows(self, rack: int) -> int:
        return math.ceil(len(self.members[rack]) / self.columns)

    @property
    def gap(self) -> float:
        step = self.width / self.columns
        return 10.0 if step > 200 else 6.0 if step > 100 else 3.0

    @property
    def box_width(self) -> float:
        return (self.width - (self.columns - 1) * self.gap) / self.columns


class _Place(NamedTuple):
    """The box of an instance, the end of its row, and the height at which its flows leave or arrive."""

    box: Box
    row_right: float
    flow_y: float


def arrange(scene: Scene) -> Layout:
    """The layout of a scene; it depends on the cluster alone, so that frames of an episode do not jump."""
    names = scene.racks if len(scene.racks) <= MAX_RACKS else (f"{len(scene.racks)} racks",)
    pools = [_members([it.rack for it in pool], len(names)) for pool in (scene.prefill, scene.decode, scene.colocated)]
    used = [r for r in range(len(names)) if any(members[r] for members in pools)]
    head, pad, gap = (RACK_HEAD, RACK_PAD, RACK_GAP) if len(used) <= 2 else (SLIM_HEAD, SLIM_PAD, SLIM_GAP)
    free = RACKS.height - len(used) * (head + pad) - (len(used) - 1) * gap
    grids = _best_grids(pools, used, free)
    rows = {r: max(grid.rows(r) for grid in grids) for r in used}
    row_height = free / sum(rows.values())

    racks, y = [], RACKS.y
    found: list[dict[int, _Place]] = [{}, {}, {}]
    for r in used:
        inside = Box(RACKS.x, y + head, RACKS.width, rows[r] * row_height)
        racks.append(Rack(names[r], Box(RACKS.x, y, RACKS.width, head + inside.height + pad), head))
        for grid, places in zip(grids, found, strict=True):
            places.update(_place(grid, r, inside))
        y = racks[-1].box.bottom + gap
    prefill, decode, colocated = ([pool[i] for i in sorted(pool)] for pool in found)
    edges = [Box(grid.x, RACKS.y, grid.width, RACKS.height) for grid in grids]
    return Layout(
        racks,
        [place.box for place in prefill],
        [place.box for place in decode],
        [place.box for place in colocated],
        prefill_edge=edges[0],
        decode_edge=edges[1],
        sources=[(place.row_right, place.flow_y) for place in prefill],
        sinks=[(edges[1].x, place.flow_y) for place in decode],
        columns=grids[0].columns,
        lane=0.8 * min(place.box.height for place in [*prefill, *decode] or colocated) / grids[0].columns,
    )


def _members(racks: list[int], n_racks: int) -> list[list[int]]:
    """Instances of each rack; all in the first one where racks are not told apart."""
    members: list[list[int]] = [[] for _ in range(n_racks)]
    for i, rack in enumerate(racks):
        members[rack if n_racks > 1 else 0].append(i)
    return members


def _grids(pools: list[list[list[int]]], columns: int) -> list[_Grid]:
    """A grid for each pool; prefill and decode leave a channel for the flows between them."""
    inside = RACKS.width - 24.0
    prefill, decode, colocated = (any(members) for members in pools)
    share = min(0.27 + 0.012 * columns, 0.37) if not colocated else min(0.23 + 0.006 * columns, 0.27)
    widths = [share * inside if there else 0.0 for there in (prefill, decode, colocated)]
    if not (prefill or decode):
        widths[2] = inside
    left, right = RACKS.x + 12.0, RACKS.right - 12.0
    at_colocated = right - widths[2]
    at_decode = at_colocated - widths[1] - (18.0 if colocated else 0.0)
    starts = (left, at_decode, at_colocated)
    return [_Grid(members, columns, x, width) for members, width, x in zip(pools, widths, starts, strict=True)]


def _best_grids(pools: list[list[list[int]]], used: list[int], free: float) -> list[_Grid]:
    """The fewest columns whose boxes have room for all that there is to say, or else for the most of it."""
    found: list[tuple[tuple[int, float], list[_Grid]]] = []
    for columns in COLUMNS:
        grids = _grids(pools, columns)
        width = min(grid.box_width for grid in grids if grid.width)
        height = free / sum(max(grid.rows(r) for grid in grids) for r in used) - 5.0
        if width > WIDEST_BOX:
            continue
        for level, (least_width, least_height) in enumerate((FULL_BOX, SHORT_BOX, SMALL_BOX)):
            if width >= least_width and height >= least_height:
                found.append(((-level, -columns), grids))
                break
        else:
            found.append(((-3, min(width / 2, height)), grids))
    return max(found, key=lambda pair: pair[0])[1]


def _place(grid: _Grid, rack: int, inside: Box) -> dict[int, _Place]:
    """Places of a rack's members, row by row; each instance of a row has a height of its own for its flows."""
    members = grid.members[rack]
    if not members:
        return {}
    pitch = min(inside.height / grid.rows(rack), LARGEST_PITCH)
    top = inside.middle - pitch * grid.rows(rack) / 2
    height = min(pitch - (8.0 if pitch > 60 else 5.0 if pitch > 30 else 2.0), TALLEST_BOX)
    step = grid.box_width + grid.gap
    places = {}
    for k, i in enumerate(members):
        row, column = divmod(k, grid.columns)
        in_row = min(grid.columns, len(members) - row * grid.columns)
        y = top + row * pitch + (pitch - height) / 2
        places[i] = _Place(
            Box(grid.x + column * step, y, grid.box_width, height),
            grid.x + in_row * step - grid.gap,
            y + height * (0.1 + 0.8 * (column + 0.5) / grid.columns),
        )
    return places
