"""The table of environment ids."""

from __future__ import annotations

import gymnasium as gym

#: id -> kind, which names the entry points in `pdenv.envs.single` and `pdenv.envs.vector`.
IDS = {
    "pdenv/Routing-v0": "routing",
    "pdenv/Scaling-v0": "scaling",
    "pdenv/Cluster-v0": "cluster",
}


def register() -> None:
    """Tell Gymnasium; `import pdenv` does it."""
    for name, kind in IDS.items():
        if name not in gym.registry:
            gym.register(name, entry_point=f"pdenv.envs.single:{kind}", vector_entry_point=f"pdenv.envs.vector:{kind}")
