"""What cannot be: rules between the keys of a scenario, and against the catalog.

Each rule yields (place, message); a message says what is wrong and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pdenv import catalog
from pdenv.build_cluster import capacity_bytes, gpu_count, model_shape, precision_of, profile_of, tier_mask
from pdenv.errors import InputError, nearest
from pdenv.fields import Loc
from pdenv.scenario_parts import AnyGroup, DecodeGroup, DecodeLaw, PrefillGroup, PrefillLaw
from pdenv.topology import PRECISIONS

if TYPE_CHECKING:
    from pdenv.scenario import Scenario

Problem = tuple[Loc, str]
_POOLS = ("prefill", "decode", "colocated")
GPUS_PER_NODE = 8


class ScenarioProblems(ValueError):
    """Why a scenario is impossible, each with its place in the tree."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{'.'.join(map(str, loc))}: {message}" for loc, message in problems))


def check(scenario: Scenario) -> list[Problem]:
    """Every problem; those that need resolved names come only when all names resolve."""
    found = [*_pools(scenario), *_names(scenario), *_laws(scenario), *_groups(scenario), *_rules(scenario)]
    if not found:
        found = [*_resolved(scenario)]
    if not found:
        found = [*_memory(scenario), *_fixed_lengths(scenario), *_tiers(scenario)]
    return found


def _all_groups(scenario: Scenario) -> Iterator[tuple[Loc, AnyGroup]]:
    for pool in _POOLS:
        for i, group in enumerate(getattr(scenario, pool)):
            yield (pool, i), group


def _active(groups: tuple[PrefillGroup, ...] | tuple[DecodeGroup, ...]) -> int:
    return sum(group.count if group.active is None else group.active for group in groups)


# ---- which pools there are -----------------------------------------------------------------------


def _pools(scenario: Scenario) -> Iterator[Problem]:
    prefill, decode = scenario.prefill, scenario.decode
    if not decode and not scenario.colocated:
        yield (
            ("decode",),
            "there is no decode and no co-located instance; add a group under decode or colocated",
        )
    elif prefill and not decode:
        yield ("prefill",), "prefill instances have no decode instance to send to; add a group under decode"
    elif decode and not prefill:
        yield (
            ("decode",),
            "decode instances have no prefill instance to receive from; add a group under prefill",
        )
    for pool, groups in (("prefill", prefill), ("decode", decode)):
        if groups and _active(groups) == 0 and all(g.active is None or g.active <= g.count for g in groups):
            yield (pool, 0, "active"), f"no {pool} instance is active at the start; set active to 1 or more"


def _names(scenario: Scenario) -> Iterator[Problem]:
    if scenario.model not in scenario.models:
        names = (*scenario.models, *catalog.model_names())
        yield from _known(("model",), "model", scenario.model, names)
    yield from _known(("network", "link"), "link", scenario.network.link, catalog.link_names())
    for loc, group in _all_groups(scenario):
        yield from _known((*loc, "gpu"), "GPU", group.gpu, catalog.gpu_names())
        if group.profile is not None and group.profile not in scenario.profiles:
            remedy = nearest(group.profile, scenario.profiles) if scenario.profiles else "; define it under profiles"
            yield (*loc, "profile"), f"unknown profile '{group.profile}'{remedy}"


def _known(loc: Loc, kind: str, name: str, names: tuple[str, ...]) -> Iterator[Problem]:
    if name not in names:
        yield loc, f"unknown {kind} '{name}'{nearest(name, names)}"


# ---- step laws -----------------------------------------------------------------------------------


def _laws(scenario: Scenario) -> Iterator[Problem]:
    for name, profile in scenario.profiles.items():
        for step in ("prefill", "decode"):
            for key, message in _law(getattr(profile, step)):
                yield ("profiles", name, step, key), message
        missing = [q for q in PRECISIONS if q not in profile.decode.c_s]
        if missing:
            yield (
                ("profiles", name, "decode", "c_s"),
                f"no slope for {', '.join(missing)}; give all of {', '.join(PRECISIONS)}, or one number",
            )


def _law(law: PrefillLaw | DecodeLaw) -> Iterator[tuple[str, str]]:
    x, s = law.table_x, law.table_s
    if len(x) != len(s):
        yield "table_s", f"has {len(s)} values for {len(x)} of table_x; give one for each"
    elif len(x) == 1:
        yield "table_x", "has one point; give at least two, or a_s and b_s instead"
    elif x and (x[0] < 0 or any(b <= a for a, b in pairwise(x))):
        yield "table_x", "must be 0 or more and strictly increasing"
    elif any(seconds <= 0 for seconds in s):
        yield "table_s", "must be above 0 s everywhere"
    elif x and (law.a_s or law.b_s):
        yield "table_x", "a table replaces a_s and b_s; give one or the other"


