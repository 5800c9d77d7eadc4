from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from pdenv import catalog, latency
from pdenv.errors import InputError
from pdenv.latency import decode_step_s, kv_capacity_bytes, mixed_step_s, prefill_step_s, profile, roofline
from pdenv.latency_fit import fit_decode, fit_piggyback, fit_prefill, nnls
from pdenv.topology import PRECISIONS, Profile, StepLaw

MEASURED_GPUS = ("a100", "h100", "h200", "b200", "l40s")
REQUIRED = [
    (gpu, model, tp, weights)
    for gpu in ("a100", "h100", "h200", "b200")
    for model, tps in (("llama-3.1-70b", (2, 4, 8)), ("llama-3.1-8b", (1, 2, 4)))
    for tp in tps
    for weights in (("bf16",) if gpu == "a100" else ("bf16", "fp8"))
]


@pytest.fixture(scope="module")
def fitting():
    """The committed fitting command, as a module."""
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "fit_profiles.py"
    spec = importlib.util.spec_from_file_location("fit_profiles", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(gpu: str):
    for row in catalog.profile_rows(gpu):
        name = "-".join(str(row[key]) for key in ("backend", "model", "weights", "tensor_parallel"))
        yield pytest.param(gpu, row, id=f"{gpu}-{name}")


ALL_ROWS = [param for gpu in MEASURED_GPUS for param in rows_of(gpu)]


def of_row(gpu: str, row: dict, form: str) -> Profile:
    return profile(row["model"], gpu, row["tensor_parallel"], row["weights"], row["kv"], row["backend"], form)


# --- the law, by hand ---------------------------------------------------------------------------------------

HAND = Profile(
    prefill=StepLaw(0.010, 1e-5, (1e-9, 0.0, 0.0, 0.0)),
    decode=StepLaw(c_s=(2e-8, 1e-8, 0.0, 0.0), table_x=(1.0, 2.0, 4.0), table_s=(0.010, 0.011, 0.015)),
    piggyback=0.5,
)


def test_prefill_step_by_hand():
    # Two prompts, 100 new tokens on 50 cached and 200 fresh ones: 10 ms + 3 ms + (150² − 50² + 200²) ns.
    assert prefill_step_s(HAND, [100, 200], [50, 0]) == pytest.approx(0.013 + 60000e-9)


def test_chunks_cost_the_same_quadratic_term_as_the_whole():
    whole = prefill_step_s(HAND, 4096)
    chunks = [prefill_step_s(HAND, 1024, done) for done in (0, 1024, 2048, 3072)]
    assert sum(chunks) - whole == pytest.approx(3 * 0.010)


def test_decode_table_interpolates_and_extends_its_outermost_segments():
    assert decode_step_s(HAND, [0, 0, 0]) == pytest.approx(0.013)
    assert decode_step_s(HAND, [0] * 6) == pytest.approx(0.019)
    assert decode_step_s(HAND, [1000, 3000], 1) == pytest.approx(0.011 + 4000e-8)


def test_mixed_step_credits_the_smaller_part():
    assert mixed_step_s(HAND, 0.010, 0.030) == pytest.approx(0.035)
    assert mixed_step_s(HAND, 0.010, 0.0) == 0.010


def test_a_step_is_never_below_a_microsecond():
    falling = Profile(prefill=StepLaw(table_x=(100.0, 200.0), table_s=(0.0, 1.0)), decode=StepLaw())
    assert prefill_step_s(falling, 10) == decode_step_s(falling, [5]) == 1e-6


# --- fits ---------------------------------------------------------------------------------------------------


def test_fit_recovers_the_coefficients_it_was_made_from():
    batch, tokens = np.array([1, 1, 1, 2, 4, 8]), np.array([256, 4096, 65536, 1024, 2048, 512])
    seconds = 0.008 + 2e-5 * batch * tokens + 3e-10 * batch * tokens**2.0
    law, error = fit_prefill(batch, tokens, seconds)
    assert (law.a_s, law.b_s, law.c_s[0]) == pytest.approx((0.008, 2e-5, 3e-10))
    assert error.max < 1e-9 and error.n == 6


def test_fit_minimises_relative_residuals():
    # One context: only a + b·B matters. (1, 2, 4) → (1, 1, 1)·t cannot have negative slope.
    law, _ = fit_decode([1, 2, 4, 8], [0, 0, 0, 0], [2.0, 1.9, 1.5, 1.0])
    assert law.b_s == 0.0
    y = np.array([2.0, 1.9, 1.5, 1.0])
    assert law.a_s == pytest.approx(np.sum(1 / y) / np.sum(1 / y**2))


def test_table_fit_is_exact_on_its_knots():
    batch = np.tile([1, 2, 4, 8], 3)
    context = np.repeat([100, 1000, 10000], 4)
    base = {1: 0.010, 2: 0.0105, 4: 0.015, 8: 0.016}
    seconds = np.array([base[b] for b in batch]) + 1e-8 * batch * context
    law, error = fit_decode(batch, context, seconds, knots=(1, 2, 4, 8))
    assert law.table_s == pytest.approx(tuple(base.values()))
    assert law.c_s[0] == pytest.approx(1e-8) and error.max < 1e-9


def test_piggyback_fit_by_hand_and_clipped():
    decode, prefill = np.array([0.01, 0.02]), np.array([0.03, 0.01])
    assert fit_piggyback(decode, prefill, decode + prefill - 0.3 * np.minimum(decode, prefill))[0] == pytest.approx(0.3)
    assert fit_piggyback(decode, prefill, 1.1 * (decode + prefill))[0] == 0.0
    assert fit_piggyback(decode, prefill, 0.9 * np.maximum(decode, prefill))[0] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_nnls_meets_the_optimality_conditions(seed):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(30, 8)), rng.normal(size=30)
    x = nnls(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    assert (x >= 0).all() and 0 < (x > 0).sum() < 8
    assert np.abs(gradient[x > 0]).max() < 1e-9 and gradient[x == 0].max() < 1e-9


@pytest.mark.parametrize(
    ("seconds", "knots", "says"),
    [([1.0, 2.0], (), "add rows"), ([1.0, float("nan"), 2.0, 3.0], (), "positive"),
     ([1.0, 2.0, 3.0, 4.0], (2, 1), "increasing knots")],
)  # fmt: skip
def test_fit_refuses_what_it_cannot_use(seconds, knots, says):
    n = len(seconds)
    with pytest.raises(InputError, match=says):
        fit_decode(range(1, n + 1), [10] * n, seconds, knots)


# --- shipped profiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "model", "tp", "weights"), REQUIRED)
@pytest.mark.parametrize("form", latency.FORMS)
def test_required_profiles_are_measured(gpu, model, tp, weights, form):
    law = profile(model, gpu, tp, weights, form=form)
    assert not law.estimate
    assert bool(law.prefill.table_x) == bool(law.decode.table_x) == (form == "table")
    assert len(law.decode.c_s) == len(PRECISIONS)


@pytest.mark.parametrize(("gpu", "row"), ALL_ROWS)
@pytest.mark.parametrize("form", latency.FORMS)
def test_profiles_grow_with_tokens_sequences_and_context(gpu, row, form):
    law = of_row(gpu, row, form)
    prefill = [prefill_step_s(law, n) for n in (1, 64, 100, 128, 500, 3000, 16384, 100_000, 500_000)]
    decode = [decode_step_s(law, [1000] * b) for b in (1, 2, 5, 30, 100, 256, 400)]
    context = [decode_step_s(law, [n]) for n in (1, 1000, 100_000)]
    assert prefill[0] > 1e-4 and decode[0] > 1e-4  # no step is free
    assert all(np.diff(prefill) > 0) and all(np.diff(decode) > 0) and all(np.diff(context) > 0)
    assert len(law.prefill.table_x) <= 24 and len(law.decode.table_x) <= 24


@pytest.mark.parametrize(("gpu", "row"), ALL_ROWS)
def test_narrower_kv_reads_faster(gpu, row):
    bf16, fp8, int4, nvfp4 = of_row(gpu, row, "affine").decode.c_s
    assert bf16 > fp8 > nvfp4 > int4 > 0.25 * bf16


@pytest.mark.parametrize(("gpu", "row"), ALL_ROWS)
def test_every_profile_has_source_and_errors(gpu, row):
    assert "AIConfigurator" in row["source"]
    for phase in ("prefill", "decode"):
        for form in latency.FORMS:
            error = row[phase][form]
            assert 0 < error["mape"] <= error["p95"] <= error["max"] and error["n"] >= 37
        assert row[phase]["table"]["mape"] < row[phase]["affine"]["mape"] * 1.05
    assert row["prefill"]["cached_prefix"]["n"] == 4
    if gpu in ("h100", "h200") and row["backend"] == "vllm":
        assert row["decode"]["affine"]["mape"] < 0.03


def test_kv_slope_follows_the_kv_precision_and_the_rest_the_weights():
    rows = {
        row["weights"]: row
        for row in catalog.profile_rows("h100")
        if (row["model"], row["tensor_parallel"], row["backend"]) == ("llama-3.1-70b", 8, "vllm")
    }
    law = profile("llama-3.1-70b", "h100", 8, weights="fp8", kv="bf16")
    assert (law.decode.a_s, law.decode.b_s) == (
        rows["fp8"]["decode"]["affine"]["a_s"],
        rows["fp8"]["decode"]["affine"]["b_s"],
    )
    assert law.decode.c_s[:2] == (
        rows["bf16"]["decode"]["affine"]["c_s"],
        rows["fp8"]["decode"]["affine"]["c_s"],
    )
    assert law.prefill.c_s[0] == rows["bf16"]["prefill"]["affine"]["c_s"]
    assert (
        profile("llama-3.1-70b", "h100", 8, "fp8", kv="fp8").prefill.c_s[0] == rows["fp8"]["prefill"]["affine"]["c_s"]
    )
    # INT4 was never measured: half the bytes of FP8 at 0.8 of its kernel efficiency.
    assert law.decode.c_s[2] == pytest.approx(law.decode.c_s[1] * 0.5 / 0.8)


def test_a100_fp8_kv_comes_from_the_bytes_ratio():
    bf16, fp8, *_ = profile("llama-3.1-70b", "a100", 8, "bf16").decode.c_s
    assert fp8 == pytest.approx(bf16 * 0.5 / 0.8)


def test_measured_slopes_read_bf16_and_fp8_kv_at_plausible_bandwidth():
    # If FP8 rows held BF16 KV, their implied bandwidth would be above 1.4 of the peak.
    for gpu, weights, q in (("h100", "bf16", 0), ("h100", "fp8", 1), ("b200", "fp8", 1), ("h200", "fp8", 1)):
        per_gpu = catalog.model("llama-3.1-70b").kv_bytes_per_token[q] / 8
        rate = per_gpu / profile("llama-3.1-70b", gpu, 8, weights).decode.c_s[q]
        assert 0.6 < rate / catalog.gpu(gpu).hbm_bytes_per_s < 1.0


def test_piggyback_is_measured_or_the_documented_default():
    assert 0.5 < profile("llama-3.1-70b", "h100", 8, "bf16").piggyback < 0.7
    assert profile("llama-3.1-70b", "b200", 8, "fp8").piggyback == 0.0
    assert profile("llama-3.1-70b", "b200", 8, "bf16").piggyback == 0.4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gpu": "h10"}, "did you mean 'h100'"),
        ({"model": "llama-70b"}, "did you mean 'llama"),
        ({"weights": "fp16"}, "did you mean 'bf16'"),
        ({"kv": "int8"}, "did you mean 'int4'"),
        ({"backend": "vlm"}, "did you mean 'vllm'"),
        ({"form": "tables"}, "did you mean 'table'"),
        ({"tensor_parallel": 0}, "at least 1"),
    ],
)
def test_profile_arguments_are_checked(wrong, says):
    with pytest.raises(InputError, match=says):
        profile(**{"model": "llama-3.1-70b", "gpu": "h100", "tensor_parallel": 8, **wrong})


