"""TorchRL's PPO with a filtered critic: `python examples/torchrl_ppo.py`, after `pip install torchrl`.

The policy keeps TorchRL's clipped loss and Adam. The critic leaves that loss (`critic_coeff=None`), and Kova
moves it towards the same `value_target` of GAE; `--critic adam` is TorchRL's own way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
import tyro
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.envs import DoubleToFloat, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from kova_rl import Kova


@dataclass
class Args:
    env: str = "Pendulum-v1"
    """A Gymnasium environment with continuous actions."""
    critic: Literal["adam", "kova"] = "kova"
    """What learns the value function."""
    rollouts: int = 20
    """Rollouts to learn from."""
    horizon: int = 1_000
    """Steps in a rollout."""
    epochs: int = 10
    """Passes over a rollout, of the policy and of the critic with Adam. The critic with Kova makes one."""
    batch: int = 100
    """Transitions in a minibatch."""
    lr: float = 1e-3
    """Of Adam. Kova needs none."""
    reward_scale: float = 0.05
    """Targets are multiplied by it, so that values are of order 1."""
    seed: int = 1


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def main(args: Args) -> float:
    """Learn; gives the mean reward of the last rollout."""
    torch.manual_seed(args.seed)
    env = TransformedEnv(GymEnv(args.env))
    for transform in (DoubleToFloat(), StepCounter(), RewardSum()):
        env.append_transform(transform)
    env.set_seed(args.seed)
    spec = env.action_spec
    inputs, actions = env.observation_spec["observation"].shape[-1], spec.shape[-1]
    policy = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(network(inputs, 2 * actions), NormalParamExtractor()),
            in_keys=["observation"],
            out_keys=["loc", "scale"],
        ),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    critic = ValueOperator(network(inputs, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.95, value_network=critic)
    ours = args.critic == "kova"
    loss_module = ClipPPOLoss(
        policy,
        critic,
        entropy_bonus=False,
        critic_coeff=None if ours else 1.0,  # KOVA: the value's loss is left out
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    learned = [*policy.parameters()] if ours else [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(learned, lr=args.lr)
    kova = Kova(critic) if ours else None  # KOVA

    learning, mean = 0.0, 0.0
    for _ in range(args.rollouts):
        with torch.no_grad():
            data = env.rollout(args.horizon, policy, break_when_any_done=False)
        mean = float(data["next", "reward"].mean())
        began = time.process_time()
        data["next", "reward"] *= args.reward_scale
        with torch.no_grad():
            advantage(data)
        data = data.reshape(-1)
        for _ in range(args.epochs):
            for batch in torch.randperm(len(data)).split(args.batch):
                losses = loss_module(data[batch])
                loss = losses["loss_objective"] + (0.0 if ours else losses["loss_critic"])
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learned, 1.0)
                adam.step()
        if kova is not None:
            for batch in torch.randperm(len(data)).split(args.batch):
                obs, targets = data["observation"][batch], data["value_target"][batch].squeeze(-1)
                kova.step(lambda obs=obs: critic.module(obs).squeeze(-1), targets)  # KOVA
        learning += time.process_time() - began

    print(f"mean reward of the last rollout: {mean:.2f}")
    print(f"processor seconds spent learning: {learning:.1f}")
    if kova is not None:
        belief = kova.posterior(lambda: critic.module(data["observation"][:1]).squeeze(-1))
        value, std = float(belief.mean) / args.reward_scale, float(belief.std) / args.reward_scale
        print(f"value of the first state: {value:.2f} +- {std:.2f}")
    env.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
