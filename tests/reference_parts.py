"""The parts of the reference simulator: requests, instances, step laws, prefix cache, flows, fair rates.

Everything is a plain object of ints, floats, lists and dicts; nothing here is clever or fast.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pdenv.topology import Path, Profile, StepLaw

OFF, WARMING, ACTIVE, DRAINING = "off", "warming", "active", "draining"
SHORTEST_S = 1e-6


@dataclass(eq=False)
class Request:
    i: int
    prompt: int
    output: int
    tier: int
    priority: int
    blocks: list[int]
    attempts: int = 0  # how often it has been offered to the script
    first_hold: float | None = None
    ended: bool = False
    # where it goes
    p: int = -1
    d: int = -1
    h: int = -1
    q: int = -1  # wire precision
    store: int = -1
    dispatch_no: int = 0
    # prefill
    started: bool = False
    prefilled: bool = False
    target: int = 0  # tokens to prefill: the prompt, or a preempted co-located context
    cached: int = 0
    done: int = 0  # tokens whose KV exists, cached ones included
    chunk: tuple[float, float, int] | None = None  # start, end, tokens of the step in flight
    staged: int = 0  # bytes held in staging
    # transfer
    asked: bool = False  # decode memory has been asked for
    granted: bool = False  # a reservation not joined
    grant_no: int = 0
    flow: Flow | None = None
    transferred: bool = False
    wire_bytes: float = 0.0  # of flows that are over
    # decode
    on_decode: bool = False  # its KV was on a decode instance: running, preempted or moved
    lost: bool = False  # its KV is gone and must be recomputed, swap or not
    join_no: int = 0
    emitted: int = 0
    last_token: float | None = None

    @property
    def held_at_preemption(self) -> int:
        """Tokens whose KV has to be restored."""
        return self.prompt + max(self.emitted - 1, 0)

    @property
    def context(self) -> int:
        """Tokens held during the next iteration."""
        return self.prompt + self.emitted


class PrefixCache:
    """Least recently used block hashes of one instance."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.size = blocks
        self.block_tokens = block_tokens
        self.held: OrderedDict[int, None] = OrderedDict()

    def run(self, r: Request) -> int:
        """Leading blocks of the request that are present."""
        n = 0
        while n < len(r.blocks) and r.blocks[n] in self.held:
            n += 1
        return n

    def hit_tokens(self, r: Request) -> int:
        return min(self.run(r) * self.block_tokens, r.prompt - 1)

    def touch_hits(self, r: Request) -> None:
        for block in r.blocks[: self.run(r)]:
            self.held.move_to_end(block)

    def insert(self, r: Request) -> None:
        if self.size == 0:
            return
        for block in r.blocks:
            if block in self.held:
                self.held.move_to_end(block)
                continue
            if len(self.held) >= self.size:
                self.held.popitem(last=False)
            self.held[block] = None


@dataclass(eq=False)
class Instance:
    """What all three kinds share."""

    index: int
    spec: Any  # the instance's row of the cluster
    profile: Profile
    state: str = ACTIVE
    version: int = 0  # of the step in flight; an event with another version is stale
    timer_version: int = 0  # of warm-up and drain deadlines
    busy: bool = False  # in a step
    boundary: float | None = None  # end of the step that ended in this instant
    flip: bool = False
    queue: list[Request] = field(default_factory=list)  # prefill, receive or co-located queue


@dataclass(eq=False)
class Prefill(Instance):
    started: list[Request] = field(default_factory=list)  # begun, not in the step in flight
    step: list[tuple[Request, int]] = field(default_factory=list)
    stalled: bool = False
    staged: int = 0
    cache: PrefixCache = field(default_factory=lambda: PrefixCache(0, 1))


@dataclass(eq=False)
class Decode(Instance):
    active: list[Request] = field(default_factory=list)
    reserved: list[Request] = field(default_factory=list)  # granted, not joined, oldest grant first
    ready: list[Request] = field(default_factory=list)  # those of them whose transfer has ended
    preempted: list[Request] = field(default_factory=list)
    restoring: Request | None = None  # the sequence of the stop step in flight
    stopped: bool = False  # the step in flight is a stop step


