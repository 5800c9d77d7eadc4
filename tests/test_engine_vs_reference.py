"""The compiled engine and the plain-Python reference simulator agree on every timestamp and total."""

from __future__ import annotations

import pytest
from comparing import compare
from hypothesis import HealthCheck, given, settings
from strategies import ALL_FEATURES, Case, cases, draw_case, features

BATCHES = 6
SEEDS = 60  # a batch


@pytest.mark.parametrize("batch", range(BATCHES))
def test_drawn_cases_agree(batch: int) -> None:
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        found, _ = compare(draw_case(seed))
        assert not found, (seed, found)


def test_a_scaling_change_stays_visible_when_a_delayed_scrape_falls_into_its_instant() -> None:
    found, _ = compare(draw_case(1516))
    assert not found, found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_hypothesis_cases_agree(case: Case) -> None:
    found, _ = compare(case)
    assert not found, found


def test_the_drawn_cases_cover_every_feature() -> None:
    from reference import simulate

    seen: set[str] = set()
    for seed in range(BATCHES * SEEDS):
        case = draw_case(seed)
        seen |= features(case, simulate(case.cluster, case.arrivals, case.blocks, case.script))
    assert seen >= ALL_FEATURES, ALL_FEATURES - seen
