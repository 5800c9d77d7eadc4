"""Turns a scenario into a `topology.Cluster`: names become numbers, defaults get values, paths get ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from pdenv import catalog, latency
from pdenv.scenario_parts import AnyGroup, DecodeGroup, Group, InlineProfile, PrefillGroup
from pdenv.topology import (
    BINDING_MODES,
    PRECISIONS,
    RESERVE_MODES,
    TIERS,
    Cluster,
    ColocatedInstance,
    DecodeInstance,
    Path,
    Port,
    PrefillInstance,
    Profile,
    StepLaw,
)

if TYPE_CHECKING:
    from pdenv.scenario import Scenario

PdMember = TypeVar("PdMember", PrefillGroup, DecodeGroup)

_NIC, _RACK, _SPINE, _NVLINK = (TIERS.index(tier) for tier in TIERS)


# ---- what a group resolves to --------------------------------------------------------------------


def model_shape(scenario: Scenario) -> tuple[int, tuple[int, ...]]:
    """Layers, and KV bytes of a token for each precision."""
    inline = scenario.models.get(scenario.model)
    if inline is None:
        model = catalog.model(scenario.model)
        return model.layers, tuple(model.kv_bytes_per_token)
    return inline.layers, tuple(inline.kv_bytes_per_token[q] for q in PRECISIONS)  # type: ignore[index]


def precision_of(group: AnyGroup) -> str:
    """The precision of the KV that an instance holds."""
    return getattr(group, "kv", None) or getattr(group, "store")  # noqa: B009


def capacity_bytes(scenario: Scenario, group: AnyGroup) -> int:
    """KV memory of one instance, bytes: as given, else what HBM leaves beside the weights."""
    given = getattr(group, "staging_bytes", None) or getattr(group, "kv_bytes", None)
    if given is not None:
        return given
    return latency.kv_capacity_bytes(scenario.model, group.gpu, group.tensor_parallel, group.weights)


def profile_of(scenario: Scenario, group: AnyGroup) -> Profile:
    """Step times of one instance: inline where the group names a profile, else the catalog's."""
    if group.profile is not None:
        profile = _inline_profile(group.profile, scenario.profiles[group.profile])
    else:
        profile = latency.profile(
            scenario.model, group.gpu, group.tensor_parallel, weights=group.weights, kv=precision_of(group)
        )
    piggyback = getattr(group, "piggyback", None)
    return profile if piggyback is None else replace(profile, piggyback=piggyback)


def _inline_profile(name: str, inline: InlineProfile) -> Profile:
    prefill, decode = inline.prefill, inline.decode
    slopes = tuple(decode.c_s[q] for q in PRECISIONS)  # type: ignore[index]
    return Profile(
        prefill=StepLaw(prefill.a_s, prefill.b_s, (prefill.c_s, 0.0, 0.0, 0.0), prefill.table_x, prefill.table_s),
        decode=StepLaw(decode.a_s, decode.b_s, slopes, decode.table_x, decode.table_s),
        piggyback=inline.piggyback,
        name=name,
    )


def rack_of(scenario: Scenario, group: Group, i: int) -> int:
    """Index of the rack of instance i of a group, in the order of `network.racks`."""
    name = group.racks[i] if group.racks else group.rack
    return list(scenario.network.racks).index(name) if name is not None else 0


def gpu_count(scenario: Scenario, active_only: bool) -> int:
    """GPUs of all instances, or of those that are on at the start."""
    total = 0
    for group in (*scenario.prefill, *scenario.decode, *scenario.colocated):
        active = getattr(group, "active", None) if active_only else None
        total += (group.count if active is None else active) * group.tensor_parallel
    return total


# ---- instances -----------------------------------------------------------------------------------


class _Profiles:
    """Each distinct profile once, in order of first use."""

    def __init__(self) -> None:
        self.index: dict[Profile, int] = {}

    def add(self, profile: Profile) -> int:
        return self.index.setdefault(profile, len(self.index))


def _hardware(group: Group) -> dict[str, float | int]:
    """Price and power of one instance."""
    gpu = catalog.gpu(group.gpu)
    n = group.tensor_parallel
    return {
        "gpus": n,
        "usd_per_hour": gpu.usd_per_hour * n,
        "busy_w": gpu.tdp_w * n,
        "idle_w": gpu.idle_w * n,
    }


