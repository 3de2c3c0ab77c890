"""Double DQN in one file, with a filtered Q network: `python examples/dqn.py`.

`--thompson` explores with networks that are drawn from the filter's posterior, one an episode, in place of
epsilon-greedy. In the style of CleanRL. Discrete actions; `--help` lists the settings.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from kova_rl import Kova, observation, targets
from kova_rl.agents import Replay
from kova_rl.agents.replay import Transition


@dataclass
class Args:
    env: str = "CartPole-v1"
    """A Gymnasium environment with discrete actions."""
    steps: int = 15_000
    """Environment steps."""
    seed: int = 1
    batch: int = 64
    """Transitions in a batch."""
    every: int = 2
    """Environment steps for each update."""
    warm_up: int = 1_000
    """Random steps before the first update."""
    capacity: int = 15_000
    """Transitions in the replay buffer."""
    target_every: int = 50
    """Updates between two copies of the network to the target network."""
    gamma: float = 0.99
    reward_scale: float = 0.02
    """Rewards are multiplied by it, so that values are of order 1."""
    epsilon: float = 0.05
    """Share of random actions, after a linear fall from 1."""
    explore: int = 3_000
    """Steps that the fall takes."""
    thompson: bool = False
    """Act on a network drawn from the posterior, a new one for each episode."""


def main(args: Args) -> float:
    """Learn; gives the mean return of the last 20 episodes."""
    torch.manual_seed(args.seed)
    chance = np.random.default_rng(args.seed)
    env = gym.make(args.env)
    if not isinstance(env.action_space, gym.spaces.Discrete):
        raise SystemExit(f"{args.env} has the actions {env.action_space}, expected discrete ones")
    inputs, actions = int(np.prod(env.observation_space.shape)), int(env.action_space.n)

    q = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))
    target, drawn = copy.deepcopy(q), copy.deepcopy(q)
    optimizer = Kova(q, observation=observation.BatchSize())  # KOVA, in place of Adam
    replay = Replay(args.capacity, (inputs,), args.seed)

    def observe(seen: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(seen, dtype=torch.float32).flatten()

    def act(obs: torch.Tensor, step: int) -> int:
        epsilon = max(args.epsilon, 1 - step / args.explore)
        if step < args.warm_up or (not args.thompson and chance.random() < epsilon):
            return int(chance.integers(actions))
        with torch.no_grad():
            return int((drawn if args.thompson else q)(obs).argmax())

    def learn() -> None:
        data = replay.sample(args.batch)
        with torch.no_grad():
            online, slow = q(data.next_observations), target(data.next_observations)
        y = targets.double_q(data.rewards, online, slow, data.terminated, args.gamma)
        optimizer.step(lambda: q(data.observations).gather(1, data.actions).squeeze(1), y)  # KOVA

    obs, score, finished, updates = observe(env.reset(seed=args.seed)[0]), 0.0, deque(maxlen=20), 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[mean]:.0f} an episode"),
    )
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task(args.env, total=args.steps, mean=0.0)
        for step in range(args.steps):
            action = act(obs, step)
            seen, reward, terminated, truncated, _ = env.step(action)
            after = observe(seen)
            # a time limit ends the episode, but not what the state is worth: truncated is not terminated
            replay.add(Transition(obs, action, args.reward_scale * float(reward), after, terminated))
            obs, score = after, score + float(reward)
            if terminated or truncated:
                finished.append(score)
                obs, score = observe(env.reset()[0]), 0.0
                if args.thompson:
                    with optimizer.sampled():  # KOVA: the weights are a draw inside the block
                        drawn.load_state_dict(q.state_dict())
            if step >= args.warm_up and step % args.every == 0:
                learn()
                updates += 1
                if updates % args.target_every == 0:
                    target.load_state_dict(q.state_dict())
            progress.update(bar, advance=1, mean=float(np.mean(finished)) if finished else 0.0)

    mean = float(np.mean(finished)) if finished else 0.0
    start = observe(env.reset(seed=args.seed)[0]).expand(actions, -1)
    belief = optimizer.posterior(lambda: q(start).diagonal())  # KOVA: row i asks for action i
    print(f"mean return of the last {len(finished)} episodes: {mean:.1f}")
    for action, (value, std) in enumerate(zip(belief.mean.tolist(), belief.std.tolist(), strict=True)):
        value, std = value / args.reward_scale, std / args.reward_scale
        print(f"value of action {action} in the start state: {value:.2f} +- {std:.2f}")
    env.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
