"""Instances, racks and the transfers between them, drawn into the boxes of a layout."""

from __future__ import annotations

from typing import NamedTuple

from pdenv.envs.render import style
from pdenv.envs.render.canvas import Box, Canvas
from pdenv.envs.render.layout import FULL_BOX, SHORT_BOX, SMALL_BOX, Layout
from pdenv.envs.render.parts import Colocated, Decode, Port, Prefill
from pdenv.envs.render.scene import Scene

MIN_WIDTH, MAX_WIDTH = 1.2, 9.0  # of a flow, points
HOLLOW_WIDTH = 3.0  # the least over NVLink

Points = list[tuple[float, float]]
Parts = list[tuple[float, str]]  # shares of a bar and their colours


class Meter(NamedTuple):
    """One bar of an instance: how much of something is used."""

    label: str
    parts: Parts
    value: str


class Tag(NamedTuple):
    """A word on the state of an instance."""

    text: str
    colour: str = style.MUTED


# ---- what is said of an instance ---------------------------------------------------------------------


def _state_tag(state: str) -> list[Tag]:
    return [] if state == "active" else [Tag(state, style.CAUTION if state == "draining" else style.MUTED)]


def _link_colour(share: float) -> str:
    return style.ALERT if share >= style.FULL else style.TRANSFER


def prefill_meters(it: Prefill) -> list[Meter]:
    step = f"{style.seconds_text(it.step_left_s, 2)} left" if it.step_requests else "idle"
    staging = it.staging_used_bytes / it.staging_bytes
    return [
        Meter("step", [(it.step_share, style.PREFILL)], step),
        Meter("staging", [(staging, style.PREFILL_LIGHT)], style.of_text(it.staging_used_bytes, it.staging_bytes)),
        Meter("out", [(it.egress_share, _link_colour(it.egress_share))], style.rate_text(it.egress_bytes_per_s)),
    ]


def prefill_tags(it: Prefill) -> list[Tag]:
    """From the least to the most urgent, as in the other pools."""
    tags = _state_tag(it.state)
    if it.waiting_requests:
        tags.append(Tag(f"{it.waiting_requests:,} queued", style.PREFILL))
    return [*tags, Tag("stalled", style.ALERT)] if it.stalled else tags


def _kv_meter(it: Decode | Colocated) -> Meter:
    parts = [(it.running_bytes / it.kv_bytes, style.DECODE), (it.reserved_bytes / it.kv_bytes, style.DECODE_LIGHT)]
    return Meter("KV", parts, style.of_text(it.running_bytes + it.reserved_bytes, it.kv_bytes))


def _batch_meter(it: Decode | Colocated) -> Meter:
    value = f"{it.sequences} · {style.seconds_text(it.iteration_s)}" if it.iteration_s else f"{it.sequences} · idle"
    if isinstance(it, Decode) and it.restoring:
        value = f"{it.sequences} · restoring"
    return Meter("batch", [(it.sequences / it.max_batch, style.DECODE)], value)


def decode_meters(it: Decode) -> list[Meter]:
    rate = style.rate_text(it.ingress_bytes_per_s)
    return [
        _kv_meter(it),
        _batch_meter(it),
        Meter("in", [(it.ingress_share, _link_colour(it.ingress_share))], rate),
    ]


def decode_tags(it: Decode) -> list[Tag]:
    tags = _state_tag(it.state)
    if it.receiving_requests:
        tags.append(Tag(f"{it.receiving_requests:,} queued", style.DECODE))
    return [*tags, Tag(f"{it.preempted_requests:,} preempted", style.ALERT)] if it.preempted_requests else tags


def colocated_meters(it: Colocated) -> list[Meter]:
    step = f"{style.seconds_text(it.step_left_s, 2)} left" if it.mixed else "decode only" if it.iteration_s else "idle"
    return [_kv_meter(it), _batch_meter(it), Meter("chunk", [(it.step_share, style.PREFILL)], step)]


def colocated_tags(it: Colocated) -> list[Tag]:
    tags = [Tag(f"{it.prefilling_requests} in prefill", style.PREFILL)] if it.prefilling_requests else []
    return [*tags, Tag(f"{it.waiting_requests} queued", style.PREFILL)] if it.waiting_requests else tags