def _prefill(scenario: Scenario, profiles: _Profiles) -> Iterator[PrefillInstance]:
    kv = dict(zip(PRECISIONS, model_shape(scenario)[1], strict=True))
    for group in scenario.prefill:
        base = PrefillInstance(
            profile=profiles.add(profile_of(scenario, group)),
            staging_bytes=capacity_bytes(scenario, group),
            kv_bytes_per_token=kv[group.kv],
            kv_precision=PRECISIONS.index(group.kv),
            max_batch_tokens=group.max_batch_tokens,
            max_batch_requests=group.max_batch_requests,
            chunked=group.chunked,
            sjf=group.order == "sjf",
            prefix_cache_blocks=group.prefix_cache_tokens // scenario.kv.block_tokens,
            startup_s=group.startup_s,
            **_hardware(group),  # type: ignore[arg-type]
        )
        for i in range(group.count):
            on = group.active is None or i < group.active
            yield replace(base, active=on, rack=rack_of(scenario, group, i))


def _decode(scenario: Scenario, profiles: _Profiles) -> Iterator[DecodeInstance]:
    for group in scenario.decode:
        base = DecodeInstance(
            profile=profiles.add(profile_of(scenario, group)),
            kv_bytes=capacity_bytes(scenario, group),
            store_precision=PRECISIONS.index(group.store),
            max_batch=group.max_batch,
            startup_s=group.startup_s,
            **_hardware(group),  # type: ignore[arg-type]
        )
        for i in range(group.count):
            on = group.active is None or i < group.active
            yield replace(base, active=on, rack=rack_of(scenario, group, i))


def _colocated(scenario: Scenario, profiles: _Profiles) -> Iterator[ColocatedInstance]:
    for group in scenario.colocated:
        base = ColocatedInstance(
            profile=profiles.add(profile_of(scenario, group)),
            kv_bytes=capacity_bytes(scenario, group),
            store_precision=PRECISIONS.index(group.store),
            max_batch=group.max_batch,
            max_batch_tokens=group.max_batch_tokens,
            prefix_cache_blocks=group.prefix_cache_tokens // scenario.kv.block_tokens,
            **_hardware(group),  # type: ignore[arg-type]
        )
        for i in range(group.count):
            yield replace(base, rack=rack_of(scenario, group, i))


# ---- ports and paths -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Endpoint(Generic[PdMember]):
    """One end of the paths of an instance; ports are indices into the fabric's."""

    group: PdMember
    rack: int
    nic: int
    nvlink: int | None