@dataclass(eq=False)
class Colocated(Instance):
    active: list[Request] = field(default_factory=list)
    prefilling: list[Request] = field(default_factory=list)
    step: list[tuple[Request, int]] = field(default_factory=list)
    cache: PrefixCache = field(default_factory=lambda: PrefixCache(0, 1))


def base_time(law: StepLaw, x: int) -> float:
    """`a + b·x`, or the table at x with its outermost segments extended."""
    if not law.table_x:
        return law.a_s + law.b_s * x
    xs, ys = law.table_x, law.table_s
    k = 0
    while k < len(xs) - 2 and x > xs[k + 1]:
        k += 1
    return ys[k] + (ys[k + 1] - ys[k]) * (x - xs[k]) / (xs[k + 1] - xs[k])


def prefill_time(profile: Profile, parts: list[tuple[int, int]]) -> float:
    """Duration of a prefill batch of (tokens done, new tokens)."""
    tokens = sum(x for _, x in parts)
    square = sum((done + x) ** 2 - done**2 for done, x in parts)
    return max(base_time(profile.prefill, tokens) + profile.prefill.c_s[0] * square, SHORTEST_S)


def decode_time(profile: Profile, active: list[Request]) -> float:
    """Duration of the next iteration of the active sequences."""
    contexts = sum(profile.decode.c_s[r.store] * r.context for r in active)
    return max(base_time(profile.decode, len(active)) + contexts, SHORTEST_S)


def mixed_time(profile: Profile, active: list[Request], parts: list[tuple[int, int]]) -> float:
    d = decode_time(profile, active) if active else 0.0
    c = prefill_time(profile, parts) if parts else 0.0
    return d + c - profile.piggyback * min(d, c)


class Flow:
    """One transfer: bytes that become available while prefill runs and leave at the flow's rate.

    `tight` says that everything available has been sent, so that the flow follows production.
    """

    def __init__(self, r: Request, path: Path, size: float, layers: int) -> None:
        self.r = r
        self.ports = path.ports
        self.latency = path.latency_s
        self.cost = path.cost_s_per_byte[r.q]
        self.size = size
        self.layers = layers
        self.sent = 0.0
        self.rate = 0.0
        self.tight = False
        self.unsent_at_prefill_end = size
        self.on_wire = True  # False once the last byte has left
        self.version = 0

    def first_layer_end(self) -> float | None:
        if self.r.chunk is None or self.layers == 1:
            return None
        s, e, _ = self.r.chunk
        return s + (e - s) / self.layers

    def available(self, t: float) -> float:
        r = self.r
        if r.prefilled:
            return self.size
        tokens = float(r.done - r.cached)
        first = self.first_layer_end()
        if r.chunk is not None and first is not None and t > first:
            _, e, x = r.chunk
            share = (self.layers - 1) / self.layers
            tokens += x * share * min((t - first) / (e - first), 1.0)
        return self.size * tokens / (r.prompt - r.cached)

    def production(self, t: float) -> float:
        """Bytes/s that become available right after t."""
        first = self.first_layer_end()
        if self.r.prefilled or self.r.chunk is None or first is None or t < first:
            return 0.0
        s, e, x = self.r.chunk
        return self.size * x / (self.r.prompt - self.r.cached) / (e - s)

    def cap(self, t: float) -> float:
        return self.production(t) if self.tight else inf


def fair_rates(paths: list[tuple[int, ...]], caps: list[float], capacity: list[float]) -> list[float]:
    """Max-min fair rates by progressive filling: all rise together until a port or a cap stops some."""
    rates = [0.0] * len(paths)
    left = dict(enumerate(capacity))
    rising = {i for i, cap in enumerate(caps) if cap > 0.0}
    while rising:
        users: dict[int, int] = {}
        for i in rising:
            for port in paths[i]:
                users[port] = users.get(port, 0) + 1
        share = min(left[port] / n for port, n in users.items())
        low = min(caps[i] for i in rising)
        level = min(low, share)
        if low <= share:
            stopped = {i for i in rising if caps[i] == low}
        else:
            full = {port for port, n in users.items() if left[port] / n <= share * (1 + 1e-12)}
            stopped = {i for i in rising if full & set(paths[i])}
        for i in sorted(stopped):
            rates[i] = level
            for port in paths[i]:
                left[port] = max(left[port] - level, 0.0)
        rising -= stopped
    return rates
