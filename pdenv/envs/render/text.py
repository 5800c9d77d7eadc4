"""A scene as a table of plain text, at most `WIDTH` columns wide and without colour codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from pdenv.envs.render import style
from pdenv.envs.render.parts import STAGES, Colocated, Decode, Flow, Prefill
from pdenv.envs.render.scene import Scene

WIDTH = 100
#: Rows of instances in each pool, and of transfers; what has the most to do is shown.
MAX_ROWS = 12

_EIGHTHS = " ▏▎▍▌▋▊▉█"
Instance = TypeVar("Instance", Prefill, Decode, Colocated)


def bar(share: float, width: int) -> str:
    """A bar of block characters, exact to an eighth of a column; anything above 0 can be seen."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    eighths = max(eighths, 1) if share > 0.0 else 0
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def split_bar(first: float, second: float, width: int) -> str:
    """Two shares on one bar: `█` and `▒`, whole columns."""
    left = round(min(first, 1.0) * width)
    both = max(round(min(first + second, 1.0) * width), left)
    left = max(left, 1) if first > 0.0 else left
    return ("█" * left + "▒" * (max(both, left + (second > 0.0)) - left))[:width].ljust(width, "·")


def to_text(scene: Scene) -> str:
    """The scene in words, numbers and bars; lines end without blanks."""
    lines = [
        *_top(scene),
        *_pool("prefill", scene.prefill, scene.racks, _prefill_load, _PREFILL_HEAD, _prefill_row),
        *_pool("decode", scene.decode, scene.racks, _decode_load, _DECODE_HEAD, _decode_row),
        *_pool("co-located", scene.colocated, scene.racks, _colocated_load, _COLOCATED_HEAD, _colocated_row),
        *_links(scene),
        *_metrics(scene),
    ]
    return "\n".join(_clip(line) for line in lines) + "\n"


