"""Plain PPO of Stable-Baselines3 on a small cluster, to be copied: python agents/minimal_sb3.py [STEPS]"""

import sys

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import pdenv  # noqa: F401  # registers the environments
from pdenv.envs.normalize import FlatObservation


def make(**settings) -> gym.Env:
    """A cluster whose observation is one vector in [−1, 1]; an illegal action is replaced by a legal one."""
    env = gym.make("pdenv/Routing-v0", scenario="toy", on_illegal="replace", work_conserving=True, **settings)
    return FlatObservation(env, normalize=True)


def main(steps: int) -> None:
    """Train, then serve a validation window beside the heuristic `three-part`."""
    torch.set_num_threads(1)  # the network is small; more threads only wait for each other
    envs = make_vec_env(lambda: make(horizon_requests=200), n_envs=8, seed=0)
    model = PPO("MlpPolicy", envs, 1e-3, n_steps=250, batch_size=500, gamma=0.95, seed=0, device="cpu", verbose=1)
    model.learn(steps)

    env = make(evaluation=True, split="validation", window=0, reference="three-part")
    observation, info = env.reset(seed=0)
    over = False
    while not over:
        action, _ = model.predict(observation, deterministic=True)
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    print("cost a request: {cost:.3f}, three-part: {reference_cost:.3f}".format(**info["score"]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