# --- roofline -----------------------------------------------------------------------------------------------


def test_what_was_not_measured_is_an_estimate():
    assert profile("qwen2.5-72b", "h100", 8).estimate
    assert profile("llama-3.1-70b", "h20", 8).estimate
    assert profile("llama-3.1-70b", "a100", 8, "fp8").estimate  # no FP8 cores, never measured


def test_mfu_falls_with_tensor_parallelism_and_with_fp8():
    def mfu(tp, weights):
        gpu, model = catalog.gpu("h100"), catalog.model("llama-3.1-70b")
        peak = gpu.fp8_flops if weights == "fp8" else gpu.bf16_flops
        return 2 * model.params / (tp * peak * roofline(model.name, gpu.name, tp, weights).prefill.b_s)

    curve = [mfu(tp, "bf16") for tp in (1, 2, 4, 8)]
    assert curve == sorted(curve, reverse=True) and curve[0] > 0.55
    assert mfu(8, "fp8") < 0.3 < mfu(8, "bf16")


@pytest.mark.parametrize(("gpu", "model", "tp", "weights"), REQUIRED)
def test_roofline_is_near_what_was_measured(gpu, model, tp, weights):
    measured = profile(model, gpu, tp, weights, weights, form="table")
    estimate = roofline(model, gpu, tp, weights)
    q = PRECISIONS.index(weights)
    prefill = [prefill_step_s(estimate, n) / prefill_step_s(measured, n) for n in (512, 4096, 16384, 65536)]
    decode = [
        decode_step_s(estimate, [n] * b, q) / decode_step_s(measured, [n] * b, q)
        for b in (1, 8, 64, 256)
        for n in (512, 4096, 16384)
    ]
    for ratios in (prefill, decode):
        assert 1 / 1.7 < np.median(ratios) < 1.7
        assert min(ratios) > 0.45 and max(ratios) < 2.2


