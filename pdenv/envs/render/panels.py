"""What stands around the racks: the title, the gateway, the legend and the running metrics."""

from __future__ import annotations

from pdenv.envs.render import style
from pdenv.envs.render.canvas import WIDTH, Box, Canvas
from pdenv.envs.render.instances import GAUGE, bundled, flow_width, gauge, spelled_out, widest_strand
from pdenv.envs.render.layout import RACKS, Layout
from pdenv.envs.render.parts import STAGES, Head
from pdenv.envs.render.scene import Scene

GATEWAY = Box(16, RACKS.y, 152, RACKS.height)
LEGEND_BASE = 577.0
METRICS = Box(16, 590, WIDTH - 32, 116)
TIER_TEXT = {"nic": "within a rack", "nvlink": "NVLink", "rack": "between racks", "spine": "between racks"}


def draw_header(canvas: Canvas, scene: Scene) -> None:
    """Title and time on the left, the last decision on the right."""
    canvas.text(18, 31, scene.title or "pdenv", 19, style.INK, bold=True, room=560)
    canvas.text(18, 51, f"t = {scene.now_s:,.2f} s   ·   step {scene.step:,}", 12, style.MUTED)
    if scene.decision:
        canvas.text(WIDTH - 18, 29, "last decision", 11, style.MUTED, align="right")
        canvas.text(WIDTH - 18, 50, scene.decision, 14, style.INK, bold=True, align="right", room=820)


# ---- the gateway -----------------------------------------------------------------------------------


def draw_gateway(canvas: Canvas, scene: Scene) -> None:
    """The queue at the gateway with its head, and how many requests are where."""
    canvas.rectangle(GATEWAY, style.PANEL, style.RULE, 6)
    left, right = GATEWAY.x + 12, GATEWAY.right - 12
    canvas.text(left, GATEWAY.y + 19, "gateway", 12, style.MUTED, bold=True)
    width = canvas.text(left, GATEWAY.y + 54, f"{scene.gateway_requests:,}", 28, style.INK, bold=True)
    canvas.text(left + width + 7, GATEWAY.y + 54, "waiting", 12, style.MUTED)
    stages = GATEWAY.bottom - 118
    top = GATEWAY.y + 66
    if scene.head is not None:
        _head(canvas, scene.head, left, right, top)
        _queue(canvas, scene, Box(left, top + 122, right - left, stages - top - 134))
    else:
        canvas.text(left, top + 18, "The queue is empty.", 11, style.FAINT)
    _stages(canvas, scene, left, right, stages)


def _head(canvas: Canvas, head: Head, left: float, right: float, top: float) -> None:
    canvas.line([(left, top), (right, top)], style.RULE)
    canvas.text(left, top + 20, f"request {head.number:,}", 12, style.INK, bold=True)
    if head.held:
        canvas.text(right, top + 20, "held", 11, style.ALERT, bold=True, align="right")
    rows = (
        ("prompt", f"{head.prompt_tokens:,}"),
        ("predicted", f"{head.predicted_tokens:,}"),
        ("waited", style.seconds_text(head.waited_s)),
        ("tier", f"{head.tier}"),
    )
    for k, (label, value) in enumerate(rows):
        y = top + 38 + 17 * k
        canvas.text(left, y, label, 11, style.MUTED)
        canvas.text(right, y, value, 11, style.INK, align="right")
    x = left
    for precision in head.precisions:
        x += _chip(canvas, x, top + 110, precision.upper(), style.WIRE[precision]) + 3


def _chip(canvas: Canvas, x: float, base: float, text: str, colour: str) -> float:
    """A small label in a frame; returns its width."""
    width = canvas.width(text, 8, True) + 6
    canvas.rectangle(Box(x, base - 10, width, 13.5), style.PANEL, colour, 3)
    canvas.text(x + 3, base - 0.2, text, 8, colour, bold=True)
    return width


def _queue(canvas: Canvas, scene: Scene, box: Box) -> None:
    """A bar for each waiting prompt, head first; its length is the square root of its tokens."""
    prompts = scene.gateway_prompt_tokens
    pitch = 7.0
    shown = min(len(prompts), int((box.height - 14) / pitch))
    longest = scene.longest_prompt_tokens
    for k, tokens in enumerate(prompts[:shown]):
        width = max(box.width * (tokens / longest) ** 0.5, 2.0)
        colour = style.INK if k == 0 else style.FAINT
        canvas.rectangle(Box(box.x, box.y + k * pitch, width, 4.5), colour, radius=1.5)
    more = scene.gateway_requests - shown
    if more > 0:
        canvas.text(box.x, box.y + shown * pitch + 11, f"and {more:,} more", 11, style.MUTED)


