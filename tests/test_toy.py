"""The preset `toy`, worked out with pencil and paper.

Prefill of N tokens takes 0.01 + 0.001·N s, an iteration of B sequences 0.01 + 0.001·B s, KV is 16 kB a token and a
NIC carries 16 MB/s: a token takes 0.001 s on a link of its own. At most 1,000 tokens are prefilled in a step.
"""

from __future__ import annotations

import numpy as np
import pytest

from pdenv import load_scenario, simulate

FIELDS = (
    "arrival_s",
    "prefill_start_s",
    "prefill_end_s",
    "flow_start_s",
    "transfer_end_s",
    "decode_start_s",
    "second_token_s",
    "finish_s",
)
NEVER = np.nan


def run(tmp_path, policy: str, requests: str, **overrides):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + requests)
    changes = {"workload": {"kind": "trace", "trace": str(trace)}, "window.warmup_s": 0.0, **overrides}
    return simulate(load_scenario("toy", overrides=changes), policy=policy)


def timeline(result) -> np.ndarray:
    """(n, fields) seconds."""
    return np.column_stack([result.requests[name] for name in FIELDS])


def assert_times(result, expected: list[tuple[float, ...]]) -> None:
    np.testing.assert_allclose(timeline(result), np.array(expected), rtol=0, atol=1e-12)


# Round-robin: requests 0, 2, 4 go to instances 0, requests 1, 3 to instances 1.
#
# Prefill 0   request 0 (100 tokens)                  0.00 + 0.11 = 0.11
#             requests 2 + 4 (300 + 500 tokens)       0.11 + 0.81 = 0.92
# Prefill 1   request 1 (200 tokens)                  0.00 + 0.21 = 0.21
#             request 3 (100 tokens)                  0.21 + 0.11 = 0.32, its only token: done
# Link 0→0    request 0                               0.11 + 0.10 = 0.21
#             2 and 4 share the link: 2 has 0.3 s of bytes, sent at half the rate   0.92 + 0.60 = 1.52
#             4 has sent 0.3 of its 0.5 s by then, and goes on alone                1.52 + 0.20 = 1.72
# Link 1→1    request 1                               0.21 + 0.20 = 0.41
# Decode 0    request 0: 2 iterations of 0.011        0.21, tokens at 0.221, 0.232
#             request 2: alone from 1.52: boundaries 1.531, …, 1.718 (18th), 1.729 (19th)
#             request 4 (ready at 1.72) joins at 1.729: an iteration of two, 0.012 → 1.741, in which request 2
#             emits the last of its 1 + 20 tokens; then alone: 1.752, 1.763
# Decode 1    request 1: one iteration                0.41 + 0.011 = 0.421
BLOCKING = """0.00,100,3
0.00,200,2
0.05,300,21
0.06,100,1
0.07,500,4
"""
BLOCKING_TIMES = [
    (0.00, 0.00, 0.11, 0.11, 0.21, 0.210, 0.221, 0.232),
    (0.00, 0.00, 0.21, 0.21, 0.41, 0.410, 0.421, 0.421),
    (0.05, 0.11, 0.92, 0.92, 1.52, 1.520, 1.531, 1.741),
    (0.06, 0.21, 0.32, NEVER, NEVER, NEVER, NEVER, 0.32),
    (0.07, 0.11, 0.92, 0.92, 1.72, 1.729, 1.741, 1.763),
]


def test_blocking_run(tmp_path):
    result = run(tmp_path, "round-robin", BLOCKING)
    assert_times(result, BLOCKING_TIMES)
    rows = result.requests
    assert rows["prefill"].tolist() == [0, 1, 0, 1, 0]
    assert rows["decode"].tolist() == [0, 1, 0, 1, 0]
    assert rows["wire_bytes"].tolist() == [1.6e6, 3.2e6, 4.8e6, 0.0, 8.0e6]
    np.testing.assert_array_equal(rows["first_token_s"], rows["prefill_end_s"])