def _clip(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


# ---- the top ---------------------------------------------------------------------------------------


def _top(scene: Scene) -> list[str]:
    title = f"{scene.title or 'pdenv'}   t = {scene.now_s:,.2f} s   step {scene.step:,}"
    reward = f"reward {style.number_text(scene.reward)}"
    lines = [title + reward.rjust(max(WIDTH - len(title), len(reward) + 3)), "═" * WIDTH]
    if scene.decision:
        lines.append(f"decision   {scene.decision}")
    gateway = f"gateway    {scene.gateway_requests:,} waiting"
    head = scene.head
    if head is not None:
        gateway += f"   head: request {head.number:,}, {head.prompt_tokens:,} tokens"
        gateway += f", {'held, ' if head.held else ''}waited {style.seconds_text(head.waited_s)}"
        gateway += f", tier {head.tier} ({' '.join(head.precisions)})"
    counts = (f"{name} {count:,}" for name, count in list(zip(STAGES, scene.stages, strict=True))[1:])
    return [*lines, gateway, f"requests   {'   '.join(counts)}"]


# ---- instances -------------------------------------------------------------------------------------


def _pool(
    kind: str,
    pool: Sequence[Instance],
    racks: Sequence[str],
    load: Callable[[Instance], float],
    head: str,
    row: Callable[[Instance], str],
) -> list[str]:
    """A table of one pool; of a large one a summary and the rows with the most to do."""
    if not pool:
        return []
    shown, title = list(pool), f"── {kind} "
    if len(pool) > MAX_ROWS:
        busiest = sorted(range(len(pool)), key=lambda i: (-load(pool[i]), i))[:MAX_ROWS]
        shown = [pool[i] for i in sorted(busiest)]
        states = Counter(getattr(it, "state", "active") for it in pool)
        title += f"({len(pool)}: {', '.join(f'{n} {state}' for state, n in states.items())}; "
        title += f"the {MAX_ROWS} with the most to do) "
    lines = [title.ljust(WIDTH, "─"), f"{'':12} {'rack':6} {head}"]
    for it in shown:
        rack = racks[it.rack] if it.rack < len(racks) else ""
        state = getattr(it, "state", "active")
        lines.append(f"{it.name[:12]:12} {rack[:6]:6} {row(it) if state != 'off' else 'off'}")
    return lines


def _columns(state: str, queue: str, work: str, step: str, memory: str, rate: str = "") -> str:
    return f"{state:8} {queue:>5} {work:>7}  {step:15} {memory:26} {rate:>9}"


_PREFILL_HEAD = _columns("state", "queue", "tokens", "step", "staging", "out")
_DECODE_HEAD = _columns("state", "recv", "batch", "iteration", "KV █ running ▒ reserved", "in")
_COLOCATED_HEAD = _columns("state", "queue", "batch", "iteration", "KV █ running ▒ in prefill")


def _prefill_load(it: Prefill) -> float:
    return it.tokens_left


def _prefill_row(it: Prefill) -> str:
    state = "stalled" if it.stalled else it.state
    step = f"{bar(it.step_share, 6)} {style.seconds_text(it.step_left_s)}" if it.step_requests else "idle"
    staging = bar(it.staging_used_bytes / it.staging_bytes, 8)
    staging += f" {style.of_text(it.staging_used_bytes, it.staging_bytes)}"
    rate = style.rate_text(it.egress_bytes_per_s)
    return _columns(state, f"{it.waiting_requests:,}", style.tokens_text(it.tokens_left), step, staging, rate)


def _decode_load(it: Decode) -> float:
    return it.running_bytes + it.reserved_bytes + it.receiving_requests


def _kv(it: Decode | Colocated) -> str:
    kv = split_bar(it.running_bytes / it.kv_bytes, it.reserved_bytes / it.kv_bytes, 8)
    return f"{kv} {style.of_text(it.running_bytes + it.reserved_bytes, it.kv_bytes)}"


def _decode_row(it: Decode) -> str:
    doing = style.seconds_text(it.iteration_s) if it.iteration_s else "idle"
    if it.restoring or it.preempted_requests:
        doing = f"{it.preempted_requests} preempted"
    rate = style.rate_text(it.ingress_bytes_per_s)
    return _columns(it.state, f"{it.receiving_requests:,}", f"{it.sequences:,}", doing, _kv(it), rate)


def _colocated_load(it: Colocated) -> float:
    return it.running_bytes + it.reserved_bytes + it.waiting_requests


def _colocated_row(it: Colocated) -> str:
    doing = style.seconds_text(it.iteration_s) if it.iteration_s else "idle"
    if it.mixed:
        doing = f"{bar(it.step_share, 6)} {style.seconds_text(it.step_left_s)}"
    return _columns("active", f"{it.waiting_requests:,}", f"{it.sequences:,}", doing, _kv(it))


# ---- links -----------------------------------------------------------------------------------------


def _links(scene: Scene) -> list[str]:
    if not scene.link_tiers:
        return []
    lines = ["── KV on the wire ".ljust(WIDTH, "─")]
    ports = [*scene.rack_ports, *scene.spine_ports]
    for port in sorted(ports, key=lambda it: -it.share)[:MAX_ROWS] if len(ports) > MAX_ROWS else ports:
        used = style.of_rate_text(port.bytes_per_s, port.capacity_bytes_per_s)
        lines.append(f"{port.name[:20]:20} {bar(port.share, 20)} {style.percent_text(port.share):>8}   {used}")
    flows = sorted(scene.flows, key=lambda it: -it.bytes_per_s)
    if flows:
        lines.append(_flow_columns("", "KV", "rate", "left", "over", "fullest link"))
    lines += [_flow_line(scene, it) for it in flows[:MAX_ROWS]]
    if len(flows) > MAX_ROWS:
        lines.append(f"and {len(flows) - MAX_ROWS:,} more")
    return lines if len(lines) > 1 else [*lines, "nothing"]


def _flow_columns(ends: str, what: str, rate: str, left: str, tier: str, port: str) -> str:
    return f"{ends:24} {what:9} {rate:>9} {left:>8}  {tier:6}  {port}"


def _flow_line(scene: Scene, it: Flow) -> str:
    return _flow_columns(
        f"{scene.prefill[it.prefill].name} → {scene.decode[it.decode].name}",
        f"{it.requests} × {it.precision}",
        style.rate_text(it.bytes_per_s),
        style.bytes_text(it.left_bytes),
        it.tier,
        f"{it.port} {style.percent_text(it.port_share)}",
    )


# ---- metrics ---------------------------------------------------------------------------------------


def _metrics(scene: Scene) -> list[str]:
    run = scene.running
    parts = (("prefill", run.prefill_s), ("transfer", run.transfer_s), ("decode", run.decode_s))
    joint = " + ".join(f"{name} {style.seconds_text(value)}" for name, value in parts)
    met = f"{style.percent_text(run.slo_share)}"
    if run.goodput_per_s is not None:
        met += f"   goodput {style.significant(run.goodput_per_s)} / s"
    uses = (
        (("prefill busy", run.prefill_busy), ("decode memory", run.decode_memory)),
        (("co-located busy", run.colocated_busy), ("co-located memory", run.colocated_memory)),
        ((f"fullest link {run.busiest_port}" if run.busiest_port else "links", run.busiest_share),),
    )
    rows = [[f"{name} {style.percent_text(share)}" for name, share in row if share is not None] for row in uses]
    in_use = [f"{'in use' if k == 0 else '':10} {'   '.join(row)}" for k, row in enumerate(filter(None, rows))]
    counts = f"{run.arrived:,} arrived   {run.ended:,} ended   {run.completed:,} completed"
    return [
        "── running metrics ".ljust(WIDTH, "─"),
        f"joint TPOT {style.seconds_text(run.joint_tpot_s)} = {joint}",
        f"SLO met    {met}",
        *in_use,
        f"requests   {counts}   {run.preemptions:,} preemptions",
    ]