def test_mixture_of_experts_reads_more_weights_in_larger_batches():
    law = roofline("mixtral-8x7b", "h100", 2, "bf16")
    one, many = decode_step_s(law, [0]), decode_step_s(law, [0] * 64)
    read_all_s = 46.7e9 * 2 / (2 * 3.35e12 * latency.HBM_EFFICIENCY)
    assert one < 32 * latency.DECODE_LAYER_S + 0.4 * read_all_s < read_all_s < many


def test_mla_latent_is_read_by_every_rank():
    slope = [roofline("deepseek-v3", "h200", tp, "fp8").decode.c_s[0] for tp in (8, 16)]
    assert slope[0] == slope[1]
    halved = [roofline("llama-3.1-70b", "h200", tp, "fp8").decode.c_s[0] for tp in (4, 8)]
    assert halved[0] == pytest.approx(2 * halved[1])


# --- KV capacity --------------------------------------------------------------------------------------------


def test_kv_capacity_by_hand():
    # 8 × 80 GB × 0.9 − 70.55 GB − 8 × 2 GB
    assert kv_capacity_bytes("llama-3.1-70b", "h100", 8, "fp8") == pytest.approx(576e9 - 70.55e9 - 16e9)
    assert kv_capacity_bytes("llama-3.1-70b", "h100", 8, "bf16", 0.8) == pytest.approx(512e9 - 141.1e9 - 16e9)


