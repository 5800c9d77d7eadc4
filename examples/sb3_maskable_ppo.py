"""MaskablePPO on the native vector environment: many clusters in one process, illegal actions masked.

python examples/sb3_maskable_ppo.py --steps 100000
"""

import argparse

import numpy as np
import torch
from sb3_contrib import MaskablePPO

import pdenv

ENV_ID = "pdenv/Routing-v0"
# A request is held only where there is nowhere to go: with discounting by step, holding would put costs off.
SETTINGS = {"scenario": "toy", "work_conserving": True}


def score(model, windows=4):
    """Mean cost per request in validation windows: of the model, and of the three-part heuristic."""
    settings = {"evaluation": True, "split": "validation", "reference": "three-part"}
    venv = pdenv.make_sb3_vec_env(ENV_ID, n_envs=windows, seed=0, **settings, **SETTINGS)
    venv.set_options({"window": list(range(windows))})
    observation, scores = venv.reset(), {}
    while len(scores) < windows:
        action, _ = model.predict(observation, action_masks=venv.action_masks())
        observation, _, dones, infos = venv.step(action)
        for i in np.flatnonzero(dones):
            scores.setdefault(i, infos[i]["score"])
    return tuple(float(np.mean([s[name] for s in scores.values()])) for name in ("cost", "reference_cost"))


def main(steps):
    # Neighbours that serve the same arrivals make good decisions stand out from lucky windows.
    venv = pdenv.make_sb3_vec_env(ENV_ID, n_envs=32, rollouts_per_window=8, seed=0, **SETTINGS)
    model = MaskablePPO(
        "MultiInputPolicy", venv, n_steps=64, batch_size=512, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9, seed=0
    )
    before, reference = score(model)
    print(f"before: {before:.4f} per request (three-part: {reference:.4f})")
    model.learn(steps)
    after, _ = score(model)
    print(f"after:  {after:.4f} per request")
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    torch.set_num_threads(1)  # fastest for small networks
    main(parser.parse_args().steps)
