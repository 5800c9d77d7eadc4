"""Score a trained policy: cost a request on validation windows, beside heuristics on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch as th
import typer
from rich.table import Table
from scipy import stats

from agents.runs import ENV_ID, Run, load_weights, make_policy, read_run
from agents.talk import console, said
from pdenv.envs.normalize import NormalizeObservation
from pdenv.scenario import Scenario

#: Takes observations (parts of `(n, …)`) and masks `(n, A)`, gives actions `(n,)`.
Act = Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]

HEURISTICS = ("three-part", "greedy")
CONFIDENCE = 0.95
RESAMPLES = 9999


def play(
    act: Act, scenario: Scenario, windows: int, reference: str, split: str = "validation", work_conserving: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Serve the first windows of a split, all side by side.

    Returns:
        `(windows,)` cost units a request of the policy, and of the rule `reference` on the same arrivals.
    """
    envs = [
        NormalizeObservation(
            gym.make(
                ENV_ID,
                scenario=scenario,
                evaluation=True,
                split=split,
                window=window,
                reference=reference,
                work_conserving=work_conserving,
                disable_env_checker=True,
            )
        )
        for window in range(windows)
    ]
    seen = [env.reset(seed=0)[0] for env in envs]
    scores: list[dict[str, Any]] = [{}] * windows
    left = list(range(windows))
    while left:
        observations = {part: np.stack([seen[i][part] for i in left]) for part in seen[0]}
        actions = act(observations, np.stack([envs[i].action_masks() for i in left]))
        for i, action in zip(tuple(left), actions.tolist(), strict=True):
            seen[i], _, _, over, info = envs[i].step(action)
            if over:
                scores[i] = info["score"]
                left.remove(i)
    return np.array([s["cost"] for s in scores]), np.array([s["reference_cost"] for s in scores])


def acting(policy: Any, deterministic: bool = True) -> Act:
    """How a policy acts: its most likely action, or a draw."""

    def act(observations: dict[str, np.ndarray], masks: np.ndarray) -> np.ndarray:
        return policy.predict(observations, deterministic=deterministic, action_masks=masks)[0]

    return act


def random_acting(seed: int) -> Act:
    """Any legal action, each as likely."""
    rng = np.random.default_rng(seed)
    return lambda _, masks: (rng.random(masks.shape) * masks).argmax(axis=1)


@dataclass(frozen=True)
class Scores:
    """Cost units a request on each window.

    Attributes:
        costs: policy → `(windows,)`.
    """

    scenario: str
    split: str
    costs: dict[str, np.ndarray]

    def interval(self, name: str) -> tuple[float, float, float]:
        """Mean cost and its 95 % interval over windows."""
        costs = self.costs[name]
        return (float(costs.mean()), *_interval((costs,), lambda x, axis: x.mean(axis=axis)))

    def relative(self, name: str, to: str) -> tuple[float, float, float]:
        """Mean cost of a policy over that of another, and its 95 % interval; windows are paired."""
        pair = (self.costs[name], self.costs[to])
        ratio = float(pair[0].mean() / pair[1].mean())
        return (ratio, *_interval(pair, lambda x, y, axis: x.mean(axis=axis) / y.mean(axis=axis)))

    def table(self) -> Table:
        """A row a policy, cheapest first."""
        n = len(next(iter(self.costs.values())))
        table = Table(title=f"{self.scenario}: cost a request on {n} {self.split} windows, 95 % intervals")
        table.add_column("policy")
        for title in ("cost", *(f"cost / {rule}" for rule in HEURISTICS)):
            table.add_column(title, justify="right")
        for name in sorted(self.costs, key=lambda name: float(self.costs[name].mean())):
            ratios = ["" if name == rule else _shown(self.relative(name, rule)) for rule in HEURISTICS]
            table.add_row(name, _shown(self.interval(name)), *ratios)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: cost on each window, mean and ratios to the heuristics with intervals."""
        rows = {}
        for name, costs in self.costs.items():
            mean, low, high = self.interval(name)
            rows[name] = {"cost": mean, "interval": [low, high], "windows": costs.tolist()}
            for rule in HEURISTICS:
                ratio, low, high = self.relative(name, rule)
                rows[name][f"relative_to_{rule}"] = {"ratio": ratio, "interval": [low, high]}
        return {"scenario": self.scenario, "split": self.split, "confidence": CONFIDENCE, "policies": rows}


def _interval(samples: tuple[np.ndarray, ...], statistic: Callable[..., Any]) -> tuple[float, float]:
    """Percentile bootstrap over windows; NaN with one window only."""
    if len(samples[0]) < 2:
        return float("nan"), float("nan")
    found = stats.bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _shown(value: tuple[float, float, float]) -> str:
    middle, low, high = (f"{x:.3f}" for x in value)
    return middle if np.isnan(value[1]) else f"{middle} [{low}, {high}]"


def score(run: Run, windows: int, split: str = "validation") -> Scores:
    """Score the checkpoint of a run beside the policy it started from, random actions and the heuristics.

    The trained policy takes its most likely action. The start and random actions are drawn: without training the most
    likely action is mostly the same one, which would be a straw man.

    Raises:
        InputError: no checkpoint, or it is damaged.
    """
    th.set_num_threads(run.hyperparameters.torch_threads)
    trained = make_policy(run)
    load_weights(trained, run)
    start = make_policy(run)
    th.manual_seed(run.seed)
    costs: dict[str, np.ndarray] = {}
    contenders = {
        "trained": (acting(trained), "three-part"),
        "its start": (acting(start, deterministic=False), "greedy"),
        "random": (random_acting(run.seed), "greedy"),
    }
    for name, (act, rule) in contenders.items():
        found = play(act, run.scenario, windows, rule, split, run.hyperparameters.work_conserving)
        costs[name], costs[rule] = found
    return Scores(run.scenario.name, split, costs)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/NAME.")],
    windows: Annotated[int, typer.Option(min=1, max=1000, help="Windows, each of the scenario's size.")] = 10,
    split: Annotated[str, typer.Option(metavar="NAME", help="validation, or test for the last word.")] = "validation",
) -> None:
    """Score the latest checkpoint of a run beside two heuristics on the same arrivals.

    Weights are read as plain arrays; nothing of the run is executed.
    """
    with said("agents.evaluate"):
        console().print(score(read_run(folder), windows, split).table())


if __name__ == "__main__":
    app(prog_name="python -m agents.evaluate")
