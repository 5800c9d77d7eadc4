"""PPO with action masks in one file, in the style of CleanRL, on `gymnasium.make_vec`.

python examples/cleanrl_ppo.py --steps 100000
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import pdenv  # noqa: F401  (registers the environments)
from pdenv.envs.normalize import Normalizer, flatten

ENV_ID = "pdenv/Routing-v0"
# A request is held only where there is nowhere to go: with discounting by step, holding would put costs off.
SETTINGS = {"scenario": "toy", "work_conserving": True}
N_ENVS, N_STEPS, EPOCHS, MINIBATCHES = 32, 64, 10, 4
LEARNING_RATE, GAMMA, LAMBDA, CLIP = 1e-3, 0.98, 0.9, 0.2


def make_envs(n, **settings):
    return gym.make_vec(ENV_ID, num_envs=n, vectorization_mode="vector_entry_point", **settings, **SETTINGS)


def network(inputs, outputs, gain):
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, its_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, its_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """Actor and critic on flat, normalised observations."""

    def __init__(self, layout):
        super().__init__()
        self.layout, self.normalize = layout, Normalizer(layout)
        self.actor = network(layout.size, layout.n_actions, gain=0.01)
        self.critic = network(layout.size, 1, gain=1.0)

    def see(self, observation, info):
        """Inputs `(n, size)` and legal actions `(n, A)`."""
        flat = self.normalize(flatten(self.layout, observation))
        return torch.from_numpy(flat), torch.from_numpy(info["action_mask"])

    def policy(self, inputs, legal):
        return Categorical(logits=self.actor(inputs).masked_fill(~legal, -1e8))

    def value(self, inputs):
        return self.critic(inputs).squeeze(-1)


@torch.no_grad()
def score(agent, windows=4):
    """Mean cost per request in validation windows: of the agent, and of the three-part heuristic."""
    envs = make_envs(windows, evaluation=True, split="validation", reference="three-part")
    seen, costs = agent.see(*envs.reset(seed=0, options={"window": list(range(windows))})), {}
    while len(costs) < windows:
        observation, _, _, truncated, info = envs.step(agent.policy(*seen).sample().numpy())
        seen = agent.see(observation, info)
        for i in np.flatnonzero(truncated):
            costs.setdefault(i, [info["score"][name][i] for name in ("cost", "reference_cost")])
    return np.mean(list(costs.values()), axis=0).tolist()


@torch.no_grad()
def collect(envs, agent, seen, resets):
    """One rollout `(N_STEPS, N_ENVS, …)`. `resets`: environments whose next step only starts a new episode."""
    names = ("inputs", "legal", "action", "logprob", "value", "reward", "truncated", "counts")
    rows = {name: [] for name in names}
    for _ in range(N_STEPS):
        policy = agent.policy(*seen)
        action = policy.sample()
        observation, reward, _, truncated, info = envs.step(action.numpy())
        step = (*seen, action, policy.log_prob(action), agent.value(seen[0]), reward, truncated, ~resets)
        for name, value in zip(names, step, strict=True):
            rows[name].append(torch.as_tensor(value))
        seen, resets = agent.see(observation, info), truncated
    batch = {name: torch.stack(row) for name, row in rows.items()}
    batch["advantage"] = advantages(batch, agent.value(seen[0]))
    return batch, seen, resets


def advantages(batch, last_value):
    """Generalised advantages. An episode is cut off, never finished: the value of what comes next always counts."""
    values = torch.cat([batch["value"], last_value[None]])
    deltas = batch["reward"].float() + GAMMA * values[1:] - values[:-1]
    found, following = torch.zeros_like(deltas), torch.zeros(N_ENVS)
    for t in reversed(range(N_STEPS)):
        following = deltas[t] + GAMMA * LAMBDA * following * ~batch["truncated"][t]
        found[t] = following
    return found


def update(agent, optimizer, batch):
    counts = batch.pop("counts")
    flat = {name: value[counts] for name, value in batch.items()}  # the steps that only reset taught nothing
    returns = flat["advantage"] + flat["value"]
    gains = (flat["advantage"] - flat["advantage"].mean()) / (flat["advantage"].std() + 1e-8)
    for _ in range(EPOCHS):
        for k in torch.randperm(len(gains)).chunk(MINIBATCHES):
            policy = agent.policy(flat["inputs"][k], flat["legal"][k])
            ratio = (policy.log_prob(flat["action"][k]) - flat["logprob"][k]).exp()
            actor_loss = -torch.min(gains[k] * ratio, gains[k] * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            critic_loss = (agent.value(flat["inputs"][k]) - returns[k]).square().mean()
            optimizer.zero_grad()
            (actor_loss + 0.5 * critic_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main(steps, seed=0):
    torch.manual_seed(seed)
    envs = make_envs(N_ENVS, rollouts_per_window=8)
    agent = Agent(envs.layout)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE)
    before, reference = score(agent)
    print(f"before: {before:.4f} per request (three-part: {reference:.4f})")
    seen, resets = agent.see(*envs.reset(seed=seed)), np.zeros(N_ENVS, bool)
    for _ in range(0, steps, N_ENVS * N_STEPS):
        batch, seen, resets = collect(envs, agent, seen, resets)
        update(agent, optimizer, batch)
    after, _ = score(agent)
    print(f"after:  {after:.4f} per request")
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    torch.set_num_threads(1)  # fastest for small networks
    main(parser.parse_args().steps)
