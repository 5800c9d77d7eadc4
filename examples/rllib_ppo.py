"""PPO of Ray RLlib with its action-mask form of observation; `constraints-ray.txt` has versions that fit together.

python examples/rllib_ppo.py --steps 100000
"""

import argparse

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.tune.registry import register_env

import pdenv  # noqa: F401  (registers the environments)
from pdenv.envs.normalize import FlatObservation

ENV_ID = "pdenv/Routing-v0"
# A request is held only where there is nowhere to go: with discounting by step, holding would put costs off.
SETTINGS = {"scenario": "toy", "work_conserving": True}
BATCH = 2048


class MaskInObservation(gym.ObservationWrapper):
    """`{"observations": (size,) in [-1, 1], "action_mask": (A,) of 0 and 1}`, as RLlib's masking module wants it."""

    def __init__(self, env):
        super().__init__(FlatObservation(env, normalize=True))
        mask = gym.spaces.Box(0.0, 1.0, (env.action_space.n,), np.float32)
        self.observation_space = gym.spaces.Dict({"observations": self.env.observation_space, "action_mask": mask})

    def observation(self, observation):
        return {"observations": observation, "action_mask": self.env.action_masks().astype(np.float32)}


def make_env(settings):
    return MaskInObservation(gym.make(ENV_ID, **settings))


def score(algorithm, windows=4):
    """Mean cost per request in validation windows: of the policy, and of the three-part heuristic."""
    module, scores = algorithm.get_module(), []
    env = make_env({"evaluation": True, "split": "validation", "reference": "three-part", **SETTINGS})
    for window in range(windows):
        observation, info = env.reset(options={"window": window})
        over = False
        while not over:
            batch = {"obs": {name: torch.from_numpy(part)[None] for name, part in observation.items()}}
            with torch.no_grad():
                logits = module.forward_inference(batch)["action_dist_inputs"][0]
            observation, _, _, over, info = env.step(torch.distributions.Categorical(logits=logits).sample().item())
        scores.append(info["score"])
    return tuple(float(np.mean([s[name] for s in scores])) for name in ("cost", "reference_cost"))


def make_config():
    return (
        PPOConfig()
        .environment("masked", env_config=SETTINGS)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)  # in this process; more for more cores
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=ActionMaskingTorchRLModule, model_config={"fcnet_hiddens": [64, 64]}
            )
        )
        .training(train_batch_size_per_learner=BATCH, minibatch_size=512, num_epochs=10)
        .training(lr=1e-3, gamma=0.98, lambda_=0.9, vf_clip_param=100.0)  # RLlib learns nothing from larger errors
        .debugging(seed=0)
    )


def main(steps):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_env("masked", make_env)
    algorithm = make_config().build_algo()
    before, reference = score(algorithm)
    print(f"before: {before:.4f} per request (three-part: {reference:.4f})")
    for _ in range(0, steps, BATCH):
        algorithm.train()
    after, _ = score(algorithm)
    print(f"after:  {after:.4f} per request")
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    torch.set_num_threads(1)  # fastest for small networks
    main(parser.parse_args().steps)
