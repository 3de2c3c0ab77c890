"""PPO in one file, with a filtered critic: `python examples/ppo.py`.

The policy learns with Adam, as always, and the critic with a Kalman filter: the two lines marked KOVA.
In the style of CleanRL. Discrete actions; `--help` lists the settings.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.distributions import Categorical

from kova_rl import Kova, observation


@dataclass
class Args:
    env: str = "CartPole-v1"
    """A Gymnasium environment with discrete actions."""
    steps: int = 80_000
    """Environment steps, over all environments."""
    seed: int = 1
    envs: int = 8
    """Environments that run side by side."""
    horizon: int = 128
    """Steps of each environment in a rollout."""
    epochs: int = 4
    """Passes over a rollout."""
    batch: int = 256
    """Transitions in a minibatch."""
    lr: float = 1e-3
    """Of the policy's Adam; falls to 0. The critic needs none."""
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    ent_coef: float = 0.01
    reward_scale: float = 0.02
    """Rewards are multiplied by it, so that values are of order 1."""


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64 units; policy and critic have one each."""
    sizes, layers = (inputs, 64, 64, outputs), []
    for a, b, scale in zip(sizes, sizes[1:], (2**0.5, 2**0.5, gain), strict=False):
        layer = nn.Linear(a, b)
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(array, dtype=torch.float32)


def main(args: Args) -> float:
    """Learn; gives the mean return of the last 100 episodes."""
    torch.manual_seed(args.seed)
    # SAME_STEP: the step that ends an episode returns the first observation of the next one, and the last
    # observation of the old one as final_obs. Gymnasium's default, NEXT_STEP, has a step in between that no
    # action caused, and that would have to be left out of every sum and batch.
    envs = gym.make_vec(
        args.env, args.envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    if not isinstance(envs.single_action_space, gym.spaces.Discrete):
        raise SystemExit(f"{args.env} has the actions {envs.single_action_space}, expected discrete ones")
    inputs = int(np.prod(envs.single_observation_space.shape))

    policy = network(inputs, int(envs.single_action_space.n), gain=0.01)
    critic = network(inputs, 1, gain=1.0)
    policy_optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr, eps=1e-5)
    critic_optimizer = Kova(critic, observation=observation.MaxRatio())  # KOVA, in place of Adam

    def learn(obs, actions, old_log_probs, advantages, returns) -> None:
        """One step of the policy and one of the critic, on a minibatch."""
        choice = Categorical(logits=policy(obs))
        ratio = (choice.log_prob(actions) - old_log_probs).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        gain = torch.min(ratio * advantages, clipped * advantages).mean()
        policy_optimizer.zero_grad()
        (-gain - args.ent_coef * choice.entropy().mean()).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        policy_optimizer.step()
        critic_optimizer.step(lambda: critic(obs).squeeze(-1), returns, ratio=ratio)  # KOVA

    rollout = (args.horizon, args.envs)
    obs, next_obs = torch.zeros(*rollout, inputs), torch.zeros(*rollout, inputs)
    actions = torch.zeros(rollout, dtype=torch.int64)
    log_probs, rewards, terminated, ended = (torch.zeros(rollout) for _ in range(4))
    current = tensor(envs.reset(seed=args.seed)[0]).flatten(1)
    scores, finished = np.zeros(args.envs), deque(maxlen=100)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[mean]:.0f} an episode"),
    )
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task(args.env, total=args.steps, mean=0.0)
        while not progress.finished:
            # ---- collect a rollout
            for t in range(args.horizon):
                with torch.no_grad():
                    choice = Categorical(logits=policy(current))
                    actions[t] = choice.sample()
                    log_probs[t] = choice.log_prob(actions[t])
                seen, reward, terminations, truncations, infos = envs.step(actions[t].numpy())
                done = terminations | truncations
                after = seen.copy()  # what followed the action, were it the end of an episode or not
                for i in done.nonzero()[0]:
                    after[i] = infos["final_obs"][i]
                obs[t], next_obs[t] = current, tensor(after).flatten(1)
                rewards[t] = args.reward_scale * tensor(reward)
                terminated[t], ended[t] = tensor(terminations), tensor(done)
                current = tensor(seen).flatten(1)
                scores += reward
                finished.extend(scores[done])
                scores[done] = 0.0

            # ---- advantages: a time limit cuts an episode short, but what would have followed has a value
            with torch.no_grad():
                values, next_values = critic(obs).squeeze(-1), critic(next_obs).squeeze(-1)
            deltas = rewards + args.gamma * (1 - terminated) * next_values - values
            advantages, later = torch.zeros(rollout), torch.zeros(args.envs)
            for t in reversed(range(args.horizon)):
                later = deltas[t] + args.gamma * args.lam * (1 - ended[t]) * later
                advantages[t] = later
            returns = (advantages + values).flatten()

            # ---- learn
            policy_optimizer.param_groups[0]["lr"] = args.lr * (1 - progress.tasks[bar].percentage / 100)
            data = (obs.flatten(0, 1), actions.flatten(), log_probs.flatten(), advantages.flatten(), returns)
            for _ in range(args.epochs):
                for batch in torch.randperm(len(returns)).split(args.batch):
                    learn(*(column[batch] for column in data))

            mean = float(np.mean(finished)) if finished else 0.0
            progress.update(bar, advance=args.horizon * args.envs, mean=mean)

    start = tensor(envs.reset(seed=args.seed)[0]).flatten(1)[:1]
    belief = critic_optimizer.posterior(lambda: critic(start).squeeze(-1))  # and what the filter gives on top
    value, std = float(belief.mean) / args.reward_scale, float(belief.std) / args.reward_scale
    print(f"mean return of the last {len(finished)} episodes: {mean:.1f}")
    print(f"value of the start state: {value:.2f} +- {std:.2f} (discounted by {args.gamma})")
    envs.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
