"""The scenario: everything that describes a cluster, its workload and its limits, as one validated tree.

A scenario is a YAML file or a preset. It is checked once, when it is loaded; every problem is reported with
file, line, key and what would be right. `docs/scenario.md` lists every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from pdenv.build_cluster import build_cluster
from pdenv.mincut import min_cuts_bytes_per_s
from pdenv.scenario_checks import ScenarioProblems, check
from pdenv.scenario_parts import (
    ColocatedGroup,
    Config,
    Control,
    Cost,
    DecodeGroup,
    InlineModel,
    InlineProfile,
    Kv,
    Network,
    PrefillGroup,
    Quality,
    Scaling,
    Sla,
)
from pdenv.scenario_yaml import read_scenario
from pdenv.topology import Cluster
from pdenv.workload.config import TargetConfig, WindowConfig, WorkloadConfig

PRESETS = Path(__file__).parent / "presets"

#: Tokens of an iteration of a co-located twin. On the presets cost falls from 2,048 on and levels off here, while
#: the tail of TPOT grows with the chunk.
TWIN_BATCH_TOKENS = 8192


class Scenario(Config):
    """A cluster, its workload and its limits.

    Validation raises pydantic's `ValidationError`; `load_scenario` turns it into one line a problem.
    """

    name: str = Field("scenario", min_length=1, max_length=100, description="name in reports (text, no unit)")
    description: str = Field("", description="what the scenario is for (text, no unit)")
    model: str = Field("llama-3.1-70b", description="model of the catalog or name under `models` (no unit)")
    models: dict[str, InlineModel] = Field(default_factory=dict, description="models given here, by name (no unit)")
    profiles: dict[str, InlineProfile] = Field(
        default_factory=dict, description="step times given here, by name (no unit)"
    )
    prefill: tuple[PrefillGroup, ...] = Field((), description="groups of prefill instances (no unit)")
    decode: tuple[DecodeGroup, ...] = Field((), description="groups of decode instances (no unit)")
    colocated: tuple[ColocatedGroup, ...] = Field((), description="groups of co-located instances (no unit)")
    network: Network = Field(default_factory=Network, description="links between instances (no unit)")
    kv: Kv = Field(default_factory=Kv, description="KV memory and conversion (no unit)")
    control: Control = Field(default_factory=Control, description="what the scheduler knows and may do (no unit)")
    scaling: Scaling = Field(default_factory=Scaling, description="elastic pools (no unit)")
    quality: Quality = Field(default_factory=Quality, description="quality tiers (no unit)")
    sla: Sla = Field(default_factory=Sla, description="limits of a good request (no unit)")
    cost: Cost = Field(default_factory=Cost, description="cost of a request (no unit)")
    workload: WorkloadConfig = Field(description="what arrives (no unit)")
    window: WindowConfig = Field(
        default_factory=lambda: WindowConfig(requests=2000),
        description="which requests are measured (no unit)",
    )
    target: TargetConfig = Field(default_factory=TargetConfig, description="load the scenario is made for (no unit)")

    @model_validator(mode="after")
    def _possible(self) -> Scenario:
        problems = check(self)
        if problems:
            raise ScenarioProblems(problems)
        return self

    def cluster(self) -> Cluster:
        """The cluster as plain numbers: groups become instances, names become capacities and paths."""
        return build_cluster(self)

    def min_cut_bytes_per_s(self, line: bool = False) -> float:
        """Largest KV rate from the prefill to the decode pool that the ports carry, bytes/s.

        Counts the instances that are active at the start. 0 without a prefill pool.

        Args:
            line: at line rates instead of achievable rates.
        """
        return min_cuts_bytes_per_s(self.cluster())[line]

    def colocated_twin(self) -> Scenario:
        """The same GPUs without disaggregation: every active prefill and decode instance becomes co-located.

        GPU type, tensor parallelism, weights, racks and prefix cache stay. KV memory is what HBM leaves, or
        the decode group's `kv_bytes` where it gives them; with an inline model HBM tells nothing, so
        `staging_bytes` is taken over as well. Iterations have 4,096 tokens and 256 sequences. Nothing scales.
        """
        members: list[PrefillGroup | DecodeGroup] = [*self.prefill, *self.decode]
        groups = [_as_colocated(self, group) for group in members if group.active != 0]
        own = [group.model_dump(exclude_unset=True) for group in self.colocated]
        tree = self.model_dump(exclude={"prefill", "decode", "colocated"})
        tree["scaling"]["interval_s"] = 0.0
        return Scenario.model_validate({**tree, "colocated": [*groups, *own]})

    def to_yaml(self) -> str:
        """The whole tree, defaults included, as YAML that loads to an equal scenario."""
        tree = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def _as_colocated(scenario: Scenario, group: PrefillGroup | DecodeGroup) -> dict[str, Any]:
    active = group.count if group.active is None else group.active
    tree: dict[str, Any] = {
        **group.model_dump(include={"gpu", "tensor_parallel", "weights", "profile", "rack"}),
        "count": active,
        "racks": group.racks[:active] if group.racks else None,
        "max_batch_tokens": TWIN_BATCH_TOKENS,
    }
    if isinstance(group, DecodeGroup):
        return {**tree, "store": group.store, "kv_bytes": group.kv_bytes}
    inline = scenario.model in scenario.models
    return {
        **tree,
        "store": group.kv,
        "kv_bytes": group.staging_bytes if inline else None,
        "prefix_cache_tokens": group.prefix_cache_tokens,
    }


def scenario_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.yaml")))


def load_scenario(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """A preset by name, or a scenario file.

    Args:
        name_or_path: one of `scenario_names()` or the path of a YAML file.
        overrides: dotted key → value, e.g. `{"workload.rate_per_s": 3.0, "prefill.0.count": 4}`; a string is
            read as YAML.

    Raises:
        InputError: unknown name, unreadable file, or one line a problem, the first problem first.
    """
    return read_scenario(Scenario, PRESETS, name_or_path, overrides or {})


def schema() -> dict[str, Any]:
    """JSON schema of a scenario file."""
    return Scenario.model_json_schema()