def test_replicated_latents_hold_the_kv_of_one_rank():
    capacity = kv_capacity_bytes("deepseek-v3", "h200", 8, "fp8")
    assert capacity == pytest.approx((8 * 141e9 * 0.9 - 671e9 - 16e9) / 8)


def test_model_that_does_not_fit_says_what_to_do():
    with pytest.raises(InputError, match=r"llama-3.1-405b in bf16 needs 828 GB .* 8 × h100 hold 576 GB: raise .* fp8"):
        kv_capacity_bytes("llama-3.1-405b", "h100", 8, "bf16")
    with pytest.raises(InputError, match=r"raise tensor_parallel$"):
        kv_capacity_bytes("llama-3.1-405b", "h100", 4, "fp8")
    with pytest.raises(InputError, match="memory_fraction"):
        kv_capacity_bytes("llama-3.1-8b", "h100", 1, "fp8", 1.2)


# --- against the public tables ------------------------------------------------------------------------------


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_shipped_files_are_what_the_command_writes(fitting, shared_dir):
    fitted = fitting.fit_profiles(shared_dir / "measured")
    assert set(fitted) == set(MEASURED_GPUS)
    for gpu, rows in fitted.items():
        for row, shipped in zip(rows, catalog.profile_rows(gpu), strict=True):
            assert flat(row) == pytest.approx(flat(shipped), rel=1e-4, abs=1e-12)


