"""Building, viewing, growing and copying the engine's block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pdenv.sim import events, lists
from pdenv.sim.layout import ALIGNMENT, JIT, PythonBlock
from pdenv.sim.narrow import mark_narrow_ports
from pdenv.sim.records import GAP_BINS
from pdenv.sim.state import (
    ACTIVE,
    EXTERNAL,
    HEADER,
    INTERNAL,
    MAX_HOPS,
    MAX_KNOTS,
    N_TERMS,
    OFF,
    PATH,
    PROFILE,
)
from pdenv.topology import Cluster, ColocatedInstance, DecodeInstance, StepLaw


class Block:
    """The bytes of one environment, the external arrays it points to, and named views of both.

    Attributes:
        bytes: (SIZE,) uint8, everything that changes; copying it copies the environment.
        views: name -> structured array over `bytes` or an external array.
    """

    def __init__(self, sizes: dict[str, int], external: dict[str, np.ndarray], aliases: dict[str, str]) -> None:
        self.sizes = sizes
        self.external = external
        self.aliases = aliases
        offset = _round_up(HEADER.itemsize)
        self.offsets: dict[str, int] = {}
        for name, dtype in INTERNAL.items():
            if name in aliases:
                continue
            self.offsets[name] = offset
            offset += _round_up(dtype.itemsize * sizes[name])
        for name, target in aliases.items():
            self.offsets[name] = self.offsets[target]
        self._memory = np.zeros(offset + ALIGNMENT, np.uint8)
        start = -self._memory.ctypes.data % ALIGNMENT
        self.bytes = self._memory[start : start + offset]
        self.views = {"header": self.bytes[: HEADER.itemsize].view(HEADER)}
        for name, dtype in INTERNAL.items():
            at = self.offsets[name]
            self.views[name] = self.bytes[at : at + dtype.itemsize * sizes[aliases.get(name, name)]].view(dtype)
        self.views.update(external)
        self.point()

    @property
    def header(self) -> np.void:
        return self.views["header"][0]

    def point(self) -> None:
        """Write offsets and addresses into the header."""
        h = self.header
        for name, offset in self.offsets.items():
            h[f"at_{name}"] = offset
        for name, array in self.external.items():
            h[f"at_{name}"] = array.ctypes.data
        h["size"] = self.bytes.size

    def handle(self):
        """What kernels take as `S`."""
        return np.int64(self.bytes.ctypes.data) if JIT else PythonBlock(self.views)

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": (self.sizes, self.external, self.aliases), "bytes": self.bytes.tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])  # type: ignore[misc]
        self.bytes[:] = np.frombuffer(state["bytes"], np.uint8)
        self.point()

    def copied(self, external: dict[str, np.ndarray]) -> Block:
        """The same state in memory of its own, one copy of its bytes; external arrays are replaced by those given."""
        other = Block(self.sizes, {**self.external, **external}, self.aliases)
        other.bytes[:] = self.bytes
        other.point()
        return other

    def grown(self, pool: int) -> Block:
        """The same state with room for `pool` requests in flight."""
        sizes = dict(self.sizes)
        for name in POOL_SIZED:
            sizes[name] = pool
        if self.header["due_rows"]:
            sizes["due"] = DUES_EACH * pool
        other = Block(sizes, self.external, self.aliases)
        for name in INTERNAL:
            if name not in self.aliases:
                view = self.views[name]
                other.views[name][: view.shape[0]] = view
        other.views["header"][:] = self.views["header"]
        other.point()
        other.header["due_rows"] = sizes["due"]
        link_free_slots(other, int(self.header["pool"]))
        return other


def handles(blocks: Sequence[Block]):
    """What kernels that run many environments take: `(n,)` addresses."""
    if JIT:
        return np.array([block.bytes.ctypes.data for block in blocks], np.int64)
    return [block.handle() for block in blocks]


#: Kinds with one row a request slot.
POOL_SIZED = ("request", "flow", "flow_list", "dirty_flow")

#: Rows for dues, a request slot: at most two are live, and stale ones are dropped when it is full.
DUES_EACH = 4


def _round_up(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def link_free_slots(block: Block, first: int) -> None:
    """Chain the request slots from `first` on into the free list (which ends in what was free before)."""
    request = block.views["request"]
    h = block.header
    pool = request.shape[0]
    request["id"][first:] = -1
    request["link_next"][first:, 0] = np.arange(first + 1, pool + 1)
    request["link_next"][pool - 1, 0] = h["free"] if first > 0 else -1
    h["free"] = first
    h["pool"] = pool


def _fill_law(row: np.void, kind: str, law: StepLaw) -> None:
    if len(law.table_x) > MAX_KNOTS:
        raise ValueError(f"a step-time table has {len(law.table_x)} knots; at most {MAX_KNOTS}")
    row[f"{kind}_a"] = law.a_s
    row[f"{kind}_b"] = law.b_s
    row[f"{kind}_c"] = law.c_s[0] if kind == "prefill" else law.c_s
    row[f"{kind}_knots"] = len(law.table_x)
    row[f"{kind}_x"][: len(law.table_x)] = law.table_x
    row[f"{kind}_y"][: len(law.table_s)] = law.table_s


def profile_rows(cluster: Cluster) -> np.ndarray:
    """(profiles,) PROFILE."""
    rows = np.zeros(len(cluster.profiles), PROFILE)
    for row, profile in zip(rows, cluster.profiles, strict=True):
        _fill_law(row, "prefill", profile.prefill)
        _fill_law(row, "decode", profile.decode)
        row["piggyback"] = profile.piggyback
    return rows


def path_rows(cluster: Cluster) -> np.ndarray:
    """(P·D,) PATH, at least one row."""
    rows = np.zeros(max(len(cluster.prefill) * len(cluster.decode), 1), PATH)
    rows["port"] = -1
    capacity = [port.bytes_per_s for port in cluster.ports]
    n_decode = len(cluster.decode)
    for p, ways in enumerate(cluster.paths):
        for d, way in enumerate(ways):
            if not 1 <= len(way.ports) <= MAX_HOPS:
                raise ValueError(f"path {p}-{d} has {len(way.ports)} ports; 1 to {MAX_HOPS}")
            row = rows[p * n_decode + d]
            row["latency_s"] = way.latency_s
            row["smallest"] = min(capacity[k] for k in way.ports)
            row["cost"] = way.cost_s_per_byte
            row["port"][: len(way.ports)] = way.ports
            row["hops"] = len(way.ports)
            row["tier"] = way.tier
    if cluster.contention:
        mark_narrow_ports(rows, np.array(capacity))
    return rows


def _batches(cluster: Cluster) -> list[DecodeInstance | ColocatedInstance]:
    return [*cluster.decode, *cluster.colocated]


def _cache_sizes(cluster: Cluster) -> list[tuple[int, int]]:
    """(blocks, hash cells) of each prefix cache: prefill instances, then co-located."""
    blocks = [it.prefix_cache_blocks for it in cluster.prefill]
    blocks += [it.prefix_cache_blocks for it in cluster.colocated]
    return [(n, 1 << (2 * n).bit_length() if n else 0) for n in blocks]


def build_block(cluster: Cluster, external: dict[str, np.ndarray], pool: int, accruing: bool = False) -> Block:
    """A block at time 0: everything empty, initially active instances ACTIVE; with room to accrue cost, or not."""
    n_prefill, n_decode, n_colocated = len(cluster.prefill), len(cluster.decode), len(cluster.colocated)
    n_batches = n_decode + n_colocated
    n_loads = max(n_prefill + n_batches, 1)
    n_slots = events.count_slots(n_prefill, n_decode, n_colocated)
    stride = max([it.max_batch for it in _batches(cluster)], default=1)
    caches = _cache_sizes(cluster)
    stale = cluster.scrape_interval_s > 0.0
    sizes = {
        **dict.fromkeys(POOL_SIZED, pool),
        **dict.fromkeys(("load", "seen", "scraped", "ledger", "ledger_at_scrape"), n_loads),
        "queue": lists.count_queues(n_prefill, n_decode, n_colocated),
        "prefill": n_prefill,
        "batch": n_batches,
        "port": len(cluster.ports),
        "slot": n_slots,
        "slot_block": -(-n_slots // events.BLOCK),
        "heap": n_batches * stride,
        "port_list": len(cluster.ports),
        "dirty_port": len(cluster.ports),
        "kicked_prefill": n_prefill,
        "kicked_batch": n_batches,
        "changed_inbound": n_batches,
        "cache": len(caches),
        "cache_node": sum(n for n, _ in caches),
        "cache_cell": sum(cells for _, cells in caches),
        "gap_bin": GAP_BINS,
        "term": N_TERMS,
        "due": DUES_EACH * pool if accruing else 0,
    }
    external = {**external, "profile": profile_rows(cluster), "path": path_rows(cluster)}
    missing = set(EXTERNAL) - set(external)
    assert not missing, missing
    block = Block(sizes, external, {} if stale else {"seen": "load"})
    _fill_header(block, cluster, stride, n_slots)
    _fill_instances(block, cluster)
    _fill_caches(block, caches)
    _fill_events(block, cluster)
    link_free_slots(block, 0)
    return block


def _fill_header(block: Block, cluster: Cluster, stride: int, n_slots: int) -> None:
    h = block.header
    h["n_prefill"] = len(cluster.prefill)
    h["n_decode"] = len(cluster.decode)
    h["n_colocated"] = len(cluster.colocated)
    h["n_ports"] = len(cluster.ports)
    h["n_slots"] = n_slots
    h["heap_stride"] = stride
    h["free"] = -1
    h["instant_t"] = np.nan
    h["n_arrivals"] = h["offer_until"] = block.external["arrival"].shape[0]
    h["measured_to"] = h["measured_left"] = h["n_arrivals"]
    h["due_rows"] = block.sizes["due"]
    h["layers"] = cluster.layers
    h["kv_bytes_per_token"] = cluster.kv_bytes_per_token
    if len(cluster.tier_precisions) > h["tier_precisions"].shape[0]:
        raise ValueError(f"at most {h['tier_precisions'].shape[0]} quality tiers")
    for tier, mask in enumerate(cluster.tier_precisions):
        h["tier_precisions"][tier] = mask
        h["largest_pair"][tier] = largest_pair_tokens(cluster, mask)
        h["largest_colocated"][tier] = largest_colocated_tokens(cluster, mask)
    h["bind_at_prefill_end"] = cluster.binding
    for name in (
        "block_tokens reserve decode_first layerwise swap mixed_store receive_bypass allow_reject "
        "swap_bytes_per_s control_plane_delay_s scrape_interval_s scrape_delay_s hold_max_s scaling_interval_s "
        "flip_delay_s drain_max_s gpu_budget"
    ).split():
        h[name] = getattr(cluster, name)
    h["gpus_on"] = sum(it.gpus for it in cluster.prefill if it.active)
    h["gpus_on"] += sum(it.gpus for it in cluster.decode if it.active)
    h["gpus_on"] += sum(it.gpus for it in cluster.colocated)
    h["idle_decodes"] = sum(it.active for it in cluster.decode)
    h["last_p"] = h["last_d"] = -1


def largest_pair_tokens(cluster: Cluster, mask: int) -> int:
    """Longest prompt that some prefill instance can stage and some decode instance can hold, tokens."""
    staged = max((it.staging_bytes // it.kv_bytes_per_token for it in cluster.prefill), default=0)
    held = 0
    for it in cluster.decode:
        stores = range(4) if cluster.mixed_store else (it.store_precision,)
        for q in stores:
            if mask >> q & 1:
                held = max(held, it.kv_bytes // cluster.kv_bytes_per_token[q])
    return min(staged, held)


def largest_colocated_tokens(cluster: Cluster, mask: int) -> int:
    """Longest prompt that some co-located instance can hold with one token more."""
    return max(
        (
            it.kv_bytes // cluster.kv_bytes_per_token[it.store_precision] - 1
            for it in cluster.colocated
            if mask >> it.store_precision & 1
        ),
        default=0,
    )


def _fill_instances(block: Block, cluster: Cluster) -> None:
    for row, it in zip(block.views["prefill"], cluster.prefill, strict=True):
        row["state"] = ACTIVE if it.active else OFF
        for name in (
            "profile chunked sjf gpus staging_bytes kv_bytes_per_token max_batch_tokens max_batch_requests startup_s"
        ).split():
            row[name] = getattr(it, name)
    batches = block.views["batch"]
    batches["restoring"] = -1
    batches["timer_t"] = np.inf
    for row, serving in zip(batches, _batches(cluster), strict=True):
        row["capacity"] = serving.kv_bytes
        row["store"] = serving.store_precision
        row["max_batch"] = serving.max_batch
        row["profile"] = serving.profile
        row["gpus"] = serving.gpus
    for row, decode in zip(batches, cluster.decode, strict=False):
        row["state"] = ACTIVE if decode.active else OFF
        row["startup_s"] = decode.startup_s
    for row, colocated in zip(batches[len(cluster.decode) :], cluster.colocated, strict=True):
        row["state"] = ACTIVE
        row["colocated"] = 1
        row["max_batch_tokens"] = colocated.max_batch_tokens
    block.views["queue"]["head"] = block.views["queue"]["tail"] = -1
    ports = block.views["port"]
    ports["head"] = ports["tail"] = -1
    ports["capacity"] = [port.bytes_per_s for port in cluster.ports]


def _fill_caches(block: Block, caches: list[tuple[int, int]]) -> None:
    node = cell = 0
    for row, (blocks, cells) in zip(block.views["cache"], caches, strict=True):
        row["capacity"] = blocks
        row["first_node"] = node
        row["first_cell"] = cell
        row["mask"] = cells - 1
        row["newest"] = row["oldest"] = -1
        node += blocks
        cell += cells
    block.views["cache_cell"]["node"] = -1


def _fill_events(block: Block, cluster: Cluster) -> None:
    slots = block.views["slot"]["t"]
    slots[:] = np.inf
    single = len(slots) - events.N_SINGLE
    arrivals = block.external["arrival"]
    if block.header["n_arrivals"]:
        slots[single + events.ARRIVALS] = arrivals["arrival_s"][0]
    if cluster.scrape_interval_s > 0.0:
        slots[single + events.SCRAPE] = cluster.scrape_interval_s
    if cluster.scaling_interval_s > 0.0:
        slots[single + events.CONTROL] = cluster.scaling_interval_s
    tops = block.views["slot_block"]
    for k in range(tops.shape[0]):
        part = slots[k * events.BLOCK : (k + 1) * events.BLOCK]
        best = int(np.argmin(part))
        tops[k] = (part[best], k * events.BLOCK + best)
