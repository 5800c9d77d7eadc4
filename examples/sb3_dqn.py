"""DQN of Stable-Baselines3 on flat observations. DQN knows no masks: the environment replaces illegal actions.

python examples/sb3_dqn.py --steps 50000
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN

from pdenv.envs.normalize import FlatObservation

ENV_ID = "pdenv/Routing-v0"
# A request is held only where there is nowhere to go: with discounting by step, holding would put costs off.
SETTINGS = {"scenario": "toy", "work_conserving": True, "on_illegal": "replace"}


def score(model, windows=4):
    """Mean cost per request in validation windows: of the model, and of the three-part heuristic."""
    settings = {"evaluation": True, "split": "validation", "reference": "three-part"}
    env = FlatObservation(gym.make(ENV_ID, **settings, **SETTINGS), normalize=True)
    scores = []
    for window in range(windows):
        observation, info = env.reset(options={"window": window})
        over = False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, _, over, info = env.step(action)
        scores.append(info["score"])
    return tuple(float(np.mean([s[name] for s in scores])) for name in ("cost", "reference_cost"))


def main(steps):
    env = FlatObservation(gym.make(ENV_ID, **SETTINGS), normalize=True)
    model = DQN(
        "MlpPolicy", env, learning_rate=1e-3, gamma=0.95, learning_starts=500, target_update_interval=500, seed=0
    )
    before, reference = score(model)
    print(f"before: {before:.4f} per request (three-part: {reference:.4f})")
    model.learn(steps)
    after, _ = score(model)
    print(f"after:  {after:.4f} per request")
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    torch.set_num_threads(1)  # fastest for small networks
    main(parser.parse_args().steps)
