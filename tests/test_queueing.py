"""The engine against queueing theory: Lindley's recursion, Pollaczek–Khinchine, M/G/1 processor sharing.

Sources: D. Lindley, Proc. Camb. Phil. Soc. 48 (1952); L. Kleinrock, Queueing Systems, vol. 1 (1975), section 5.6, and
vol. 2 (1976), section 4.4.
"""

from __future__ import annotations

import numpy as np
import pytest
from small import make_arrivals, make_cluster, make_profile, run

PROMPTS = np.array([100, 400, 1000, 4000])
SHARES = np.array([0.4, 0.3, 0.2, 0.1])

# ---- one prefill instance, one prompt at a time: M/G/1, first come first served ------------------------------------

A_S, B_S, C_S = 0.01, 1e-4, 2e-8


def service_s(prompts: np.ndarray) -> np.ndarray:
    return A_S + B_S * prompts + C_S * prompts.astype(float) ** 2


def poisson(n: int, rate_per_s: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) arrival times and (n,) prompts."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(1 / rate_per_s, n)), rng.choice(PROMPTS, n, p=SHARES)


def queueing_delays(n: int, load: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n,) arrival times, service times and waits of the engine."""
    rate = load / float(SHARES @ service_s(PROMPTS))
    times, prompts = poisson(n, rate, seed)
    cluster = make_cluster(make_profile(A_S, B_S, C_S), prefill={"max_batch_requests": 1})
    records = run(cluster, make_arrivals(times, prompts, 1))
    np.testing.assert_allclose(records["prefill_end_s"] - records["prefill_start_s"], service_s(prompts), rtol=1e-6)
    return times, service_s(prompts), records["prefill_start_s"] - times


def batch_means_error(values: np.ndarray, batches: int = 50) -> float:
    """Standard error of the mean of a correlated series."""
    means = values[: len(values) // batches * batches].reshape(batches, -1).mean(axis=1)
    return float(means.std(ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize("load", [0.5, 0.8, 1.1])
def test_waits_follow_lindleys_recursion(load):
    """w' = max(0, w + s − gap), request by request."""
    times, service, waits = queueing_delays(5000, load, seed=1)
    expected = np.zeros(len(waits))
    for k in range(1, len(waits)):
        expected[k] = max(0.0, expected[k - 1] + service[k - 1] - (times[k] - times[k - 1]))
    assert np.count_nonzero(expected) > 1000
    np.testing.assert_allclose(waits, expected, rtol=0, atol=1e-9 * times[-1])


@pytest.mark.parametrize("load", [0.5, 0.6, 0.7, 0.8])
def test_mean_wait_is_pollaczek_khinchine(load):
    """E[W] = λ·E[S²] / (2·(1 − ρ))."""
    _, _, waits = queueing_delays(1_000_000, load, seed=round(100 * load))
    mean = float(SHARES @ service_s(PROMPTS))
    square = float(SHARES @ service_s(PROMPTS) ** 2)
    expected = (load / mean) * square / (2 * (1 - load))
    error = batch_means_error(waits)
    assert error < 0.02 * expected, "the run is too short to say anything"
    assert abs(waits.mean() - expected) < 3 * error


# ---- one shared link: M/G/1 processor sharing ----------------------------------------------------------------------

PAIRS = 40
SPINE = 1e6  # bytes/s; at 1,000 bytes a token a prompt of x tokens takes x/1000 s alone


def sojourns(n: int, load: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) times alone on the link, and (n,) times taken by blocking transfers that arrive as a Poisson process.

    Prefill takes 1 µs, on 40 instances, so flows start when requests arrive; NICs are ten times as fast as the spine.
    """
    alone = PROMPTS / 1000.0
    times, prompts = poisson(n, load / float(SHARES @ alone), seed)
    cluster = make_cluster(make_profile(), pairs=PAIRS, nic_bytes_per_s=10 * SPINE, spine_bytes_per_s=SPINE)
    records = run(cluster, make_arrivals(times, prompts, 2))
    assert (records["flow_start_s"] - times).max() < 1e-4
    return prompts / 1000.0, records["transfer_end_s"] - records["flow_start_s"]


@pytest.mark.parametrize("load", [0.5, 0.6, 0.7, 0.8])
def test_a_shared_link_is_processor_sharing(load):
    """E[T] = E[S] / (1 − ρ), and a transfer of x seconds takes x / (1 − ρ) on average, whatever the other sizes."""
    alone, taken = sojourns(400_000, load, seed=round(100 * load))
    expected = float(SHARES @ PROMPTS) / 1000.0 / (1 - load)
    error = batch_means_error(taken)
    assert error < 0.02 * expected, "the run is too short to say anything"
    assert abs(taken.mean() - expected) < 3 * error
    for x in PROMPTS / 1000.0:
        of_x = taken[alone == x]
        error = batch_means_error(of_x)
        assert error < 0.03 * x / (1 - load), "the run is too short to say anything"
        assert abs(of_x.mean() - x / (1 - load)) < 3 * error


def test_two_flows_share_the_link_equally():
    """1 s and 3 s of bytes, the second from 0.5 s on: 0.5 s alone, then half of the rate each.

    The first has 0.5 s left: ends at 1.5 s. The second has sent 0.5 s by then and sends 2.5 s alone: ends at 4 s.
    """
    cluster = make_cluster(make_profile(), pairs=2, nic_bytes_per_s=10 * SPINE, spine_bytes_per_s=SPINE)
    records = run(cluster, make_arrivals([0.0, 0.5], [1000, 3000], 2))
    np.testing.assert_allclose(records["transfer_end_s"], [1.5, 4.0], rtol=0, atol=5e-6)
