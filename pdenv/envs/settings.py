"""What an environment is made with, checked once."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pdenv.envs.layout import Layout, layout_of
from pdenv.errors import InputError, nearest
from pdenv.metrics import COST_MODES
from pdenv.scenario import Scenario, load_scenario
from pdenv.scenario_checks import check
from pdenv.sim.rules import RULES, is_rule
from pdenv.sim.state import OUTSIDE_PAIR, OUTSIDE_ROUTE, OUTSIDE_SCALE
from pdenv.workload.config import WindowConfig
from pdenv.workload.window import SPLITS

Reward = Literal["joint", "standard", "normalised"]

ON_ILLEGAL = ("error", "replace")

#: Seconds between scaling decisions where the scenario has none: so many at most, and so many decisions in a window.
LONGEST_INTERVAL_S, DECISIONS_A_WINDOW = 30, 20

#: Below this an episode is nothing but control ticks.
SHORTEST_INTERVAL_S = 1e-3

#: Requests of a training episode or an evaluation window; beyond it a reset would take minutes.
MOST_REQUESTS = 2_000_000

#: Which decisions an environment takes itself; the others are `rule`'s.
OUTSIDE = {
    "routing": OUTSIDE_ROUTE | OUTSIDE_PAIR,
    "scaling": OUTSIDE_SCALE,
    "cluster": OUTSIDE_ROUTE | OUTSIDE_PAIR | OUTSIDE_SCALE,
}


@dataclass(frozen=True)
class Settings:
    """See `pdenv.envs.single.ClusterEnv` for the meaning of each."""

    kind: str  # "routing", "scaling" or "cluster"
    scenario: Scenario  # with the reward mode and the control interval of this environment
    layout: Layout
    split: str
    window: int | None
    windows: int | None
    rate_scale: float | str
    trace: str | None
    workload_seed: int
    evaluation: bool
    horizon_requests: int | None
    horizon_s: float | None
    warm_start: str | None
    rule: str
    reference: str | None
    work_conserving: bool
    replace_illegal: bool
    shuffle_instances: bool
    beta_per_s: float
    interval_s: float | None

    @property
    def outside(self) -> int:
        return OUTSIDE[self.kind]

    def adapted(self, scenario: Scenario) -> Scenario:
        """Another scenario under the same reward mode and control interval.

        Raises:
            InputError: it does not fit into the observation.
        """
        scenario = _adapted(scenario, self.kind, self.scenario.cost.mode, self.interval_s)
        layout = self.layout
        layout_of(scenario.cluster(), layout.mode, layout.routes, layout.scales, _rows(layout))
        return scenario

    def episode_window(self, scenario: Scenario) -> WindowConfig:
        """How long an episode is. In training nothing is needed after its end."""
        window = scenario.window
        if self.horizon_requests is not None:
            window = window.model_copy(update={"requests": self.horizon_requests, "duration_s": None})
        if self.horizon_s is not None:
            window = window.model_copy(update={"requests": None, "duration_s": self.horizon_s})
        return window if self.evaluation else window.model_copy(update={"drain_max_s": 0.0})


def _rows(layout: Layout) -> tuple[int, int, int]:
    return (layout.prefill, layout.decode, layout.colocated)


def _one_of(value: Any, name: str, choices: tuple[str, ...] | Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise InputError(f"is of type {type(value).__name__}; give one of {', '.join(choices)}", where=name)
    if value not in choices:
        raise InputError(f"is '{value[:60]}'{nearest(value, choices)}", where=name)
    return value


def _rule(value: Any, name: str) -> str:
    """The name of a compiled rule, plain or ROUTE+SCALER."""
    return value if isinstance(value, str) and is_rule(value) else _one_of(value, name, tuple(RULES))


def whole(value: Any, name: str, least: int, most: int = 2**31 - 1) -> int:
    """A whole number in least..most, or InputError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        limit = f"in {least}..{most}" if isinstance(value, int | np.integer) and value > most else f"from {least}"
        raise InputError(f"is {reprlib.repr(value)}; give a whole number {limit}", where=name)
    return int(value)


def _number(value: Any, name: str, above: float = -math.inf, least: float = -math.inf) -> float:
    good = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value <= above or value < least:
        limit = f" above {above:g}" if above > -math.inf else f" from {least:g}"
        raise InputError(f"is {reprlib.repr(value)}; give a finite number{limit}", where=name)
    return float(value)


def rate_scale_of(value: Any) -> float | str:
    """A factor above 0 or "auto", or InputError."""
    return "auto" if isinstance(value, str) and value == "auto" else _number(value, "rate_scale", above=0.0)


def flag(value: Any, name: str) -> bool:
    """True or False, or InputError."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"is {reprlib.repr(value)}; give True or False", where=name)
    return bool(value)


def _adapted(scenario: Scenario, kind: str, reward: str, interval_s: float | None) -> Scenario:
    """The scenario with the environment's reward mode and, where it scales, a control interval."""
    if not (scenario.prefill and scenario.decode) and kind == "scaling":
        raise InputError(f"scenario '{scenario.name}' has no pools to scale", where="scenario")
    if interval_s is None and kind != "routing" and scenario.scaling.interval_s == 0.0 and scenario.prefill:
        interval_s = default_interval_s(scenario)
    scaling = scenario.scaling if interval_s is None else scenario.scaling.model_copy(update={"interval_s": interval_s})
    cost = scenario.cost.model_copy(update={"mode": reward})
    changed = scenario.model_copy(update={"cost": cost, "scaling": scaling})
    for where, message in check(changed)[:1]:
        raise InputError(message, where=".".join(map(str, where)))
    return changed


