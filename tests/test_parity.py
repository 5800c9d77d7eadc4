"""A published simulator's printed figures, to six decimals, from a scenario file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pdenv import load_scenario, simulate

SCENARIO = Path(__file__).parent / "data" / "splitwise-2k.yaml"

#: p50, p90 and p99 in s, as splitwise-sim printed them.
TTFT = (0.077498, 0.097786, 0.133715)
TBT = (0.030835, 0.030955, 0.031116)
E2E = (6.587079, 6.622061, 6.650414)
LAST_COMPLETION_S = 57.469211


@pytest.fixture(scope="module")
def requests(shared_dir: Path) -> np.ndarray:
    folder = shared_dir / "parity"
    if not folder.is_dir():
        pytest.skip("the published run is not beside this checkout")
    steps = np.genfromtxt(folder / "splitwise_steps.csv", delimiter=",", names=True)
    tables = {
        f"profiles.tables.{phase}": {"table_x": steps["x"].tolist(), "table_s": steps[f"{phase}_s"].tolist()}
        for phase in ("prefill", "decode")
    }
    trace = str(folder / "fixed_2k_r40.csv")
    scenario = load_scenario(SCENARIO, overrides={**tables, "workload.trace": trace})
    return simulate(scenario, policy="round-robin").requests


def printed(values: np.ndarray) -> list[float]:
    return [round(float(x), 6) for x in np.percentile(values, (50, 90, 99))]


def test_every_request_is_served_by_the_next_pair(requests):
    turn = np.arange(2000) % 5
    assert np.all(requests["status"] == "completed")
    assert np.array_equal(requests["prefill"], turn)
    assert np.array_equal(requests["decode"], turn)


def test_ttft(requests):
    assert printed(requests["ttft_s"]) == pytest.approx(TTFT, abs=1e-9)


def test_tbt_as_that_simulator_defines_it(requests):
    """(E2E − TTFT) over the number of output tokens, not over the number of gaps."""
    decoding = requests["finish_s"] - requests["first_token_s"]
    assert printed(decoding / requests["output_tokens"]) == pytest.approx(TBT, abs=1e-9)


def test_e2e(requests):
    assert printed(requests["finish_s"] - requests["arrival_s"]) == pytest.approx(E2E, abs=1e-9)


def test_last_completion(requests):
    assert round(float(requests["finish_s"].max()), 6) == pytest.approx(LAST_COMPLETION_S, abs=1e-9)