def _stages(canvas: Canvas, scene: Scene, left: float, right: float, top: float) -> None:
    colours = (style.FAINT, style.PREFILL_LIGHT, style.PREFILL, style.TRANSFER, style.DECODE)
    canvas.line([(left, top), (right, top)], style.RULE)
    canvas.text(left, top + 19, "in the cluster", 11, style.MUTED, bold=True)
    most = max(*scene.stages[1:], 1)
    for k in range(1, len(STAGES)):
        y = top + 19 + 22 * k
        canvas.text(left, y, STAGES[k], 11, style.INK)
        canvas.text(right, y, f"{scene.stages[k]:,}", 11, style.INK, bold=True, align="right")
        canvas.bar(Box(left, y + 4, right - left, 3), [(scene.stages[k] / most, colours[k])], style.GROUND, 1.5)


# ---- the legend ------------------------------------------------------------------------------------


def draw_legend(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """What lines and colours mean, and how full the spine is."""
    x, y = RACKS.x + 12, LEGEND_BASE
    if scene.link_tiers:
        x = _wire_legend(canvas, scene, x, y) + 14
        x = x if bundled(scene) else _tier_legend(canvas, scene, x, y) + 14
        x = _width_legend(canvas, scene, layout, x, y) + 22
    waiting = "reserved" if scene.decode else "in prefill"
    for colour, text in ((style.DECODE, "KV running"), (style.DECODE_LIGHT, waiting)):
        canvas.rectangle(Box(x, y - 8, 10, 9), colour, radius=2)
        x += 15 + canvas.text(x + 15, y, text, 11, style.INK) + 12
    if not spelled_out(layout):
        bars = "bars: step, staging · KV, batch" if scene.prefill else "bars: KV, batch"
        canvas.text(x + 8, y, bars, 11, style.MUTED)
    for port in scene.spine_ports[:1]:
        middle = (layout.prefill_edge.right + layout.decode_edge.x) / 2
        gauge(canvas, middle + GAUGE / 2, RACKS.y + layout.racks[0].head / 2 + 4.5, port.name, port)


def _wire_legend(canvas: Canvas, scene: Scene, x: float, y: float) -> float:
    x += canvas.text(x, y, "KV on the wire", 11, style.MUTED) + 8
    for precision in scene.precisions:
        canvas.line([(x, y - 4), (x + 16, y - 4)], style.WIRE[precision], 4)
        x += 22 + canvas.text(x + 22, y, precision.upper(), 11, style.INK) + 10
    return x


def _tier_legend(canvas: Canvas, scene: Scene, x: float, y: float) -> float:
    for text in dict.fromkeys(TIER_TEXT[tier] for tier in scene.link_tiers):
        canvas.curve((x, y - 4), (x + 24, y - 4), style.MUTED, 4, dashes=text == "between racks")
        if text == "NVLink":
            canvas.curve((x, y - 4), (x + 24, y - 4), style.PAGE, 1.8)
        x += 30 + canvas.text(x + 30, y, text, 11, style.INK) + 10
    return x


def _width_legend(canvas: Canvas, scene: Scene, layout: Layout, x: float, y: float) -> float:
    for share in (0.1, 1.0):
        half = flow_width(share) / 2  # of round ends
        canvas.line([(x + half, y - 4), (x + 16 - half, y - 4)], style.MUTED, 2 * half)
        rate = style.rate_text(share * widest_strand(scene, layout))
        x += 22 + canvas.text(x + 22, y, rate, 11, style.INK) + 10
    return x + canvas.text(x - 4, y, "row to row", 11, style.INK) if bundled(scene) else x - 10


# ---- running metrics -------------------------------------------------------------------------------


def draw_metrics(canvas: Canvas, scene: Scene) -> None:
    """Cards in a row along the bottom."""
    x, gap = METRICS.x, 10.0
    for width, draw in ((296, _joint), (300, _recent), (196, _slo), (268, _use), (148, _progress)):
        card = Box(x, METRICS.y, width, METRICS.height)
        canvas.rectangle(card, style.PANEL, style.RULE, 6)
        draw(canvas, scene, card.inner(14, 0))
        x += width + gap


PARTS = (("prefill", style.PREFILL), ("transfer", style.TRANSFER), ("decode", style.DECODE))


def _heading(canvas: Canvas, card: Box, text: str, value: str = "") -> None:
    canvas.text(card.x, card.y + 20, text, 12, style.MUTED, bold=True)
    if value:
        canvas.text(card.x, card.y + 52, value, 25, style.INK, bold=True, room=card.width)


def _joint(canvas: Canvas, scene: Scene, card: Box) -> None:
    run = scene.running
    parts = (run.prefill_s, run.transfer_s, run.decode_s)
    _heading(canvas, card, "joint TPOT, mean", style.seconds_text(run.joint_tpot_s))
    total = run.joint_tpot_s or 1.0
    shares = [((part or 0.0) / total, colour) for part, (_, colour) in zip(parts, PARTS, strict=True)]
    canvas.bar(Box(card.x, card.y + 63, card.width, 10), shares, style.GROUND)
    column = card.width / 3
    for k, (part, (name, colour)) in enumerate(zip(parts, PARTS, strict=True)):
        x = card.x + k * column
        canvas.rectangle(Box(x, card.y + 83, 8, 8), colour, radius=2)
        canvas.text(x + 13, card.y + 91, name, 11, style.MUTED)
        canvas.text(x + 13, card.y + 106, style.seconds_text(part), 11, style.INK, bold=True, room=column - 16)


def _recent(canvas: Canvas, scene: Scene, card: Box) -> None:
    """Joint TPOT of the last completed requests, by its parts."""
    totals = [sum(parts) for parts in scene.recent]
    highest = max(totals, default=0.0)
    _heading(canvas, card, f"last {len(totals)} completed" if totals else "last completed")
    if not totals or highest <= 0.0:
        canvas.text(card.x, card.y + 64, "none yet", 11, style.FAINT)
        return
    canvas.text(card.right, card.y + 20, f"max {style.seconds_text(highest)}", 11, style.MUTED, align="right")
    plot = Box(card.x, card.y + 30, card.width, card.height - 42)
    pitch = plot.width / 60
    for k, parts in enumerate(scene.recent):
        bottom = plot.bottom
        for part, (_, colour) in zip(parts, PARTS, strict=True):
            height = part / highest * plot.height
            bottom -= height
            if height > 0.15:
                canvas.rectangle(Box(plot.x + k * pitch, bottom, pitch - 1.2, height), colour)
    canvas.line([(plot.x, plot.bottom + 0.5), (plot.right, plot.bottom + 0.5)], style.RULE)


def _slo(canvas: Canvas, scene: Scene, card: Box) -> None:
    run = scene.running
    _heading(canvas, card, "SLO met", style.percent_text(run.slo_share))
    canvas.bar(Box(card.x, card.y + 63, card.width, 10), [(run.slo_share or 0.0, style.DECODE)], style.GROUND)
    limits = [
        f"{name} ≤ {style.limit_text(limit)}"
        for name, limit in (("TTFT", scene.ttft_limit_s), ("TPOT", scene.tpot_limit_s))
        if limit is not None
    ]
    canvas.text(card.x, card.y + 90, ", ".join(limits) or "no limits", 10, style.MUTED, room=card.width)
    if run.goodput_per_s is not None:
        text = f"goodput {style.significant(run.goodput_per_s)} / s"
        canvas.text(card.x, card.y + 106, text, 11, style.INK, bold=True, room=card.width)


def _use(canvas: Canvas, scene: Scene, card: Box) -> None:
    run = scene.running
    link = run.busiest_share
    rows = [
        ("prefill busy", run.prefill_busy, style.PREFILL),
        ("decode memory", run.decode_memory, style.DECODE),
        ("co-located busy", run.colocated_busy, style.PREFILL),
        ("co-located KV", run.colocated_memory, style.DECODE),
        (run.busiest_port or "links", link, style.ALERT if link is not None and link >= style.FULL else style.TRANSFER),
    ]
    shown = [row for row in rows if row[1] is not None]
    _heading(canvas, card, "in use")
    pitch = 76.0 / max(len(shown), 3)
    for k, (label, share, colour) in enumerate(shown):
        y = card.y + 34 + (k + 0.5) * pitch
        canvas.text(card.x, y + 4, label, 11, style.INK, room=110)
        canvas.bar(Box(card.x + 114, y - 4, 74, 8), [(share or 0.0, colour)], style.GROUND)
        canvas.text(card.right, y + 4, style.percent_text(share), 11, style.INK, bold=True, align="right")


def _progress(canvas: Canvas, scene: Scene, card: Box) -> None:
    run = scene.running
    _heading(canvas, card, "reward")
    canvas.text(card.x, card.y + 49, style.number_text(scene.reward), 20, style.INK, bold=True, room=card.width)
    rows = (("arrived", run.arrived), ("completed", run.completed), ("preempted", run.preemptions))
    for k, (label, count) in enumerate(rows):
        canvas.text(card.x, card.y + 74 + 16 * k, label, 11, style.MUTED)
        canvas.text(card.right, card.y + 74 + 16 * k, f"{count:,}", 11, style.INK, bold=True, align="right")
