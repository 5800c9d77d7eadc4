"""PPO of Stable-Baselines3 through gymnasium.make alone. PPO knows no masks: the environment replaces illegal actions.

python examples/sb3_ppo.py --steps 100000
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from pdenv.envs.normalize import NormalizeObservation

ENV_ID = "pdenv/Routing-v0"
# A request is held only where there is nowhere to go: with discounting by step, holding would put costs off.
SETTINGS = {"scenario": "toy", "work_conserving": True, "on_illegal": "replace"}


def score(model, windows=4):
    """Mean cost per request in validation windows: of the model, and of the three-part heuristic."""
    settings = {"evaluation": True, "split": "validation", "reference": "three-part"}
    env = NormalizeObservation(gym.make(ENV_ID, **settings, **SETTINGS))
    scores = []
    for window in range(windows):
        observation, info = env.reset(options={"window": window})
        over = False
        while not over:
            action, _ = model.predict(observation)
            observation, _, _, over, info = env.step(action)
        scores.append(info["score"])
    return tuple(float(np.mean([s[name] for s in scores])) for name in ("cost", "reference_cost"))


def main(steps):
    venv = make_vec_env(ENV_ID, n_envs=8, seed=0, env_kwargs=SETTINGS, wrapper_class=NormalizeObservation)
    model = PPO(
        "MultiInputPolicy", venv, n_steps=256, batch_size=512, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9, seed=0
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
