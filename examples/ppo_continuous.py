"""PPO for continuous actions in one file: `python examples/ppo_continuous.py`, or with `--critic adam`.

In the style of CleanRL. The lines marked KOVA or ADAM are the difference between the two critics.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn
from torch.distributions import Normal

from kova_rl import Kova, observation  # KOVA


@dataclass
class Args:
    env: str = "Pendulum-v1"
    """A Gymnasium environment with continuous actions."""
    critic: Literal["adam", "kova"] = "kova"
    """What learns the value function."""
    steps: int = 100_000
    """Environment steps, over all environments."""
    seed: int = 1
    envs: int = 8
    """Environments that run side by side."""
    horizon: int = 256
    """Steps of each environment in a rollout."""
    epochs: int = 10
    """Passes of the policy over a rollout, and of the critic with Adam. The critic with Kova makes one."""
    batch: int = 64
    """Transitions in a minibatch."""
    lr: float = 1e-3
    """Of Adam. Kova needs none."""
    gamma: float = 0.9
    lam: float = 0.95
    clip: float = 0.2


class Agent(nn.Module):
    """A Gaussian policy and a critic, which share no weights."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = self.network(observations, 1, gain=1.0)
        self.mean = self.network(observations, actions, gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(actions))

    @staticmethod
    def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
        layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)

    def policy(self, obs: Tensor) -> Normal:
        return Normal(self.mean(obs), self.log_std.exp())


def make_envs(args: Args) -> VectorEnv:
    """Environments with normalised observations and rewards, as PPO and the filter both want them."""
    envs: VectorEnv = gym.make_vec(
        args.env,
        args.envs,
        "sync",
        # SAME_STEP: the step that ends an episode gives the next one's first observation, and final_obs.
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=[
            gym.wrappers.RecordEpisodeStatistics,
            gym.wrappers.ClipAction,
            gym.wrappers.NormalizeObservation,
            lambda env: gym.wrappers.NormalizeReward(env, gamma=args.gamma),
        ],
    )
    return envs


def tensor(array: np.ndarray) -> Tensor:
    return torch.as_tensor(array, dtype=torch.float32)


def main(args: Args) -> float:
    """Learn; gives the mean return of the last 20 episodes."""
    torch.manual_seed(args.seed)
    space = gym.make(args.env).action_space
    if not isinstance(space, gym.spaces.Box):
        raise SystemExit(f"{args.env} has the actions {space}, expected continuous ones")
    envs = make_envs(args)
    agent = Agent(
        int(np.prod(envs.single_observation_space.shape)), int(np.prod(envs.single_action_space.shape))
    )
    actor = [*agent.mean.parameters(), agent.log_std]
    actor_optimizer = torch.optim.Adam(actor, lr=args.lr, eps=1e-5)
    if args.critic == "kova":
        critic_optimizer = Kova(agent.critic, observation=observation.MaxRatio())  # KOVA
    else:
        critic_optimizer = torch.optim.Adam(agent.critic.parameters(), lr=args.lr, eps=1e-5)  # ADAM

    def ratio_of(obs: Tensor, actions: Tensor, old: Tensor) -> Tensor:
        return (agent.policy(obs).log_prob(actions).sum(-1) - old).exp()

    def learn_policy(obs: Tensor, actions: Tensor, old: Tensor, advantages: Tensor) -> None:
        ratio = ratio_of(obs, actions, old)
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        actor_optimizer.zero_grad()
        (-torch.min(ratio * advantages, clipped * advantages).mean()).backward()
        nn.utils.clip_grad_norm_(actor, 0.5)
        actor_optimizer.step()

    def learn_value(obs: Tensor, actions: Tensor, old: Tensor, returns: Tensor) -> None:
        if args.critic == "kova":
            ratio = ratio_of(obs, actions, old).detach()  # KOVA: what the policy's epochs have changed
            critic_optimizer.step(lambda: agent.value(obs), returns, ratio=ratio)  # KOVA
        else:
            critic_optimizer.zero_grad()  # ADAM
            (0.5 * (agent.value(obs) - returns).square().mean()).backward()  # ADAM
            nn.utils.clip_grad_norm_(agent.critic.parameters(), 0.5)  # ADAM
            critic_optimizer.step()  # ADAM

    size = (args.horizon, args.envs)
    obs = torch.zeros(*size, *envs.single_observation_space.shape)
    actions = torch.zeros(*size, *envs.single_action_space.shape)
    log_probs, rewards, values, after = (torch.zeros(size) for _ in range(4))
    ended = torch.zeros(size)
    current, finished, learning = tensor(envs.reset(seed=args.seed)[0]), [], 0.0
    critic_epochs = 1 if args.critic == "kova" else args.epochs

    for _ in range(max(1, args.steps // (args.horizon * args.envs))):
        # ---- collect a rollout
        for t in range(args.horizon):
            with torch.no_grad():
                choice = agent.policy(current)
                actions[t] = choice.sample()
                log_probs[t] = choice.log_prob(actions[t]).sum(-1)
                values[t], obs[t] = agent.value(current), current
            seen, reward, terminated, truncated, infos = envs.step(actions[t].numpy())
            current, rewards[t], done = tensor(seen), tensor(reward), terminated | truncated
            ended[t] = tensor(done)
            with torch.no_grad():  # a time limit cuts an episode, but what would have followed has a value
                after[t] = agent.value(current)
                for i in np.flatnonzero(done):
                    last = agent.value(tensor(infos["final_obs"][i]))
                    after[t, i] = 0.0 if terminated[i] else last
                    finished.append(float(infos["final_info"]["episode"]["r"][i]))

        # ---- advantages
        deltas, advantages, later = rewards + args.gamma * after - values, torch.zeros(size), 0.0
        for t in reversed(range(args.horizon)):
            later = deltas[t] + args.gamma * args.lam * (1 - ended[t]) * later
            advantages[t] = later
        returns = (advantages + values).flatten()

        # ---- learn
        began = time.process_time()
        data = (obs.flatten(0, 1), actions.flatten(0, 1), log_probs.flatten(), advantages.flatten())
        for _ in range(args.epochs):
            for batch in torch.randperm(len(returns)).split(args.batch):
                learn_policy(*(column[batch] for column in data))
        for _ in range(critic_epochs):
            for batch in torch.randperm(len(returns)).split(args.batch):
                learn_value(*(column[batch] for column in data[:3]), returns[batch])
        learning += time.process_time() - began

    mean = float(np.mean(finished[-20:])) if finished else float("nan")
    print(f"mean return of the last {len(finished[-20:])} episodes: {mean:.1f}")
    print(f"processor seconds spent learning: {learning:.1f}")
    if args.critic == "kova":
        belief = critic_optimizer.posterior(lambda: agent.value(current[:1]))  # KOVA: error bars
        print(f"value of the current state: {float(belief.mean):.2f} +- {float(belief.std):.2f}")
    envs.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