# ---- groups --------------------------------------------------------------------------------------


def _groups(scenario: Scenario) -> Iterator[Problem]:
    for loc, group in _all_groups(scenario):
        if group.tensor_parallel not in (1, 2, 4, 8):
            yield (
                (*loc, "tensor_parallel"),
                f"is {group.tensor_parallel}; a node has {GPUS_PER_NODE} GPUs: use 1, 2, 4 or 8",
            )
        active = getattr(group, "active", None)
        if active is not None and active > group.count:
            yield (*loc, "active"), f"is {active}, more than count = {group.count}; lower it or raise count"
        yield from _racks(scenario, loc, group)
        yield from _ports(loc, group)
    for i, group in enumerate(scenario.colocated):
        if group.max_batch_tokens <= group.max_batch:
            yield (
                ("colocated", i, "max_batch_tokens"),
                f"is {group.max_batch_tokens}; it must exceed max_batch = {group.max_batch}, "
                "or a full batch leaves no room for prefill",
            )


def _racks(scenario: Scenario, loc: Loc, group: AnyGroup) -> Iterator[Problem]:
    known = scenario.network.racks
    if group.rack is not None and group.racks is not None:
        yield (*loc, "racks"), "rack and racks are both given; keep one"
    elif group.racks is not None and len(group.racks) != group.count:
        yield (
            (*loc, "racks"),
            f"names {len(group.racks)} racks for {group.count} instances; give one for each",
        )
    elif group.rack is None and group.racks is None and len(known) > 1:
        yield (*loc, "rack"), f"is missing; say in which rack it stands: {', '.join(known)}"
    for name in dict.fromkeys(group.racks or ((group.rack,) if group.rack is not None else ())):
        if name not in known:
            remedy = nearest(name, known) if known else "; define it under network.racks"
            yield (*loc, "racks" if group.racks else "rack"), f"unknown rack '{name}'{remedy}"


def _ports(loc: Loc, group: AnyGroup) -> Iterator[Problem]:
    if loc[0] == "colocated" or group.gpu not in catalog.gpu_names():
        return
    gpu = catalog.gpu(group.gpu)
    if getattr(group, "nic_bytes_per_s") is None and gpu.nic_bytes_per_s <= 0:  # noqa: B009
        yield (
            (*loc, "nic_bytes_per_s"),
            f"the catalog gives no NIC for {group.gpu}; give a rate in bytes/s above 0",
        )
    if getattr(group, "nvlink_domain") is not None and gpu.nvlink_bytes_per_s <= 0:  # noqa: B009
        yield (*loc, "nvlink_domain"), f"{group.gpu} has no NVLink; remove this key or choose another GPU"


# ---- rules between sections ----------------------------------------------------------------------


def _rules(scenario: Scenario) -> Iterator[Problem]:
    kv, control = scenario.kv, scenario.control
    if kv.decode_binding == "prefill_end":
        late = "the decode instance is only known at prefill end (kv.decode_binding: prefill_end)"
        if scenario.network.overlap == "layer_wise":
            yield ("network", "overlap"), f"cannot be layer_wise: {late}; use blocking, or bind at dispatch"
        if kv.reserve != "prefill_end":
            yield ("kv", "reserve"), f"cannot be {kv.reserve}: {late}; use prefill_end, or bind at dispatch"
    elif scenario.network.overlap == "layer_wise" and kv.reserve == "prefill_end" and scenario.decode:
        yield (
            ("kv", "reserve"),
            "is prefill_end, so that layer_wise transfer would overlap nothing; use prefill_start, "
            "or network.overlap: blocking",
        )
    if control.scrape_delay_s > 0 and control.scrape_delay_s >= control.scrape_interval_s:
        yield (
            ("control", "scrape_delay_s"),
            f"is {control.scrape_delay_s:g}; it must be below scrape_interval_s = {control.scrape_interval_s:g}",
        )
    total = sum(tier.share for tier in scenario.quality.tiers.values())
    if abs(total - 1.0) > 1e-6:
        yield ("quality", "tiers"), f"shares sum to {total:g}; they must sum to 1"
    cost = scenario.cost
    if cost.mode == "standard" and cost.ttft_slope_per_s == 0:
        yield (
            ("cost", "ttft_slope_per_s"),
            "is 0; with mode: standard waiting for the first token would cost nothing; give a slope above 0",
        )
    if control.allow_reject and cost.rejection < cost.ttft_step + cost.tpot_step:
        yield (
            ("cost", "rejection"),
            f"is {cost.rejection:g}; it must be at least ttft_step + tpot_step = "
            f"{cost.ttft_step + cost.tpot_step:g}, or rejecting pays",
        )
    budget, active = scenario.scaling.gpu_budget, gpu_count(scenario, active_only=True)
    if budget is not None and budget < active:
        yield (
            ("scaling", "gpu_budget"),
            f"is {budget}, but {active} GPUs are active at the start; raise it or lower active",
        )


