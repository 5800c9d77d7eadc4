"""Step-time laws by name: measured profiles, a roofline where nothing was measured, and KV capacity.

Measured profiles come from `pdenv/catalog/profiles` (written by `benchmarks/fit_profiles.py`). What every
coefficient means is in `docs/model.md`, section 1. Attention reads the KV cache and everything else reads
weights, so constant and linear terms follow the weight precision and context terms the KV precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from pdenv import catalog
from pdenv.catalog import BYTES_PER_ELEMENT, Gpu, Model
from pdenv.errors import InputError, nearest
from pdenv.topology import PRECISIONS, Profile, StepLaw

WEIGHTS = ("bf16", "fp8")
BACKENDS = ("vllm", "trtllm", "sglang")
FORMS = ("affine", "table")

#: κ where no mixed step was measured: the lowest measured one for those weights (BF16 0.40 to 0.64, FP8 0
#: to 0.32). It leans against co-located serving.
DEFAULT_PIGGYBACK = {"bf16": 0.4, "fp8": 0.0}

#: Share of its bytes advantage that a KV kernel keeps below the measured precision. FP8 against BF16 keeps
#: 0.57 (SGLang on H200) to 1.0 (TensorRT-LLM), median 0.95; 4-bit kernels unpack more.
KV_KERNEL_EFFICIENCY = 0.8

#: Memory a GPU needs beside weights and KV (assumption): activations of a large prefill step, captured
#: graphs, communication buffers.
ACTIVATION_RESERVE_BYTES = 2_000_000_000

MIN_STEP_S = 1e-6

# Roofline constants, chosen by hand against the measured Llama profiles (tests/test_latency.py: the median of
# each within 1.7×). The MFU that results runs from 0.2 to 0.65 over TP and precision, since all-reduce and
# unsharded element-wise work do not shrink with TP.
GEMM_EFFICIENCY = {"bf16": 0.65, "fp8": 0.45}  # of the dense peak
ATTENTION_EFFICIENCY = 0.55  # of the dense BF16 peak
HBM_EFFICIENCY = 0.85
ALLREDUCE_EFFICIENCY = 0.8  # of NVLink
PCIE_ALLREDUCE_EFFICIENCY = 0.4  # of PCIe, which the pairs of ranks share
ELEMENTWISE_BYTES = 16  # moved per hidden value and layer by norms, residuals and activations
PREFILL_LAYER_S = 1e-4  # launches and synchronisation of one layer
DECODE_LAYER_S = 5e-5


@cache
def profile(
    model: str,
    gpu: str,
    tensor_parallel: int,
    weights: str = "fp8",
    kv: str = "bf16",
    backend: str = "vllm",
    form: str = "affine",
) -> Profile:
    """The measured profile of a configuration, else its roofline estimate (`estimate=True`).

    Args:
        model: a name in the catalog, as is `gpu`.
        gpu: for instance "h100".
        tensor_parallel: GPUs of the instance.
        weights: "bf16" or "fp8".
        kv: precision of the KV that prefill attention reads and writes, one of `topology.PRECISIONS`. Decode
            slopes are given for all of them.
        backend: whose kernels were measured: "vllm", "trtllm" or "sglang".
        form: "affine", or "table" (piecewise linear in N and in B).

    Raises:
        InputError: for an unknown name, or a tensor parallelism below 1.
    """
    catalog.model(model)
    _check("weights", weights, WEIGHTS)
    _check("KV precision", kv, PRECISIONS)
    _check("backend", backend, BACKENDS)
    _check("profile form", form, FORMS)
    check_tensor_parallel(tensor_parallel)
    rows = {
        row["weights"]: row
        for row in catalog.profile_rows(gpu)
        if (row["model"], row["tensor_parallel"], row["backend"]) == (_key(model), tensor_parallel, backend)
    }
    if weights not in rows:
        return roofline(model, gpu, tensor_parallel, weights)
    row, kv_rows = rows[weights], {r["kv"]: r for r in rows.values()}
    prefill_c = kv_rows.get(kv, row)["prefill"][form]["c_s"]
    slopes = decode_slopes({q: r["decode"][form]["c_s"] for q, r in kv_rows.items()})
    return Profile(
        prefill=_law(row["prefill"][form], (prefill_c, 0.0, 0.0, 0.0)),
        decode=_law(row["decode"][form], slopes),
        piggyback=float(row.get("piggyback", {}).get("kappa", DEFAULT_PIGGYBACK[weights])),
        name=f"{_key(model)} {_key(gpu)} tp{tensor_parallel} {weights} weights, {kv} KV, {backend}, {form}",
    )


def roofline(model: str, gpu: str, tensor_parallel: int, weights: str = "fp8") -> Profile:
    """An estimate from peak rates, for what was never measured (`estimate=True`).

    Within 1.7× of measured dense Llama models in the median; too fast for mixtures of experts and for
    block-scaled FP8 checkpoints (2 to 4× on Hopper, more on B200), whose kernels are far from any roof.

    Prefill is bound by compute plus all-reduce, decode by reading weights and KV. A mixture of experts reads
    the share `1 − (1 − active/total)^B` of its weights in a decode step of B sequences. FP8 weights on a GPU
    without FP8 cores compute in BF16.
    """
    check_tensor_parallel(tensor_parallel)
    facts, device = catalog.model(model), catalog.gpu(gpu)
    linear_s = _token_s(facts, device, tensor_parallel, weights)
    attention_flops = 2.0 * facts.layers * facts.attention_width  # causal: half of 4 per pair of tokens
    prefill_c = attention_flops / (tensor_parallel * device.bf16_flops * ATTENTION_EFFICIENCY)
    shards = min(tensor_parallel, facts.kv_heads)
    kv_c = facts.kv_bytes_per_token[0] / (shards * device.hbm_bytes_per_s * HBM_EFFICIENCY)
    read_s = weight_bytes(model, weights) / (tensor_parallel * device.hbm_bytes_per_s * HBM_EFFICIENCY)
    return Profile(
        prefill=StepLaw(PREFILL_LAYER_S * facts.layers, linear_s, (prefill_c, 0.0, 0.0, 0.0)),
        decode=_roofline_decode(facts, read_s, linear_s, decode_slopes({"bf16": kv_c})),
        piggyback=DEFAULT_PIGGYBACK[weights],
        name=f"{facts.name} {device.name} tp{tensor_parallel} {weights} weights, roofline estimate",
        estimate=True,
    )


def _token_s(facts: Model, device: Gpu, tensor_parallel: int, weights: str) -> float:
    """Seconds that one token adds to a step: matrix products, all-reduce, element-wise work."""
    native_fp8 = weights == "fp8" and device.fp8_flops > 0
    peak = device.fp8_flops if native_fp8 else device.bf16_flops
    efficiency = GEMM_EFFICIENCY["fp8" if native_fp8 else "bf16"]
    products_s = 2.0 * facts.active_params / (tensor_parallel * peak * efficiency)
    # Two all-reduces a layer of `hidden` 16-bit values; a ring moves 2·(tp − 1)/tp of them.
    moved = 2 * facts.layers * facts.hidden * 2 * 2.0 * (tensor_parallel - 1) / tensor_parallel
    if device.nvlink_bytes_per_s:
        rate = device.nvlink_bytes_per_s * ALLREDUCE_EFFICIENCY
    else:
        rate = device.pcie_bytes_per_s * PCIE_ALLREDUCE_EFFICIENCY / max(1.0, tensor_parallel / 2)
    elementwise = ELEMENTWISE_BYTES * facts.layers * facts.hidden
    return products_s + moved / rate + elementwise / (device.hbm_bytes_per_s * HBM_EFFICIENCY)


def _roofline_decode(facts: Model, read_s: float, linear_s: float, slopes: tuple[float, ...]) -> StepLaw:
    overhead_s = DECODE_LAYER_S * facts.layers
    if facts.active_params == facts.params:
        return StepLaw(overhead_s + read_s, linear_s, slopes)
    idle_share = 1.0 - facts.active_params / facts.params
    batches = [2.0**k for k in range(10)]
    steps = tuple(overhead_s + read_s * (1.0 - idle_share**b) + linear_s * b for b in batches)
    return StepLaw(c_s=slopes, table_x=tuple(batches), table_s=steps)


def decode_slopes(measured: dict[str, float]) -> tuple[float, ...]:
    """(4,) s/token of context in the order of PRECISIONS, from those that were measured.

    A missing precision takes the nearest measured one above it, times the bytes ratio, over the kernel
    efficiency; with none above, the nearest below times the bytes ratio.
    """
    size = dict(zip(PRECISIONS, BYTES_PER_ELEMENT, strict=True))

    def slope(precision: str) -> float:
        if precision in measured:
            return float(measured[precision])
        above = [q for q in measured if size[q] > size[precision]]
        base = min(above, key=size.__getitem__) if above else max(measured, key=size.__getitem__)
        efficiency = KV_KERNEL_EFFICIENCY if above else 1.0
        return measured[base] * size[precision] / size[base] / efficiency

    return tuple(slope(precision) for precision in PRECISIONS)


def prefill_step_s(law: Profile, new_tokens: Any, done_tokens: Any = 0) -> float:
    """Seconds of a prefill step: `new_tokens` (n,) of each prompt, after `done_tokens` (n,)."""
    new = np.atleast_1d(np.asarray(new_tokens, dtype=float))
    done = np.asarray(done_tokens, dtype=float)
    squares = float(np.sum((done + new) ** 2 - done**2))
    return _step_s(law.prefill, float(new.sum()), law.prefill.c_s[0] * squares)


def decode_step_s(law: Profile, contexts: Any, precision: int = 0) -> float:
    """Seconds of a decode iteration over sequences of `contexts` (n,) tokens, stored in one precision."""
    tokens = np.atleast_1d(np.asarray(contexts, dtype=float))
    return _step_s(law.decode, len(tokens), law.decode.c_s[precision] * float(tokens.sum()))


def mixed_step_s(law: Profile, decode_s: float, prefill_s: float) -> float:
    """Seconds of an iteration that decodes and prefills: `D + C − κ·min(D, C)`."""
    return decode_s + prefill_s - law.piggyback * min(decode_s, prefill_s)


def weight_bytes(model: str, weights: str = "fp8") -> int:
    """Bytes of the weights, every parameter in that precision."""
    _check("weights", weights, WEIGHTS)
    return round(catalog.model(model).params * (1 if weights == "fp8" else 2))


def kv_capacity_bytes(
    model: str, gpu: str, tensor_parallel: int, weights: str = "fp8", memory_fraction: float = 0.9
) -> int:
    """Bytes of KV that an instance holds, each token counted once.

    HBM × `memory_fraction` − weights − an activation reserve, over all GPUs. Where there are more ranks than
    KV heads (an MLA latent has one), KV is replicated and the capacity is that of `kv_heads` ranks.

    Raises:
        InputError: when the weights leave no room, or for an unknown name or a fraction outside (0, 1].
    """
    facts, device = catalog.model(model), catalog.gpu(gpu)
    check_tensor_parallel(tensor_parallel)
    if not 0.0 < memory_fraction <= 1.0:
        raise InputError(f"memory_fraction must be in (0, 1], not {memory_fraction}")
    usable = device.hbm_bytes * tensor_parallel * memory_fraction
    needed = weight_bytes(model, weights) + ACTIVATION_RESERVE_BYTES * tensor_parallel
    if usable <= needed:
        remedy = "raise tensor_parallel" + (" or use fp8" if weights == "bf16" else "")
        raise InputError(
            f"model {facts.name} in {weights} needs {needed / 1e9:.0f} GB with activations, "
            f"{tensor_parallel} × {device.name} hold {usable / 1e9:.0f} GB: {remedy}"
        )
    return int((usable - needed) * min(tensor_parallel, facts.kv_heads) / tensor_parallel)


def check_tensor_parallel(value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"tensor_parallel must be a whole number of at least 1, not {value!r}")


def _check(kind: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        raise InputError(f"unknown {kind} '{value}'{nearest(str(value), valid)}")


def _key(name: str) -> str:
    return name.strip().lower()


def _law(fit: dict[str, Any], c_s: tuple[float, ...]) -> StepLaw:
    if "x" in fit:
        return StepLaw(c_s=c_s, table_x=tuple(map(float, fit["x"])), table_s=tuple(map(float, fit["s"])))
    return StepLaw(a_s=float(fit["a_s"]), b_s=float(fit["b_s"]), c_s=c_s)


def _step_s(law: StepLaw, x: float, weighted_s: float) -> float:
    return max(MIN_STEP_S, _base_s(law, x) + weighted_s)


def _base_s(law: StepLaw, x: float) -> float:
    """The constant and linear part, or the table with its outermost segments extended."""
    if not law.table_x:
        return law.a_s + law.b_s * x
    last = len(law.table_x) - 2
    i = int(np.clip(np.searchsorted(law.table_x, x, side="right") - 1, 0, last))
    x0, x1, s0, s1 = law.table_x[i], law.table_x[i + 1], law.table_s[i], law.table_s[i + 1]
    return s0 + (s1 - s0) * (x - x0) / (x1 - x0)
