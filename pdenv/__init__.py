"""pdenv: simulate and schedule prefill/decode disaggregated LLM serving.

    scenario = pdenv.load_scenario("operating-point", overrides={"workload.rate_per_s": 3.0})
    result = pdenv.simulate(scenario, policy="three-part", seed=0)
    result.summary["joint_tpot_s"]["mean"]

The cluster as an environment, for agents:

    env = gymnasium.make("pdenv/Cluster-v0", scenario="operating-point")

Importing the package registers the environments and is cheap: everything heavy is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pdenv.envs.registration import register as _register

if TYPE_CHECKING:
    from pdenv.bench.compare import compare
    from pdenv.envs.sb3 import make_sb3_vec_env
    from pdenv.run import simulate
    from pdenv.scenario import Scenario, load_scenario

__version__ = "0.1.0"

__all__ = ["Scenario", "__version__", "compare", "load_scenario", "make_sb3_vec_env", "simulate"]

_HOMES = {
    "Scenario": "pdenv.scenario",
    "compare": "pdenv.bench.compare",
    "load_scenario": "pdenv.scenario",
    "make_sb3_vec_env": "pdenv.envs.sb3",
    "simulate": "pdenv.run",
}


_register()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pdenv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