class _Fabric:
    """The ports of a cluster and the paths over them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.network = scenario.network
        self.link = catalog.link(self.network.link)
        self.nvlink = catalog.link("nvlink")
        given = self.network.efficiency
        self.efficiency = self.link.efficiency if given is None else given
        op_s = self.link.op_s if self.network.op_s is None else self.network.op_s
        self.op_s_per_byte = op_s / (self.network.block_bytes or self.link.block_bytes)
        self.nvlink_op_s_per_byte = self.nvlink.op_s / self.nvlink.block_bytes
        self.costs: dict[tuple, tuple[float, ...]] = {}
        self.ports: list[Port] = []
        self.up: dict[int, int] = {}
        self.down: dict[int, int] = {}
        self.spine: int | None = None

    def port(self, name: str, tier: int, line_bytes_per_s: float) -> int:
        efficiency = self.nvlink.efficiency if tier == _NVLINK else self.efficiency
        self.ports.append(Port(name, tier, line_bytes_per_s * efficiency, line_bytes_per_s))
        return len(self.ports) - 1

    def add_racks(self) -> None:
        """One port for each rack link and for the spine, where a rate is given."""
        for i, (name, rack) in enumerate(self.network.racks.items()):
            if rack.uplink_bytes_per_s is not None:
                self.up[i] = self.port(f"{name}.up", _RACK, rack.uplink_bytes_per_s)
            if rack.downlink_bytes_per_s is not None:
                self.down[i] = self.port(f"{name}.down", _RACK, rack.downlink_bytes_per_s)
        if self.network.spine_bytes_per_s is not None:
            self.spine = self.port("spine", _SPINE, self.network.spine_bytes_per_s)

    def add_endpoints(self, groups: Sequence[PdMember], side: str) -> list[_Endpoint[PdMember]]:
        """A NIC port for each instance, and an NVLink port for members of a domain."""
        pool = "prefill" if side == "out" else "decode"
        ends: list[_Endpoint[PdMember]] = []
        for group in groups:
            gpu = catalog.gpu(group.gpu)
            nic = group.nic_bytes_per_s or gpu.nic_bytes_per_s * group.tensor_parallel
            for i in range(group.count):
                name = f"{pool}-{len(ends)}"
                nvlink = None
                if group.nvlink_domain is not None:
                    rate = gpu.nvlink_bytes_per_s * group.tensor_parallel
                    nvlink = self.port(f"{name}.nvlink_{side}", _NVLINK, rate)
                nic_port = self.port(f"{name}.nic_{side}", _NIC, nic)
                ends.append(_Endpoint(group, rack_of(self.scenario, group, i), nic_port, nvlink))
        return ends

    def path(self, p: _Endpoint[PrefillGroup], d: _Endpoint[DecodeGroup]) -> Path:
        """NVLink inside a domain, NIC to NIC inside a rack, else over the rack links and the spine."""
        domain = p.group.nvlink_domain
        if domain is not None and domain == d.group.nvlink_domain:
            assert p.nvlink is not None and d.nvlink is not None
            cost = self._cost(p.group, d.group, self.nvlink_op_s_per_byte)
            return Path((p.nvlink, d.nvlink), self.nvlink.latency_s, cost, _NVLINK)
        cost = self._cost(p.group, d.group, self.op_s_per_byte)
        latency_s = self.link.latency_s if self.network.latency_s is None else self.network.latency_s
        if p.rack == d.rack:
            return Path((p.nic, d.nic), latency_s, cost, _NIC)
        middle = (self.up.get(p.rack), self.spine, self.down.get(d.rack))
        ports = (p.nic, *(port for port in middle if port is not None), d.nic)
        tier = _RACK if self.spine is None else _SPINE
        return Path(ports, latency_s + self.network.cross_rack_latency_s, cost, tier)

    def _cost(self, p: PrefillGroup, d: DecodeGroup, op_s_per_byte: float) -> tuple[float, ...]:
        """Seconds per wire byte, for each wire precision.

        Unequal tensor parallelism splits every block into as many operations as the ratio of the degrees.
        Converting costs 1 / rate per byte of the wire precision, at each end whose precision differs from it.
        """
        key = (p.tensor_parallel, p.kv, d.tensor_parallel, d.store, op_s_per_byte)
        if key in self.costs:
            return self.costs[key]
        kv = self.scenario.kv
        degrees = (p.tensor_parallel, d.tensor_parallel)
        posting = op_s_per_byte * max(degrees) / min(degrees)
        costs = []
        for wire in PRECISIONS:
            cost = posting
            if wire != p.kv:
                cost += 1.0 / kv.quantise_bytes_per_s
            if wire != d.store and not kv.mixed_store:
                cost += 1.0 / kv.dequantise_bytes_per_s
            costs.append(cost)
        return self.costs.setdefault(key, tuple(costs))


# ---- the cluster ---------------------------------------------------------------------------------


def build_cluster(scenario: Scenario) -> Cluster:
    """The cluster of a validated scenario. Instances are numbered in the order of their groups."""
    layers, kv_bytes_per_token = model_shape(scenario)
    profiles = _Profiles()
    prefill = tuple(_prefill(scenario, profiles))
    decode = tuple(_decode(scenario, profiles))
    colocated = tuple(_colocated(scenario, profiles))

    fabric = _Fabric(scenario)
    sources = fabric.add_endpoints(scenario.prefill, "out")
    sinks = fabric.add_endpoints(scenario.decode, "in")
    fabric.add_racks()
    paths = tuple(tuple(fabric.path(p, d) for d in sinks) for p in sources)

    kv, control, scaling = scenario.kv, scenario.control, scenario.scaling
    budget = gpu_count(scenario, active_only=False) if scaling.gpu_budget is None else scaling.gpu_budget
    return Cluster(
        layers=layers,
        kv_bytes_per_token=kv_bytes_per_token,
        profiles=tuple(profiles.index),
        prefill=prefill,
        decode=decode,
        colocated=colocated,
        ports=tuple(fabric.ports),
        paths=paths,
        block_tokens=kv.block_tokens,
        reserve=RESERVE_MODES.index(kv.reserve),
        binding=BINDING_MODES.index(kv.decode_binding),
        decode_first=kv.first_token == "decode",
        layerwise=scenario.network.overlap == "layer_wise",
        contention=scenario.network.contention == "max_min",
        swap=kv.preemption == "swap",
        swap_bytes_per_s=kv.swap_bytes_per_s,
        mixed_store=kv.mixed_store,
        receive_bypass=kv.receive_bypass,
        control_plane_delay_s=control.control_plane_delay_s,
        scrape_interval_s=control.scrape_interval_s,
        scrape_delay_s=control.scrape_delay_s,
        hold_max_s=control.hold_max_s,
        allow_reject=control.allow_reject,
        scaling_interval_s=scaling.interval_s,
        gpu_budget=budget,
        flip_delay_s=scaling.flip_delay_s,
        drain_max_s=scaling.drain_max_s,
        tier_precisions=tuple(tier_mask(tier.precisions) for tier in scenario.quality.tiers.values()),
        names={
            "prefill": [f"prefill-{i}" for i in range(len(prefill))],
            "decode": [f"decode-{i}" for i in range(len(decode))],
            "colocated": [f"colocated-{i}" for i in range(len(colocated))],
            "racks": list(scenario.network.racks) or ["rack"],
        },
    )


def tier_mask(precisions: tuple[str, ...]) -> int:
    """Bit mask over `PRECISIONS`."""
    return sum(1 << PRECISIONS.index(precision) for precision in set(precisions))
