"""The state of a run: requests, memory, tokens, and the flows on the wire."""

from __future__ import annotations

import heapq
from collections import Counter

from reference_parts import ACTIVE, OFF, Colocated, Decode, Flow, Prefill, PrefixCache, Request, fair_rates

from pdenv.sim.records import COMPLETED, FAILED_OOM, empty_records
from pdenv.topology import BINDING_MODES, RESERVE_MODES, Cluster

KINDS = ("transfer", "prefill", "decode", "colocated", "delivery", "timer", "scrape", "control", "arrival")


class State:
    """Everything that exists during a run, and what happens to flows."""

    def __init__(self, cluster: Cluster, n: int) -> None:
        c = self.cluster = cluster
        self.t = 0.0
        self.records = empty_records(n)
        self.heap: list[tuple] = []
        self.pushed = 0
        self.visible = False
        self.reserve = RESERVE_MODES[c.reserve]
        self.bind_late = BINDING_MODES[c.binding] == "prefill_end"
        self.prefill = [
            Prefill(
                i,
                s,
                c.profiles[s.profile],
                ACTIVE if s.active else OFF,
                cache=PrefixCache(s.prefix_cache_blocks, c.block_tokens),
            )
            for i, s in enumerate(c.prefill)
        ]
        self.decode = [Decode(i, s, c.profiles[s.profile], ACTIVE if s.active else OFF) for i, s in enumerate(c.decode)]
        self.colocated = [
            Colocated(i, s, c.profiles[s.profile], cache=PrefixCache(s.prefix_cache_blocks, c.block_tokens))
            for i, s in enumerate(c.colocated)
        ]
        self.pairing: list[Request] = []  # those that need a decode instance
        self.flows: list[Flow] = []  # those with bytes left to send
        self.flows_changed = False
        self.port_bytes = [0.0] * len(c.ports)
        self.gaps: list[float] = []
        self.happened: Counter[str] = Counter()
        self.counter = 0

    def number(self) -> int:
        self.counter += 1
        return self.counter

    def push(self, time: float, kind: str, index: object, *payload: object) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (time, KINDS.index(kind), index, self.pushed, payload))

    def see(self, change: str) -> None:
        """Note a change that a scheduler can see: with stale metrics only what it knows by itself."""
        if self.cluster.scrape_interval_s == 0.0 or change in ("arrival", "scrape", "state"):
            self.visible = True

    # ---- tokens and endings

    def emit(self, r: Request, t: float) -> None:
        r.emitted += 1
        if r.emitted <= 2:
            self.records[("first_token_s", "second_token_s")[r.emitted - 1]][r.i] = t
        if r.last_token is not None:
            assert t >= r.last_token
            self.gaps.append(t - r.last_token)
        r.last_token = t

    def end(self, r: Request, status: int, t: float) -> None:
        """The request leaves with whatever it holds."""
        assert not r.ended
        r.ended = True
        self.records["status"][r.i] = status
        self.records["finish_s"][r.i] = t
        if r.flow is not None:
            self.happened["flow_cancelled"] += 1
        self.abort_flow(r)
        self.free_staging(r)
        self.release_decode(r)
        if status == FAILED_OOM:
            self.happened["failed_oom"] += 1
        if status == COMPLETED:
            assert r.emitted == r.output

    def release_decode(self, r: Request) -> None:
        """Give up the receive-queue place or the reservation, and any pairing still to be made."""
        for d in self.decode:
            for place in (d.queue, d.reserved, d.ready):
                if r in place:
                    place.remove(r)
        if r in self.pairing:
            self.pairing.remove(r)
        r.granted = False

    def free_staging(self, r: Request) -> None:
        if r.staged:
            self.prefill[r.p].staged -= r.staged
            r.staged = 0

    # ---- memory

    def kv(self, r: Request, tokens: int) -> int:
        return tokens * self.cluster.kv_bytes_per_token[r.store]

    def decode_memory(self, d: Decode) -> int:
        """Reservations, and what the active sequences hold in the iteration in flight."""
        held = sum(self.kv(r, r.prompt) for r in d.reserved) + sum(self.kv(r, r.context) for r in d.active)
        return held + (self.kv(d.restoring, d.restoring.context) if d.restoring else 0)

    def colocated_memory(self, h: Colocated) -> int:
        return sum(self.kv(r, r.context) for r in h.active) + sum(self.kv(r, r.target) for r in h.prefilling)

    # ---- transfer

    def start_flow(self, r: Request, t: float) -> None:
        may_send = r.prefilled or (self.cluster.layerwise and r.started)
        if r.flow is not None or not r.granted or not may_send or r.transferred:
            return
        size = float(r.prompt * self.cluster.kv_bytes_per_token[r.q])
        flow = Flow(r, self.cluster.paths[r.p][r.d], size, self.cluster.layers)
        flow.tight = flow.available(t) == 0.0
        r.flow = flow
        self.flows.append(flow)
        self.flows_changed = True
        self.records["flow_start_s"][r.i] = t
        self.happened["flow_before_prefill_end"] += not r.prefilled

    def abort_flow(self, r: Request) -> None:
        """The flow is over, whatever it has sent (also when it is complete)."""
        if r.flow is None:
            return
        r.wire_bytes += r.flow.sent
        r.flow.version += 1
        if r.flow in self.flows:
            self.flows.remove(r.flow)
            self.flows_changed = True
        r.flow = None

    def move_flows(self, dt: float, t: float) -> None:
        for flow in self.flows:
            before = flow.sent
            flow.sent = flow.available(t) if flow.tight else min(flow.sent + flow.rate * dt, flow.available(t))
            assert flow.sent >= before * (1 - 1e-12)
            for port in flow.ports:
                self.port_bytes[port] += flow.sent - before

    def solve(self, now: float) -> None:
        """New rates for all flows, and the next event of each."""
        if not self.flows_changed:
            return
        self.flows_changed = False
        capacity = [port.bytes_per_s for port in self.cluster.ports]
        caps = [flow.cap(now) for flow in self.flows]
        if self.cluster.contention:
            rates = fair_rates([flow.ports for flow in self.flows], caps, capacity)
            for port, most in enumerate(capacity):
                used = sum(rate for rate, flow in zip(rates, self.flows, strict=True) if port in flow.ports)
                assert used <= most * (1 + 1e-9), "port above its capacity"
                self.happened["shared_port"] += (
                    sum(rate > 0 and port in flow.ports for rate, flow in zip(rates, self.flows, strict=True)) > 1
                )
        else:
            rates = [
                min(cap, *(capacity[port] for port in flow.ports)) for cap, flow in zip(caps, self.flows, strict=True)
            ]
        for flow, rate, cap in zip(self.flows, rates, caps, strict=True):
            flow.rate = rate
            if flow.tight and rate < cap * (1 - 1e-12):
                flow.tight = False  # a backlog begins to grow
            flow.version += 1
            self.predict(flow, now)

    def predict(self, flow: Flow, now: float) -> None:
        if flow.r.prefilled:
            self.push(now + (flow.size - flow.sent) / flow.rate, "transfer", flow.r.i, flow, flow.version, "sent")
            return
        first = flow.first_layer_end()
        if first is not None and now < first:
            self.push(first, "transfer", flow.r.i, flow, flow.version, "first layer")
        drain = flow.rate - flow.production(now)
        if not flow.tight and drain > 0.0:
            gone = now + max(flow.available(now) - flow.sent, 0.0) / drain
            self.push(gone, "transfer", flow.r.i, flow, flow.version, "no backlog")

    def flow_event(self, flow: Flow, what: str, t: float) -> None:
        if what == "end":
            self.end_transfer(flow, t)
            return
        self.flows_changed = True
        if what == "no backlog":
            self.happened["tight"] += 1
            flow.tight = True
        if what == "sent":
            for port in flow.ports:
                self.port_bytes[port] += flow.size - flow.sent
            flow.sent = flow.size
            flow.on_wire = False
            flow.version += 1
            self.flows.remove(flow)
            late = flow.latency + flow.unsent_at_prefill_end * flow.cost
            self.push(t + late, "transfer", flow.r.i, flow, flow.version, "end")

    def end_transfer(self, flow: Flow, t: float) -> None:
        r = flow.r
        self.see("transfer")
        self.abort_flow(r)
        r.transferred = True
        self.records["transfer_end_s"][r.i] = t
        self.free_staging(r)
        self.decode[r.d].ready.append(r)
