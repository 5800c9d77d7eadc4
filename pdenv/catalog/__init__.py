"""Facts about GPUs, models, links, prices and KV quality, read from the YAML files beside this module.

Nothing is read at import. Each file is read once, when a name from it is first looked up. Every row has
its source; `docs/facts.md` shows them all and names the traps. An unknown name raises `InputError` with
the nearest valid one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pdenv.errors import InputError, nearest

Row = TypeVar("Row")

#: Bytes of one KV element in each of `topology.PRECISIONS`. INT4 is nominal (without scales); NVFP4 holds an
#: FP8 scale for each 16 elements: 0.5 + 1/16.
BYTES_PER_ELEMENT = (2.0, 1.0, 0.5, 0.5625)


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Rates are dense peaks, and one way."""

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float  # FLOP/s, dense
    fp8_flops: float  # FLOP/s, dense; 0 without FP8 tensor cores
    nvlink_bytes_per_s: float  # per GPU, one way; 0 without NVLink (xGMI counts)
    pcie_bytes_per_s: float  # per GPU, one way
    nic_bytes_per_s: float  # per GPU, one way
    tdp_w: float
    idle_w: float  # an assumption: a fraction of TDP
    usd_per_hour: float  # the price row marked as default
    source: str


@dataclass(frozen=True)
class Model:
    """One language model. KV bytes are of the whole model, each token stored once."""

    name: str
    layers: int
    hidden: int
    params: float
    active_params: float  # used by one token; equals params in a dense model
    kv_heads: int  # ways in which KV can be split over tensor-parallel ranks; 1 for an MLA latent
    attention_width: int  # query heads × mean of the key and value head sizes
    kv_bytes_per_token: tuple[int, ...]  # (4,) in the order of topology.PRECISIONS
    max_context: int  # tokens
    source: str


@dataclass(frozen=True)
class Link:
    """One kind of network: time of a transfer = latency + bytes/(line·efficiency) + bytes/block·op."""

    name: str
    latency_s: float
    efficiency: float  # achievable share of the line rate
    op_s: float  # posting cost of one operation
    block_bytes: int  # bytes moved by one operation
    source: str


@dataclass(frozen=True)
class Price:
    gpu: str
    usd_per_gpu_hour: float
    kind: str  # on-demand, spot, contract, community, assumption
    provider: str
    date: str  # as of
    source: str
    default: bool = False  # the one that `Gpu.usd_per_hour` shows


@dataclass(frozen=True)
class KvQuality:
    """A published loss of a KV precision against BF16 KV, in the unit of its source."""

    precision: str
    task: str
    loss_low: float
    loss_high: float
    unit: str  # points or percent
    kind: str  # measured, vendor claim, reference
    source: str


def gpu(name: str) -> Gpu:
    """The GPU of that name, for instance `gpu("h100")`."""
    return _find(_gpus(), name, "GPU")


def model(name: str) -> Model:
    """The model of that name, for instance `model("llama-3.1-70b")`."""
    return _find(_models(), name, "model")


def link(name: str) -> Link:
    """The link kind of that name: nvlink, infiniband, roce or tcp."""
    return _find(_links(), name, "link")


def gpu_names() -> tuple[str, ...]:
    return tuple(_gpus())


def model_names() -> tuple[str, ...]:
    return tuple(_models())


def link_names() -> tuple[str, ...]:
    return tuple(_links())


@cache
def prices() -> tuple[Price, ...]:
    """List prices with their dates; none is a quote."""
    return tuple(Price(**row) for row in _load("prices.yaml")["prices"])


@cache
def kv_quality() -> tuple[KvQuality, ...]:
    """Published losses by KV precision and task."""
    return tuple(KvQuality(**row) for row in _load("kv_quality.yaml")["kv_quality"])


@cache
def profile_rows(gpu_name: str) -> tuple[dict[str, Any], ...]:
    """Fitted step-time laws of a GPU with their sources and errors; empty when none was measured."""
    resource = f"profiles/{gpu(gpu_name).name}.yaml"
    return tuple(_load(resource)["profiles"]) if _exists(resource) else ()


def _find(rows: dict[str, Row], name: str, kind: str) -> Row:
    key = str(name).strip().lower()
    if key not in rows:
        raise InputError(f"unknown {kind} '{name}'{nearest(key, rows)}")
    return rows[key]


@cache
def _gpus() -> dict[str, Gpu]:
    data = _load("gpus.yaml")
    usd = {price.gpu: price.usd_per_gpu_hour for price in prices() if price.default}
    return {
        name: Gpu(
            name=name,
            hbm_bytes=round(row["hbm_gb"] * 1e9),
            hbm_bytes_per_s=row["hbm_tb_per_s"] * 1e12,
            bf16_flops=row["bf16_tflops"] * 1e12,
            fp8_flops=row["fp8_tflops"] * 1e12,
            nvlink_bytes_per_s=row["nvlink_gb_per_s"] * 1e9,
            pcie_bytes_per_s=row["pcie_gb_per_s"] * 1e9,
            nic_bytes_per_s=row["nic_gb_per_s"] * 1e9,
            tdp_w=float(row["tdp_w"]),
            idle_w=data["idle_fraction_of_tdp"] * row["tdp_w"],
            usd_per_hour=usd[name],
            source=row["source"],
        )
        for name, row in data["gpus"].items()
    }


@cache
def _models() -> dict[str, Model]:
    return {
        name: Model(
            name=name,
            layers=row["layers"],
            hidden=row["hidden"],
            params=row["params_b"] * 1e9,
            active_params=row["active_params_b"] * 1e9,
            kv_heads=row["kv_heads"],
            attention_width=row["attention_width"],
            kv_bytes_per_token=tuple(round(row["kv_elements_per_token"] * b) for b in BYTES_PER_ELEMENT),
            max_context=row["max_context"],
            source=row["source"],
        )
        for name, row in _load("models.yaml")["models"].items()
    }


@cache
def _links() -> dict[str, Link]:
    rows = _load("links.yaml")["links"]
    fields = ("latency_s", "efficiency", "op_s", "block_bytes", "source")
    return {name: Link(name=name, **{key: row[key] for key in fields}) for name, row in rows.items()}


def _resource(name: str) -> Any:
    from importlib.resources import files

    return files(__name__).joinpath(*name.split("/"))


def _exists(name: str) -> bool:
    return bool(_resource(name).is_file())


def _load(name: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times faster
    return yaml.load(_resource(name).read_text(encoding="utf-8"), Loader=loader)