# ---- with names resolved -------------------------------------------------------------------------


def _resolved(scenario: Scenario) -> Iterator[Problem]:
    inline = scenario.model in scenario.models
    if inline:
        missing = [q for q in PRECISIONS if q not in scenario.models[scenario.model].kv_bytes_per_token]
        if missing:
            place: Loc = ("models", scenario.model, "kv_bytes_per_token")
            yield (
                place,
                f"no size for {', '.join(missing)}; give all of {', '.join(PRECISIONS)}, or the BF16 size",
            )
    for loc, group in _all_groups(scenario):
        memory = "staging_bytes" if loc[0] == "prefill" else "kv_bytes"
        given = getattr(group, memory)
        hbm = catalog.gpu(group.gpu).hbm_bytes * group.tensor_parallel
        if given is not None and given > hbm:
            yield (
                (*loc, memory),
                f"is {given / 1e9:g} GB, more than the {hbm / 1e9:g} GB of {group.tensor_parallel} × {group.gpu}",
            )
        if inline and given is None:
            yield (
                (*loc, memory),
                f"is needed: the catalog does not know what model '{scenario.model}' leaves of HBM",
            )
        if inline and group.profile is None:
            yield (*loc, "profile"), f"is needed: the catalog has no step times for model '{scenario.model}'"
        if not inline:
            yield from _from_catalog(scenario, loc, group)


def _from_catalog(scenario: Scenario, loc: Loc, group: AnyGroup) -> Iterator[Problem]:
    for key, look_up in (("profile", profile_of), ("tensor_parallel", capacity_bytes)):
        try:
            look_up(scenario, group)
        except InputError as error:
            yield (*loc, key), str(error)


def _memory(scenario: Scenario) -> Iterator[Problem]:
    kv = dict(zip(PRECISIONS, model_shape(scenario)[1], strict=True))
    for loc, group in _all_groups(scenario):
        capacity, token = capacity_bytes(scenario, group), kv[precision_of(group)]
        memory = "staging_bytes" if loc[0] == "prefill" else "kv_bytes"
        if capacity < token:
            yield (
                (*loc, memory),
                f"is {capacity} bytes, less than the {token} bytes of a single token; raise it",
            )
        cached = getattr(group, "prefix_cache_tokens", 0)
        if cached * token > capacity:
            yield (
                (*loc, "prefix_cache_tokens"),
                f"needs {cached * token / 1e9:g} GB of KV, more than the {capacity / 1e9:g} GB of the "
                f"instance; at most {capacity // token}",
            )


def _fixed_lengths(scenario: Scenario) -> Iterator[Problem]:
    """Requests that are all alike must fit somewhere, with the tokens that they will emit."""
    lengths = scenario.workload.lengths
    if scenario.workload.kind == "trace" or lengths is None or lengths.kind != "fixed":
        return
    prompt, output = lengths.prompt_tokens, lengths.output_tokens
    staging = _largest_tokens(scenario, scenario.prefill)
    decode_room = _largest_tokens(scenario, scenario.decode) - (output - 1)
    colocated_room = _largest_tokens(scenario, scenario.colocated) - max(output - 1, 1)
    fits = max(min(staging, decode_room), colocated_room, 0)
    if prompt > fits:
        yield (
            ("workload", "lengths", "prompt_tokens"),
            f"is {prompt}: its KV with {output} output tokens fits no instance; use at most {fits} tokens, "
            "or raise staging_bytes and kv_bytes",
        )


def _largest_tokens(scenario: Scenario, groups: Sequence[AnyGroup]) -> int:
    """Most tokens that one instance of these groups can hold."""
    kv = dict(zip(PRECISIONS, model_shape(scenario)[1], strict=True))
    return max((capacity_bytes(scenario, group) // kv[precision_of(group)] for group in groups), default=0)


def _tiers(scenario: Scenario) -> Iterator[Problem]:
    holders: list[AnyGroup] = [*scenario.decode, *scenario.colocated]
    stores = {precision_of(group) for group in holders}
    if scenario.kv.mixed_store and scenario.decode:
        stores = set(PRECISIONS)
    for name, tier in scenario.quality.tiers.items():
        if tier.share > 0 and not tier_mask(tier.precisions) & tier_mask(tuple(stores)):
            yield (
                ("quality", "tiers", name, "precisions"),
                f"no instance stores {' or '.join(tier.precisions)}, so nobody can serve this tier; add an "
                f"instance with store: {tier.precisions[0]}, or allow {' or '.join(sorted(stores))}",
            )