def test_summary_of_the_blocking_run(tmp_path):
    summary = run(tmp_path, "round-robin", BLOCKING).summary
    assert summary["completed"] == 5
    # TTFT 0.11, 0.21, 0.87, 0.26, 0.85
    assert summary["ttft_s"]["mean"] == pytest.approx(2.30 / 5, abs=1e-12)
    assert summary["ttft_s"]["max"] == pytest.approx(0.87, abs=1e-12)
    # standard TPOT: (0.232 − 0.11)/2, (0.421 − 0.21)/1, (1.741 − 0.92)/20, none, (1.763 − 0.92)/3
    tpot = (0.061, 0.211, 0.04105, 0.281)
    assert summary["tpot_s"]["mean"] == pytest.approx(sum(tpot) / 4, abs=1e-12)
    # joint TPOT, decode part: 0.011, 0.011, 0.221/20, 0, 0.034/3; transfer part: 0.10, 0.20, 0.60, 0, 0.809
    decode = (0.011, 0.011, 0.01105, 0.0, 0.034 / 3)
    transfer = (0.10, 0.20, 0.60, 0.0, 0.809)
    assert summary["joint_tpot_s"]["decode_mean"] == pytest.approx(sum(decode) / 5, abs=1e-12)
    assert summary["joint_tpot_s"]["transfer_mean"] == pytest.approx(sum(transfer) / 5, abs=1e-12)
    assert summary["joint_tpot_s"]["mean"] == pytest.approx((2.30 + sum(transfer) + sum(decode)) / 5, abs=1e-12)
    # admission: only request 4 waits, from 1.72 to the boundary at 1.729
    assert summary["admission_s"]["max"] == pytest.approx(0.009, abs=1e-12)


def test_layer_wise_run(tmp_path):
    """KV of 100 tokens is made in 0.11 s, 0.1 s of link time: only the last of 10 layers is exposed, 0.01 s.

    The flow of request 0 starts with its step, at 0; its last byte leaves at 0.11 + 0.01 = 0.12. Request 1 (400
    tokens, 0.41 s on the other pair): 0.41 + 0.04 = 0.45. Request 2 (100 tokens) follows request 0 on prefill 0:
    0.11 to 0.22, last byte at 0.23.
    """
    requests = "0.00,100,3\n0.00,400,2\n0.02,100,2\n"
    result = run(tmp_path, "round-robin", requests, **{"network.overlap": "layer_wise", "kv.reserve": "dispatch"})
    assert_times(
        result,
        [
            (0.00, 0.00, 0.11, 0.00, 0.12, 0.120, 0.131, 0.142),
            (0.00, 0.00, 0.41, 0.00, 0.45, 0.450, 0.461, 0.461),
            (0.02, 0.11, 0.22, 0.11, 0.23, 0.230, 0.241, 0.241),
        ],
    )


def test_quantised_run(tmp_path):
    """100 tokens in INT4 are 0.4 MB: 0.025 s on the link, and 0.005 s to convert them at 80 MB/s before they are sent.

    The decode instance stores INT4 and converts nothing.
    """
    tiers = {"all": {"share": 1.0, "precisions": ["int4"]}}
    result = run(tmp_path, "round-robin", "0.00,100,3\n", **{"quality.tiers": tiers, "decode.0.store": "int4"})
    assert_times(result, [(0.00, 0.00, 0.11, 0.11, 0.14, 0.140, 0.151, 0.162)])
    assert result.requests["wire_bytes"].tolist() == [0.4e6]
    assert result.requests["wire_precision"].tolist() == ["int4"]


def test_colocated_run(tmp_path):
    """The twin has four co-located instances; four prompts fill them, the fifth joins the first that is free.

    Instance of request 0: its prompt takes 0.01 + 0.1 = 0.11, then an iteration alone ends at 0.121. Request 4
    (arrived at 0.115, when the others still compute their 200 tokens until 0.21) is in the next one, which takes
    0.011 for the sequence and 0.01 + 0.05 for the prompt: 0.192. Then two sequences, 0.012: 0.204, the second and
    last token of request 4 and the 4th of request 0. 27 more of 0.011: 0.501.
    """
    requests = "0.00,100,31\n0.00,200,1\n0.00,200,1\n0.00,200,1\n0.115,50,2\n"
    result = run(tmp_path, "colocated", requests, **{"workload.predictor": {"kind": "oracle"}})
    assert_times(
        result,
        [
            (0.000, 0.000, 0.110, NEVER, NEVER, 0.110, 0.121, 0.501),
            (0.000, 0.000, 0.210, NEVER, NEVER, 0.210, NEVER, 0.210),
            (0.000, 0.000, 0.210, NEVER, NEVER, 0.210, NEVER, 0.210),
            (0.000, 0.000, 0.210, NEVER, NEVER, 0.210, NEVER, 0.210),
            (0.115, 0.121, 0.192, NEVER, NEVER, 0.192, 0.204, 0.204),
        ],
    )
    assert result.requests["colocated"].tolist() == [0, 1, 2, 3, 0]
