"""Transfer physics through the engine: 131,072 tokens of a 70B GQA model at 100 GB/s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import make_arrivals, make_cluster, make_profile, run_in_precision

from pdenv import catalog
from pdenv.sim import decisions
from pdenv.sim.engine import Simulation
from pdenv.topology import PRECISIONS, Cluster

TOKENS = 131_072
LINK = 100e9  # bytes/s
LAYERS = 80
#: 80 layers × 8 KV heads × 128 × (key and value) × 2 bytes × 131,072 tokens
BF16_BYTES = 42_949_672_960


def long_prompt_cluster(chunk_tokens: int | None = None, seconds_per_token: float = 1e-4, **rules) -> Cluster:
    """One pair on a 100 GB/s link; at 1e-4 s a token the whole KV is produced at 3.3 GB/s."""
    model = catalog.model("llama-3.1-70b")
    assert model.layers == LAYERS
    cluster = make_cluster(
        make_profile(prefill_b_s=seconds_per_token, decode_a_s=0.01),
        nic_bytes_per_s=LINK,
        kv=tuple(model.kv_bytes_per_token),
        layers=model.layers,
        reserve=0,
        **rules,
    )
    if chunk_tokens is None:
        return cluster
    chunked = replace(cluster.prefill[0], chunked=True, max_batch_tokens=chunk_tokens)
    return replace(cluster, prefill=(chunked,))


def send(cluster: Cluster, precision: str = "bf16", tokens: int = TOKENS, output: int = 2):
    row = run_in_precision(cluster, make_arrivals([0.0], tokens, output), PRECISIONS.index(precision))[0]
    return row, row["transfer_end_s"] - row["prefill_end_s"]


def test_kv_of_128k_tokens_is_42_9_gb_and_takes_0_429_s():
    row, transfer_s = send(long_prompt_cluster())
    assert row["wire_bytes"] == BF16_BYTES
    assert round(row["wire_bytes"] / 1e9, 1) == 42.9
    assert transfer_s == pytest.approx(BF16_BYTES / LINK, rel=1e-9)
    assert round(float(transfer_s), 3) == 0.429


@pytest.mark.parametrize(("precision", "times_less"), [("fp8", 2), ("int4", 4)])
def test_compressed_kv_is_smaller_and_faster_in_proportion(precision, times_less):
    row, transfer_s = send(long_prompt_cluster(), precision)
    assert row["wire_bytes"] * times_less == BF16_BYTES
    assert transfer_s * times_less == pytest.approx(BF16_BYTES / LINK, rel=1e-9)


def test_blocking_exposes_the_whole_transfer_and_chunks_change_nothing():
    for chunk in (None, 8192, 50_000):
        row, transfer_s = send(long_prompt_cluster(chunk))
        assert row["flow_start_s"] == row["prefill_end_s"]
        assert transfer_s == pytest.approx(BF16_BYTES / LINK, rel=1e-9)


@pytest.mark.parametrize("chunk", [TOKENS, 8192, 50_000])
def test_layer_wise_exposes_exactly_the_last_layer_of_the_last_chunk(chunk):
    """The link outruns KV production, so only what appears at the very end is left: K_last / L."""
    row, transfer_s = send(long_prompt_cluster(chunk, layerwise=True))
    last_chunk = TOKENS % chunk or chunk
    assert row["flow_start_s"] == row["prefill_start_s"]
    assert transfer_s == pytest.approx(BF16_BYTES * last_chunk / TOKENS / LAYERS / LINK, rel=1e-6)
    assert row["wire_bytes"] == pytest.approx(BF16_BYTES, rel=1e-12)


def test_layer_wise_on_a_slow_link_hides_all_but_the_first_layer_of_prefill():
    """Production (1e-7 s a token: 3.3 TB/s) outruns the link, which is busy from the end of the first layer on."""
    _, transfer_s = send(long_prompt_cluster(TOKENS, seconds_per_token=1e-7, layerwise=True))
    prefill_s = TOKENS * 1e-7
    assert transfer_s == pytest.approx(BF16_BYTES / LINK - prefill_s * (1 - 1 / LAYERS), rel=1e-9)


def test_layer_wise_backlog_is_caught_up_between_chunks_of_unequal_pace():
    """Two chunks with a quadratic cost: the first makes 10 GB/s of KV, too fast for 8 GB/s, the second is slow.

    80 GB of KV in two chunks of 40 GB, one layer in ten. First chunk (0 to 4 s): 36 GB appear from 0.4 to 4 s at
    10 GB/s, the link takes 8: 28.8 GB sent, 7.2 + 4 = 11.2 GB wait. Second chunk (4 to 16 s): nothing new until 5.2;
    9.6 GB go by then; 1.6 GB wait, new KV comes at 40/12 GB/s: the backlog is gone after 1.6/(8 − 40/12) s. Only the
    last layer of the second chunk, 4 GB, is sent after 16 s: 0.5 s.
    """
    cluster = make_cluster(
        make_profile(prefill_c_s=4e-6, decode_a_s=0.01),  # 1000² · 4e-6 = 4 s, (2000² − 1000²) · 4e-6 = 12 s
        nic_bytes_per_s=8e9,
        kv=(40_000_000, 20_000_000, 10_000_000, 11_250_000),
        prefill={"chunked": True, "max_batch_tokens": 1000},
        layers=10,
        reserve=0,
        layerwise=True,
    )
    row, transfer_s = send(cluster, tokens=2000)
    assert row["prefill_end_s"] == pytest.approx(16.0, abs=1e-9)
    assert transfer_s == pytest.approx(0.5, rel=1e-9)


def test_a_prompt_of_one_token_output_sends_what_prefill_has_let_out():
    """It ends with its prefill. Layer-wise all but the last layer has left by then; blocking, nothing has."""
    row, _ = send(long_prompt_cluster(TOKENS, layerwise=True), output=1)
    assert row["finish_s"] == row["prefill_end_s"] == row["first_token_s"]
    assert np.isnan(row["transfer_end_s"]) and np.isnan(row["decode_start_s"])
    assert row["wire_bytes"] == pytest.approx(BF16_BYTES * (LAYERS - 1) / LAYERS, rel=1e-9)
    row, _ = send(long_prompt_cluster(), output=1)
    assert row["finish_s"] == row["prefill_end_s"]
    assert row["wire_bytes"] == 0.0


def test_flows_that_share_a_port_share_its_rate_max_min_fairly():
    """Three flows of 1 GB leave one NIC of 3 GB/s; a fourth goes from the other NIC into the first one's target.

    Ports: egress 0 carries flows A, B (to 0) and C (to 1); ingress 0 carries A, B and D. All capacities are 3 GB/s, so
    every flow gets 1 GB/s until all end together after 1 s.
    """
    cluster = make_cluster(make_profile(), pairs=2, nic_bytes_per_s=3e9, kv=(10**6, 5 * 10**5, 25 * 10**4, 3 * 10**5))
    rows = run_on_paths(cluster, [(0, 0), (0, 0), (0, 1), (1, 0)], tokens=[1000, 1000, 1000, 1000])
    np.testing.assert_allclose(rows["transfer_end_s"] - rows["flow_start_s"], 1.0, rtol=1e-4)
    # With D three times as long: it goes on alone, with 2 GB left at 3 GB/s, when the others have ended.
    rows = run_on_paths(cluster, [(0, 0), (0, 0), (0, 1), (1, 0)], tokens=[1000, 1000, 1000, 3000])
    wire_s = rows["transfer_end_s"] - rows["flow_start_s"]
    np.testing.assert_allclose(wire_s, [1.0, 1.0, 1.0, 1.0 + 2 / 3], rtol=1e-4)
    # Without A and B on ingress 0, D is held by nothing but its own 3 GB/s, and A, B share 3 GB/s of egress 0.
    rows = run_on_paths(cluster, [(0, 1), (0, 1), (1, 0)], tokens=[1000, 1000, 1000])
    np.testing.assert_allclose(rows["transfer_end_s"] - rows["flow_start_s"], [2 / 3, 2 / 3, 1 / 3], rtol=1e-4)


def run_on_paths(cluster: Cluster, pairs: list[tuple[int, int]], tokens: list[int]) -> np.ndarray:
    sim = Simulation(cluster, make_arrivals([0.0] * len(pairs), tokens, 2), rule=None)
    for pair in pairs:
        assert sim.step()
        decisions.dispatch(sim, *pair, 0)
    assert not sim.step()
    return sim.records