# ---- boxes -----------------------------------------------------------------------------------------


class _Look(NamedTuple):
    """What one box shows, whatever the kind of its instance."""

    name: str
    state: str
    pale: str
    edges: tuple[str, ...]  # colours of the stripe on the left
    meters: list[Meter]
    tags: list[Tag]
    queued: int  # shown alone where there is no room for words
    alert: bool


def _prefill_look(it: Prefill) -> _Look:
    meters, tags = prefill_meters(it), prefill_tags(it)
    return _Look(it.name, it.state, style.PREFILL_PALE, (style.PREFILL,), meters, tags, it.waiting_requests, it.stalled)


def _decode_look(it: Decode) -> _Look:
    meters, tags = decode_meters(it), decode_tags(it)
    alert = it.preempted_requests > 0
    return _Look(it.name, it.state, style.DECODE_PALE, (style.DECODE,), meters, tags, it.receiving_requests, alert)


def _colocated_look(it: Colocated) -> _Look:
    edges = (style.PREFILL, style.DECODE)
    meters, tags = colocated_meters(it), colocated_tags(it)
    return _Look(it.name, "active", style.MIXED_PALE, edges, meters, tags, it.waiting_requests, False)


def draw_instances(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """All instances, each as large as its box allows."""
    looks = [
        *map(_prefill_look, scene.prefill),
        *map(_decode_look, scene.decode),
        *map(_colocated_look, scene.colocated),
    ]
    for look, box in zip(looks, layout.prefill + layout.decode + layout.colocated, strict=True):
        if fits(box, FULL_BOX):
            _full(canvas, box, look)
        elif fits(box, SHORT_BOX):
            _short(canvas, box, look)
        elif fits(box, SMALL_BOX):
            _small(canvas, box, look)
        else:
            _cell(canvas, box, look)


def fits(box: Box, size: tuple[float, float]) -> bool:
    return box.width >= size[0] and box.height >= size[1]


def spelled_out(layout: Layout) -> bool:
    """Whether every box has room for the labels of its bars."""
    return all(fits(box, SHORT_BOX) for box in layout.prefill + layout.decode + layout.colocated)


def _frame(canvas: Canvas, box: Box, look: _Look, stripe: float, radius: float) -> None:
    on = look.state in ("active", "draining")
    line = style.ALERT if look.alert else style.CAUTION if look.state == "draining" else style.RULE
    canvas.rectangle(box, look.pale if on else style.PAGE, line, radius, 1.0 if line == style.RULE else 1.4)
    height = box.height / len(look.edges)
    for k, colour in enumerate(look.edges):
        part = Box(box.x, box.y + k * height, stripe, height)
        canvas.rectangle(part, style.FAINT if look.state == "off" else colour, radius=min(radius, 2.0))


def _tags(canvas: Canvas, look: _Look, right: float, y: float, size: float, room: float) -> None:
    """As many tags as there is room for, the most urgent outermost."""
    for tag in reversed(look.tags):
        width = canvas.width(tag.text, size, True)
        if width > room:
            return
        canvas.text(right, y, tag.text, size, tag.colour, bold=True, align="right")
        right, room = right - width - 9.0, room - width - 9.0


def _full(canvas: Canvas, box: Box, look: _Look) -> None:
    _frame(canvas, box, look, 4.0, 4.0)
    left, right = box.x + 14.0, box.right - 10.0
    top = box.y + max((box.height - 76.0) * 0.25, 0.0)
    ink = style.FAINT if look.state == "off" else style.INK
    width = canvas.text(left, top + 18.0, look.name, 13, ink, bold=True, room=150.0)
    _tags(canvas, look, right, top + 18.0, 11.0, right - left - width - 10.0)
    if look.state == "off":
        return
    pitch = min((box.bottom - top - 27.0) / len(look.meters), 22.0)
    for k, meter in enumerate(look.meters):
        y = top + 32.0 + k * pitch
        canvas.text(left, y + 4.0, meter.label, 11, style.MUTED)
        canvas.bar(Box(left + 49.0, y - 3.5, right - left - 49.0 - 116.0, 8.0), meter.parts, style.GROUND)
        canvas.text(right, y + 4.0, meter.value, 11, style.INK, align="right", room=112.0)


def _short(canvas: Canvas, box: Box, look: _Look) -> None:
    _frame(canvas, box, look, 3.5, 3.0)
    left, right = box.x + 9.0, box.right - 7.0
    ink = style.FAINT if look.state == "off" else style.INK
    width = canvas.text(left, box.y + 12.5, look.name, 10.0, ink, bold=True)
    _tags(canvas, look, right, box.y + 12.5, 9.5, right - left - width - 6.0)
    if look.state == "off":
        return
    pitch = (box.height - 16.0) / 2
    for k, meter in enumerate(look.meters[:2]):
        y = box.y + 16.0 + (k + 0.45) * pitch
        canvas.text(left, y + 3.2, meter.label, 9.0, style.MUTED)
        canvas.bar(Box(left + 42.0, y - 3.0, right - left - 42.0, 6.0), meter.parts, style.GROUND)


def _number(name: str) -> str:
    return name.rsplit("-", 1)[-1]


def _small(canvas: Canvas, box: Box, look: _Look) -> None:
    _frame(canvas, box, look, 2.5, 2.5)
    left, right = box.x + 6.0, box.right - 3.0
    off = look.state == "off"
    width = canvas.text(left, box.y + 11.0, _number(look.name), 9.0, style.FAINT if off else style.MUTED)
    if look.queued:
        room = right - left - width - 3.0
        colour = style.ALERT if look.alert else look.edges[0]
        canvas.text(right, box.y + 11.0, f"{look.queued}", 9.0, colour, bold=True, align="right", room=room)
    if off:
        return
    pitch = (box.height - 14.5) / 2
    for k, meter in enumerate(look.meters[:2]):
        y = box.y + 14.0 + k * pitch
        canvas.bar(Box(left, y, right - left, max(pitch - 2.5, 2.0)), meter.parts, style.GROUND, 1.5)


def _cell(canvas: Canvas, box: Box, look: _Look) -> None:
    _frame(canvas, box, look, min(2.5, box.width / 8), 1.5)
    if look.state == "off":
        return
    inside = box.inner(min(3.5, box.width / 6), min(2.5, box.height / 5))
    height = inside.height / 2
    for k, meter in enumerate(look.meters[:2]):
        canvas.bar(Box(inside.x, inside.y + k * height, inside.width, height * 0.85), meter.parts, style.GROUND, 1.0)


# ---- racks -----------------------------------------------------------------------------------------


def draw_racks(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """The bands of the racks, each with its name and what its links to other racks carry."""
    for rack in layout.racks:
        canvas.rectangle(rack.box, style.PANEL, style.RULE, 6.0)
        size = 12 if rack.head > 20 else 11
        base = rack.box.y + rack.head / 2 + 4.5
        name = f"rack {rack.name}" if len(scene.racks) > 1 and not rack.name.startswith("rack") else rack.name
        canvas.text(layout.prefill_edge.x, base, name, size, style.MUTED, bold=True, room=90.0)
        for port in scene.rack_ports:
            owner, _, way = port.name.rpartition(".")
            if owner == rack.name and way == "up":
                gauge(canvas, layout.prefill_edge.right, base, "up", port)
            elif owner == rack.name and way == "down":
                gauge(canvas, layout.decode_edge.x + GAUGE, base, "down", port)


GAUGE = 202.0  # width of a gauge, points


def gauge(canvas: Canvas, right: float, base: float, label: str, port: Port) -> None:
    """A link, up to `right`: its name, how full it is, and what it carries of what it can."""
    bar = Box(right - GAUGE + 36.0, base - 7.5, 62.0, 8.0)
    canvas.text(bar.x - 6.0, base, label, 11, style.MUTED, align="right")
    canvas.bar(bar, [(port.share, _link_colour(port.share))], style.GROUND)
    value = style.of_rate_text(port.bytes_per_s, port.capacity_bytes_per_s)
    canvas.text(bar.right + 6.0, base, value, 11, style.INK, room=right - bar.right - 6.0)


# ---- transfers -------------------------------------------------------------------------------------


class Strand(NamedTuple):
    """One line from left to right."""

    source: int
    sink: int
    precision: str
    tier: str  # of a bundle: none
    bytes_per_s: float


#: With more pairs of instances than this, transfers between two rows of instances are drawn as one.
MAX_PAIRS = 300


def bundled(scene: Scene) -> bool:
    """Whether a line stands for all transfers from one row of instances to another."""
    return len(scene.prefill) * len(scene.decode) > MAX_PAIRS


def widest_strand(scene: Scene, layout: Layout) -> float:
    """Bytes/s that the widest line stands for."""
    return scene.widest_bytes_per_s * (layout.columns if bundled(scene) else 1)


def _bundle(strands: list[Strand], layout: Layout) -> tuple[list[Strand], Points, Points]:
    """One strand for each row of boxes on both sides and precision, and the rows' points on the page."""
    left = [(x, box.middle) for (x, _), box in zip(layout.sources, layout.prefill, strict=True)]
    right = [(x, box.middle) for (x, _), box in zip(layout.sinks, layout.decode, strict=True)]
    sources, sinks = (sorted(set(points), key=lambda point: point[1]) for points in (left, right))
    groups: dict[tuple[int, int, str], float] = {}
    for it in strands:
        key = (sources.index(left[it.source]), sinks.index(right[it.sink]), it.precision)
        groups[key] = groups.get(key, 0.0) + it.bytes_per_s
    return [Strand(*key, "", rate) for key, rate in sorted(groups.items())], sources, sinks


def flow_width(share: float) -> float:
    """Points: by the square root of the share of the widest flow's rate, so that slow flows can be told apart."""
    return MIN_WIDTH + (MAX_WIDTH - MIN_WIDTH) * min(share, 1.0) ** 0.5


def draw_flows(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """Transfers from prefill to decode instances, thin ones on top of wide ones."""
    strands = [Strand(it.prefill, it.decode, it.precision, it.tier, it.bytes_per_s) for it in scene.flows]
    sources, sinks, lane = layout.sources, layout.sinks, layout.lane
    if bundled(scene):
        strands, sources, sinks = _bundle(strands, layout)
        lane = layout.prefill[0].height
    starts = _spread([(it.source, it.sink) for it in strands], sources, lane)
    ends = _spread([(it.sink, it.source) for it in strands], sinks, lane)
    widest = widest_strand(scene, layout)
    for k in sorted(range(len(strands)), key=lambda k: -strands[k].bytes_per_s):
        it = strands[k]
        width = flow_width(it.bytes_per_s / widest)
        arrow = 4.0 + 1.1 * width if layout.lane > 20.0 else 0.0
        end = (ends[k][0] - arrow, ends[k][1])
        _draw_strand(canvas, starts[k], end, it, width, bundled(scene))
        if arrow:
            canvas.triangle(ends[k][0] - 1.0, end[1], arrow, style.WIRE[it.precision])


def _draw_strand(
    canvas: Canvas, start: tuple[float, float], end: tuple[float, float], strand: Strand, width: float, bundle: bool
) -> None:
    """Solid within a rack, hollow over NVLink, dashed between racks; faint while nothing moves."""
    colour = style.WIRE[strand.precision]
    if bundle:
        canvas.curve(start, end, colour, width, 0.6)
        return
    dashed = strand.tier in ("rack", "spine")
    hollow = strand.tier == "nvlink"
    width = max(width, HOLLOW_WIDTH) if hollow else width
    canvas.curve(start, end, colour, width, 0.85 if strand.bytes_per_s else 0.35, dashed)
    if hollow:
        canvas.curve(start, end, style.PANEL, width * 0.45)


def _spread(ends: list[tuple[int, int]], anchors: Points, lane: float) -> Points:
    """A point for each flow at its instance: flows of one instance side by side, in the order of their other ends."""
    of: dict[int, list[int]] = {}
    for k, (instance, _) in enumerate(ends):
        of.setdefault(instance, []).append(k)
    points = [(0.0, 0.0)] * len(ends)
    for instance, flows in of.items():
        x, y = anchors[instance]
        flows.sort(key=lambda k: ends[k][1])
        step = min(0.9 * lane / len(flows), 13.0)
        for place, k in enumerate(flows):
            points[k] = (x, y + step * (place - (len(flows) - 1) / 2))
    return points
