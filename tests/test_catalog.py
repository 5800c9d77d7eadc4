from __future__ import annotations

import csv
import subprocess
import sys

import pytest

from pdenv import catalog
from pdenv.errors import InputError
from pdenv.topology import PRECISIONS

TOKENS_128K = 131072


def test_128k_tokens_of_a_70b_gqa_model():
    bf16, fp8, int4, nvfp4 = (b * TOKENS_128K for b in catalog.model("llama-3.1-70b").kv_bytes_per_token)
    assert bf16 == 80 * 8 * 128 * 2 * 2 * TOKENS_128K == 42_949_672_960  # 42.9 GB, 0.43 s at 100 GB/s
    assert (bf16 / fp8, bf16 / int4) == (2.0, 4.0)
    assert nvfp4 / bf16 == 0.5625 / 2


def test_mla_latent_is_small_and_stored_once():
    deepseek = catalog.model("deepseek-v3")
    assert deepseek.kv_bytes_per_token == (61 * 576 * 2, 61 * 576, 61 * 288, 61 * 324)
    assert deepseek.kv_heads == 1  # cannot be split over ranks
    assert deepseek.kv_bytes_per_token[0] * TOKENS_128K == pytest.approx(9.21e9, rel=1e-3)


@pytest.mark.parametrize("name", catalog.model_names())
def test_models_are_consistent(name):
    model = catalog.model(name)
    assert model.name == name and model.source
    assert len(model.kv_bytes_per_token) == len(PRECISIONS)
    assert 0 < model.active_params <= model.params
    # Queries are at least as wide as K and V: kv_bytes / (2 bytes × 2) / layers per token and layer.
    assert model.attention_width >= model.kv_bytes_per_token[0] / 4 / model.layers


def test_h100_peaks_are_dense_and_one_way():
    h100 = catalog.gpu("h100")
    assert h100.bf16_flops == pytest.approx(989e12)  # 1979 is with sparsity
    assert h100.fp8_flops == pytest.approx(2 * h100.bf16_flops, rel=2e-3)
    assert (h100.nvlink_bytes_per_s, h100.nic_bytes_per_s) == (450e9, 50e9)  # 900 counts both directions
    assert h100.hbm_bytes == 80_000_000_000
    assert 8 * h100.nic_bytes_per_s == 400e9


def test_gpus_without_a_feature_say_so():
    assert catalog.gpu("a100").fp8_flops == 0
    assert catalog.gpu("l40s").nvlink_bytes_per_s == 0


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_gpu_can_be_billed_and_powered(name):
    gpu = catalog.gpu(name)
    assert gpu.usd_per_hour > 0 and 0 < gpu.idle_w < gpu.tdp_w and gpu.source
    assert sum(price.default for price in catalog.prices() if price.gpu == name) == 1


def test_ten_gpus_have_normalised_names():
    assert set(catalog.gpu_names()) == {
        "a100", "h100", "h200", "h20", "b200", "gb200", "b300", "gb300", "l40s", "mi300x",
    }  # fmt: skip


def test_assumed_prices_are_labelled():
    assumed = {price.gpu for price in catalog.prices() if price.default and price.kind == "assumption"}
    assert assumed == {"b300", "gb300", "h20"}
    assert all(price.date >= "2026" and price.source for price in catalog.prices())


def test_links_rank_as_networks_do():
    links = [catalog.link(name) for name in ("nvlink", "infiniband", "roce", "tcp")]
    assert catalog.link_names() == tuple(link.name for link in links)
    latency = [link.latency_s for link in links]
    assert latency == sorted(latency)
    assert links[1].efficiency > links[2].efficiency > links[3].efficiency > 0
    assert all(link.op_s > 0 and link.block_bytes > 0 for link in links)


def test_quality_holds_the_catastrophic_row_and_labels_the_vendor_claim():
    rows = catalog.kv_quality()
    assert {row.precision for row in rows} == set(PRECISIONS)
    worst = max(rows, key=lambda row: row.loss_high)
    assert (worst.precision, worst.task, worst.loss_high) == ("int4", "reasoning", 97 - 5)
    assert [row.precision for row in rows if row.kind == "vendor claim"] == ["nvfp4"]


@pytest.mark.parametrize(
    ("lookup", "typo", "meant"),
    [
        (catalog.gpu, "h10", "h100"),
        (catalog.model, "llama-3-70b", "llama-3.1-70b"),
        (catalog.link, "infinband", "infiniband"),
    ],
)
def test_unknown_name_proposes_the_nearest(lookup, typo, meant):
    with pytest.raises(InputError, match=f"unknown .* '{typo}'; did you mean '{meant}'") as error:
        lookup(typo)
    assert "\n" not in str(error.value)


def test_names_are_case_insensitive():
    assert catalog.gpu("H100") is catalog.gpu("h100")


def test_import_reads_nothing():
    code = "import pdenv.catalog, sys; print('yaml' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_models_agree_with_the_public_table(shared_dir):
    names = {"Llama-3.1-70B": "llama-3.1-70b", "Qwen3-32B": "qwen3-32b", "Qwen3-235B-A22B": "qwen3-235b-a22b",
             "DeepSeek-V3 / R1": "deepseek-v3", "Mixtral-8x7B": "mixtral-8x7b", "Llama-2-70B": "llama-2-70b",
             "Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-405B": "llama-3.1-405b", "Qwen2.5-72B": "qwen2.5-72b",
             "Qwen2.5-7B": "qwen2.5-7b", "Kimi-K2": "kimi-k2", "GLM-4.5 / 4.6": "glm-4.5"}  # fmt: skip
    columns = ("bf16", "fp8", "int4_nominal", "nvfp4_with_scales")
    with (shared_dir / "facts" / "models.csv").open(newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    for label, name in names.items():
        model, row = catalog.model(name), rows[label]
        assert model.kv_bytes_per_token == tuple(float(row[f"kv_bytes_per_token_{c}"]) for c in columns)
        assert (model.layers, model.hidden) == (int(row["layers"]), int(row["hidden"]))
        assert model.params == pytest.approx(float(row["total_params_B"]) * 1e9)
        assert model.active_params == pytest.approx(float(row["active_params_B"]) * 1e9)
    assert set(names.values()) == set(catalog.model_names())
