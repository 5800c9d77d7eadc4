"""Intervals, tests and corrections: values worked out by hand, and how often intervals hold the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from pdenv.bench import statistics


def test_one_window_has_no_interval():
    assert statistics.mean_intervals(np.array([[3.0]])) == [(3.0, None, None)]
    assert statistics.ratio(np.array([3.0]), np.array([2.0])) == (1.5, None, None)


def test_two_windows_give_their_range():
    assert statistics.mean_intervals(np.array([[3.0, 5.0], [7.0, 7.0]])) == [(4.0, 3.0, 5.0), (7.0, 7.0, 7.0)]


def test_an_interval_is_about_as_wide_as_students():
    values = np.random.default_rng(1).normal(10.0, 2.0, (1, 25))
    ((mid, low, high),) = statistics.mean_intervals(values)
    half = stats.t.ppf(0.975, 24) * values.std(ddof=1) / 5.0
    assert mid == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(half, rel=0.06)


@pytest.mark.parametrize(("draw", "least"), [("normal", 0.935), ("exponential", 0.90)])
def test_ten_windows_cover_the_truth_about_as_often_as_they_say(draw, least):
    rng = np.random.default_rng(2)
    sample = rng.normal(1.0, 1.0, (1500, 10)) if draw == "normal" else rng.exponential(1.0, (1500, 10))
    intervals = np.array([(low, high) for _, low, high in statistics.mean_intervals(sample)])
    covered = np.mean((intervals[:, 0] <= 1.0) & (intervals[:, 1] >= 1.0))
    assert least <= covered <= 0.975


def test_the_same_windows_give_the_same_interval():
    values = np.random.default_rng(3).random((2, 12))
    assert statistics.mean_intervals(values) == statistics.mean_intervals(values)


def test_pairs_take_out_what_windows_share():
    other = np.random.default_rng(4).exponential(1.0, 15) + 1.0
    ratio = statistics.ratio(1.1 * other, other)
    assert ratio == pytest.approx((1.1, 1.1, 1.1))
    assert statistics.difference(other + 0.25, other) == pytest.approx((0.25, 0.25, 0.25))
    apart = statistics.ratio(1.1 * other[::-1], other)
    assert apart.high - apart.low > 0.1  # the same costs in other windows


def test_p_values_count_exchanges():
    base = np.zeros(7)
    assert statistics.p_value(np.arange(1.0, 8.0), base) == pytest.approx(2 / 2**7)
    costs = np.array([5.0, 4.0, 1.0, 3.0, -2.0, 6.0, -1.0, 0.5])
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    extreme = np.mean(np.abs(signs @ costs) >= abs(costs.sum()) - 1e-9)
    assert statistics.p_value(costs, np.zeros(8)) == pytest.approx(extreme)
    assert statistics.p_value(costs, costs) == 1.0


def test_too_few_windows_tell_nothing():
    assert not statistics.can_tell(5, 2) and statistics.can_tell(6, 2)
    assert not statistics.can_tell(10, 29) and statistics.can_tell(12, 29) and not statistics.can_tell(1, 2)
    assert [statistics.fewest_to_tell(n) for n in (2, 3, 29)] == [6, 7, 11]


def test_equal_policies_are_rarely_told_apart():
    rng = np.random.default_rng(5)
    found = [statistics.p_value(*rng.exponential(1.0, (2, 8))) for _ in range(400)]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.08


def test_holm_as_in_textbooks():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end():
    values = np.array([0.1, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 99.0])
    assert statistics.interquartile_mean(values) == pytest.approx(np.mean([0.9, 1.0, 1.1, 1.2]))


def test_cost_across_scenarios_is_relative_and_drawn_in_each():
    rng = np.random.default_rng(6)
    base = [rng.exponential(scale, 12) + scale for scale in (0.1, 1.0, 10.0, 100.0)]
    factors = (0.5, 0.9, 1.1, 7.0)
    exact = statistics.relative_over_scenarios([f * b for f, b in zip(factors, base, strict=True)], base)
    assert exact == pytest.approx((1.0, 1.0, 1.0))
    noisy = [0.8 * b * rng.uniform(0.9, 1.1, 12) for b in base]
    mid, low, high = statistics.relative_over_scenarios(noisy, base)
    assert low < mid < high
    assert low > 0.75 and high < 0.85
    alone = statistics.ratio(noisy[1], base[1])
    assert high - low < alone.high - alone.low  # scenarios are drawn for themselves, so their chances even out
    assert statistics.relative_over_scenarios([b[:1] for b in base], [b[:1] for b in base]) == (1.0, None, None)