def default_interval_s(scenario: Scenario) -> float:
    """A twentieth of the scenario's window in whole seconds, 1 to 30; 30 where a trace fixes the rate."""
    window, rate_per_s = scenario.window, scenario.workload.rate_per_s
    if window.duration_s is not None:
        length_s = window.duration_s
    elif rate_per_s is not None and window.requests is not None:
        length_s = window.requests / rate_per_s
    else:
        return LONGEST_INTERVAL_S
    return float(min(max(round(length_s / DECISIONS_A_WINDOW), 1), LONGEST_INTERVAL_S))


def load(scenario: Scenario | str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """A Scenario, or the name or path of one.

    Raises:
        InputError: of another type, unknown, or not valid.
    """
    if overrides is not None and not isinstance(overrides, Mapping):
        message = f"are of type {type(overrides).__name__}; give a dict of dotted keys and values"
        raise InputError(message, where="overrides")
    if isinstance(scenario, Scenario):
        if overrides:
            raise InputError("are for a scenario by name or path; change the Scenario itself", where="overrides")
        return scenario
    if not isinstance(scenario, str | Path):
        message = f"is of type {type(scenario).__name__}; give a Scenario, or the name or path of one"
        raise InputError(message, where="scenario")
    return load_scenario(scenario, overrides or {})


def make_settings(kind: str, **given: Any) -> Settings:
    """Check the arguments of an environment.

    Raises:
        InputError: says which argument is wrong, and what would be right.
    """
    known = [name for name in inspect.signature(_settings).parameters if name != "kind"]
    for name in given:
        if name not in known:
            raise InputError(f"no setting '{name}'{nearest(name, known)}")
    return _settings(kind, **given)


def _settings(
    kind: str,
    *,
    scenario: Scenario | str | Path = "operating-point",
    overrides: Mapping[str, Any] | None = None,
    reward: Reward = "joint",
    action_mode: str = "pair",
    split: str = "train",
    window: int | None = None,
    windows: int | None = 64,
    rate_scale: float | str = 1.0,
    trace: str | Path | None = None,
    workload_seed: int = 0,
    evaluation: bool = False,
    horizon_requests: int | None = None,
    horizon_s: float | None = None,
    warm_start: str | None = "three-part",
    rule: str = "three-part",
    interval_s: float | None = None,
    reference: str | None = None,
    work_conserving: bool = False,
    on_illegal: str = "error",
    shuffle_instances: bool = False,
    pad: tuple[int, int, int] | None = None,
    beta_per_s: float = 0.0,
) -> Settings:
    if interval_s is not None:
        interval_s = _number(interval_s, "interval_s", least=SHORTEST_INTERVAL_S)
        if kind == "routing":
            raise InputError("is for environments that scale; set scaling.interval_s instead", where="interval_s")
    if horizon_requests is not None and horizon_s is not None:
        raise InputError("give horizon_requests or horizon_s, not both", where="horizon_s")
    if trace is not None and not isinstance(trace, str | Path):
        raise InputError(f"is of type {type(trace).__name__}; give the path of a file", where="trace")
    checked = _adapted(load(scenario, overrides), kind, _one_of(reward, "reward", COST_MODES), interval_s)
    layout = layout_of(checked.cluster(), action_mode, kind != "scaling", kind != "routing", pad)
    for name, chosen in (("rule", rule), ("warm_start", warm_start), ("reference", reference)):
        if isinstance(chosen, str) and chosen == "colocated" and not checked.colocated:
            raise InputError(f"'colocated' needs co-located instances; '{checked.name}' has none", where=name)
    return Settings(
        kind=kind,
        scenario=checked,
        layout=layout,
        split=_one_of(split, "split", SPLITS),
        window=None if window is None else whole(window, "window", 0),
        windows=None if windows is None else whole(windows, "windows", 1),
        rate_scale=rate_scale_of(rate_scale),
        trace=None if trace is None else str(trace),
        workload_seed=whole(workload_seed, "workload_seed", 0),
        evaluation=flag(evaluation, "evaluation"),
        horizon_requests=None
        if horizon_requests is None
        else whole(horizon_requests, "horizon_requests", 1, MOST_REQUESTS),
        horizon_s=None if horizon_s is None else _number(horizon_s, "horizon_s", above=0.0),
        warm_start=None if warm_start is None else _rule(warm_start, "warm_start"),
        rule=_rule(rule, "rule"),
        reference=None if reference is None else _rule(reference, "reference"),
        work_conserving=flag(work_conserving, "work_conserving"),
        replace_illegal=_one_of(on_illegal, "on_illegal", ON_ILLEGAL) == "replace",
        shuffle_instances=flag(shuffle_instances, "shuffle_instances"),
        beta_per_s=_number(beta_per_s, "beta_per_s", least=0.0),
        interval_s=interval_s,
    )
