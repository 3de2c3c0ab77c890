"""The value of a policy, with error bars, from Gymnasium alone: `python examples/fitted_value.py`.

A fixed controller of CartPole is rolled out, and a critic is fitted to its discounted returns: by Kova, or by
Adam with `--critic adam`. Monte-Carlo returns of episodes that were kept aside say how far off it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn

from kova_rl import Kova


@dataclass
class Args:
    critic: Literal["adam", "kova"] = "kova"
    """What fits the value function."""
    episodes: int = 20
    """Episodes to learn from; a quarter as many are kept aside to test with."""
    epochs: int = 20
    """Passes of Adam over the data. Kova makes one."""
    batch: int = 64
    """States in a minibatch."""
    lr: float = 1e-3
    """Of Adam. Kova needs none."""
    gamma: float = 0.95
    noise: float = 0.3
    """How often the controller does something else than it should."""
    seed: int = 1


def controller(obs: np.ndarray, rng: np.random.Generator, noise: float) -> int:
    """Push to the side that the pole falls to, but not always."""
    right = obs[2] + 0.5 * obs[3] > 0
    return int(rng.integers(2)) if rng.random() < noise else int(right)


def rollouts(args: Args, episodes: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """States and their discounted returns; CartPole ends when the pole has fallen, after which all is 0."""
    env, states, returns = gym.make("CartPole-v1", max_episode_steps=2_000), [], []
    for _ in range(episodes):
        obs, done, rewards = env.reset(seed=int(rng.integers(2**31)))[0], False, []
        while not done:
            states.append(obs)
            obs, reward, terminated, truncated, _ = env.step(controller(obs, rng, args.noise))
            rewards.append(float(reward))
            done = terminated or truncated
        later, backwards = 0.0, []
        for reward in reversed(rewards):
            later = reward + args.gamma * later
            backwards.append(later)
        returns += reversed(backwards)
    env.close()
    scale = 1 - args.gamma  # values of order 1
    return torch.tensor(np.array(states)), scale * torch.tensor(returns, dtype=torch.float32)


def main(args: Args) -> float:
    """Fit; gives the root mean squared error of the values of new states, as a share of their deviation."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    obs, returns = rollouts(args, args.episodes, rng)
    new_obs, new_returns = rollouts(args, max(1, args.episodes // 4), rng)
    mean, std = obs.mean(0), obs.std(0)
    obs, new_obs = (obs - mean) / std, (new_obs - mean) / std
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    began = time.process_time()
    if args.critic == "kova":
        optimizer = Kova(critic)
        for batch in torch.randperm(len(obs)).split(args.batch):
            optimizer.step(lambda batch=batch: critic(obs[batch]).squeeze(-1), returns[batch])
    else:
        optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr)
        for _ in range(args.epochs):
            for batch in torch.randperm(len(obs)).split(args.batch):
                optimizer.zero_grad()
                nn.functional.mse_loss(critic(obs[batch]).squeeze(-1), returns[batch]).backward()
                optimizer.step()
    seconds = time.process_time() - began

    with torch.no_grad():
        error = (critic(new_obs).squeeze(-1) - new_returns).square().mean().sqrt() / new_returns.std()
    print(f"{len(obs)} states, fitted in {seconds:.2f} processor seconds")
    print(f"error of the values of new states: {float(error):.3f} of the returns' deviation")
    if args.critic == "kova":
        odd = torch.stack([torch.zeros(4), torch.full((4,), 5.0)])  # the mean state, and one far from all
        belief = optimizer.posterior(lambda: critic(odd).squeeze(-1))  # error bars come with it
        for name, value, spread in zip(("usual", "odd"), belief.mean, belief.std, strict=True):
            print(f"value of the {name} state: {float(value):.2f} +- {float(spread):.2f}")
    return float(error)


if __name__ == "__main__":
    main(tyro.cli(Args))