def flat(value) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in flat(item)]
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [] if isinstance(value, str) else [float(value)]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_affine_fits_agree_with_the_published_ones(fitting, shared_dir, phase):
    linear, quadratic = ("b_ms_per_tok", "c_ms_per_tok2") if phase == "prefill" else ("b_ms_per_seq", "c_ms_per_tok")
    compared = 0
    for ref in table(shared_dir / "measured" / f"fit_{phase}.csv"):
        for row in catalog.profile_rows(fitting.GPUS[ref["system"]]):
            key = (row["backend"], row["model"], row["weights"], str(row["tensor_parallel"]))
            if key != (ref["backend"], ref["model"], ref["quant"], ref["tp"]):
                continue
            fit = row[phase]["affine"]
            assert fit["b_s"] * 1e3 == pytest.approx(float(ref[linear]), rel=1e-3)
            assert fit["c_s"] * 1e3 == pytest.approx(float(ref[quadratic]), rel=1e-3)
            assert fit["mape"] == pytest.approx(float(ref["mape"]), rel=0.05)
            compared += 1
    assert compared > 140


def test_cached_prefix_law_holds_on_rows_the_fit_has_not_seen():
    errors = [row["prefill"]["cached_prefix"] for gpu in ("a100", "h100", "h200", "b200")
              for row in catalog.profile_rows(gpu) if row["backend"] == "vllm"]  # fmt: skip
    assert np.median([e["mape"] for e in errors]) < 0.03
    assert max(e["mape"] for e in errors) < 0.06


@pytest.mark.parametrize("form", latency.FORMS)
def test_profile_predicts_mixed_steps(fitting, shared_dir, form):
    key = ("h100_sxm", "vllm", "llama-3.1-70b", "fp8", "8")
    law = profile("llama-3.1-70b", "h100", 8, "fp8", "fp8", form=form)
    errors = []
    for row in fitting.read(shared_dir / "measured" / "mixed_step.csv")[key]:
        decode = decode_step_s(law, [float(row["decode_ctx"])] * int(row["decode_batch"]), 1)
        chunk = int(row["prefill_chunk_tokens"])
        predicted = mixed_step_s(law, decode, prefill_step_s(law, chunk) if chunk else 0.0)
        errors.append(abs(predicted * 1e3 / float(row["step_ms"]) - 1))
    assert np.mean(errors) < 0.07 and max(errors) < 0.2


def test_link_constants_are_the_fitted_ones(fitting, shared_dir):
    op_s, _ = fitting.fit_posting(shared_dir / "facts")
    roce = catalog.link("roce")
    assert roce.op_s == pytest.approx(op_s, rel=0.02)
    latency_s, efficiency, _ = fitting.fit_transfers(
        shared_dir / "facts", ["vLLM Mooncake", "SGLang Mooncake"], op_s, roce.block_bytes
    )
    assert (roce.latency_s, roce.efficiency) == pytest.approx((latency_s, efficiency), rel=0.03)


def test_roce_constants_predict_published_kv_transfers():
    # Mooncake over 200 GB/s of RoCE: 4.5 GB in 31.65 ms (vLLM), 12.62 GB in 76.78 ms (SGLang).
    roce = catalog.link("roce")
    for size, seconds in ((4.5e9, 31.65e-3), (12.62e9, 76.78e-3)):
        predicted = roce.latency_s + size / (200e9 * roce.efficiency) + size / roce.block_bytes * roce.op_s
        assert predicted == pytest.approx(seconds, rel=0.16)
