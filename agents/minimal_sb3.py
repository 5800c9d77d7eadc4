"""Plain PPO of Stable-Baselines3 on a cluster, to be copied: python agents/minimal_sb3.py [STEPS]"""

import sys

import gymnasium as gym
from stable_baselines3 import PPO

import pdenv  # noqa: F401  # registers the environments
from pdenv.envs.normalize import FlatObservation


def make(**settings) -> gym.Env:
    """A cluster whose observation is one vector in [−1, 1]; an illegal action is replaced by a legal one."""
    env = gym.make("pdenv/Routing-v0", scenario="hetero-links", on_illegal="replace", work_conserving=True, **settings)
    return FlatObservation(env, normalize=True)


def main(steps: int) -> None:
    """Train, then serve a validation window beside the heuristic `three-part`."""
    env = gym.wrappers.TransformReward(make(horizon_requests=500), lambda reward: 0.02 * reward)
    model = PPO("MlpPolicy", env, n_steps=2000, batch_size=500, seed=0, device="cpu", verbose=1)
    model.learn(steps)

    env = make(evaluation=True, split="validation", window=0, reference="three-part")
    observation, info = env.reset()
    over = False
    while not over:
        action, _ = model.predict(observation, deterministic=False)
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    print("cost a request: {cost:.2f}, three-part: {reference_cost:.2f}".format(**info["score"]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
