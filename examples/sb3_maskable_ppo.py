"""MaskablePPO of sb3-contrib on the native vector environment: many clusters in one process, masks included.

python examples/sb3_maskable_ppo.py --steps 200000
"""

import argparse

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecNormalize

import pdenv

ENV_ID, SCENARIO = "pdenv/Routing-v0", "hetero-links"


def score(model: MaskablePPO, windows: int = 4) -> tuple[float, float]:
    """Mean cost per request of the agent, and of the three-part heuristic, in windows that training never sees."""
    venv = pdenv.make_sb3_vec_env(
        ENV_ID, n_envs=windows, scenario=SCENARIO, evaluation=True, split="validation", reference="three-part", seed=0
    )
    observation, scores = venv.reset(), {}
    while len(scores) < windows:
        action, _ = model.predict(observation, action_masks=venv.action_masks(), deterministic=True)
        observation, _, dones, infos = venv.step(action)
        for i in np.flatnonzero(dones):
            scores.setdefault(i, infos[i]["score"])
    costs = [(found["cost"], found["reference_cost"]) for found in scores.values()]
    return tuple(np.mean(costs, axis=0).tolist())


def train(steps: int, seed: int = 0) -> MaskablePPO:
    venv = pdenv.make_sb3_vec_env(ENV_ID, n_envs=16, scenario=SCENARIO, rollouts_per_window=4, seed=seed)
    venv = VecNormalize(venv, norm_obs=False, gamma=0.99)  # observations are in [-1, 1] already; costs are not
    model = MaskablePPO("MultiInputPolicy", venv, n_steps=256, batch_size=512, n_epochs=4, ent_coef=0.01, seed=seed)
    print("before: cost per request {:.3f}, three-part {:.3f}".format(*score(model)))
    model.learn(steps)
    print("after:  cost per request {:.3f}, three-part {:.3f}".format(*score(model)))
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    train(parser.parse_args().steps)
