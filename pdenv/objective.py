"""What a scenario charges, as plain numbers for the engine and for schedulers that minimise predicted cost."""

from __future__ import annotations

from pdenv.scenario import Scenario
from pdenv.sim.engine import Objective


def objective_of(scenario: Scenario) -> Objective:
    """The scenario's cost weights, with those of time scaled as its cost mode says.

    In `standard` mode a second counts from the first token on, in `normalised` mode time is in SLA limits.
    """
    cost, sla = scenario.cost, scenario.sla
    before, after = {  # weight of a second before and after the decode instance has the request
        "joint": (1.0, 1.0),
        "standard": (0.0, 1.0),
        "normalised": (1.0 / sla.ttft_s, 1.0 / sla.tpot_s),
    }[cost.mode]
    return Objective(
        ttft_limit_s=sla.ttft_s,
        tpot_limit_s=sla.tpot_s,
        ttft_step=cost.ttft_step,
        ttft_slope_per_s=cost.ttft_slope_per_s,
        tpot_step=cost.tpot_step,
        tpot_slope_per_s=cost.tpot_slope_per_s,
        w_prefill=cost.w_prefill * before,
        w_transfer=cost.w_transfer * before,
        w_decode=cost.w_decode * after,
        standard=cost.mode == "standard",
        quality=cost.prices(),
        rejection=cost.rejection,
        failure=cost.failure,
        gpu_s=cost.gpu_hour / 3600.0,
        churn=cost.churn,
    )
