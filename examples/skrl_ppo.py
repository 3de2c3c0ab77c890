"""skrl's PPO with a filtered critic: `python examples/skrl_ppo.py`, after `pip install skrl`.

skrl has one Adam for the policy and the value. `FilteredPPO` leaves it the policy, and after each update Kova
goes once through the returns that skrl has computed. `--critic adam` is skrl's own agent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

from kova_rl import Kova, observation


@dataclass
class Args:
    env: str = "Pendulum-v1"
    """A Gymnasium environment with continuous actions."""
    critic: Literal["adam", "kova"] = "kova"
    """What learns the value function."""
    steps: int = 10_000
    """Steps of each environment."""
    envs: int = 4
    """Environments that run side by side."""
    horizon: int = 256
    """Steps of each environment in a rollout."""
    epochs: int = 10
    """Passes over a rollout, of the policy and of the critic with Adam. The critic with Kova makes one."""
    batches: int = 16
    """Minibatches in a pass."""
    lr: float = 1e-3
    """Of Adam. Kova needs none."""
    reward_scale: float = 0.05
    """Rewards are multiplied by it, so that values are of order 1."""
    seed: int = 1


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Policy(GaussianMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class FilteredPPO(PPO):
    """skrl's PPO whose value is learned by Kova. Build it with ``value_loss_scale=0``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.cfg.learning_rate[0])
        self.critic = Kova(self.value.net, observation=observation.MaxRatio())
        self.checkpoint_modules |= {"optimizer": self.optimizer, "critic": self.critic}

    def update(self, *, timestep: int, timesteps: int) -> None:
        super().update(timestep=timestep, timesteps=timesteps)  # the policy, and the returns
        names = ["observations", "actions", "log_prob", "returns"]
        batches = self.memory.sample(names, batch_size=len(self.memory), mini_batches=self.cfg.mini_batches)
        for seen, actions, old, returns in batches:
            obs, y = self._observation_preprocessor(seen), returns.squeeze(-1)
            with torch.no_grad():
                _, outputs = self.policy.act({"observations": obs, "taken_actions": actions}, role="policy")
            ratio = (outputs["log_prob"] - old).exp().squeeze(-1)
            self.critic.step(lambda obs=obs: self.value.net(obs).squeeze(-1), y, ratio=ratio)


def make(args: Args) -> tuple[RecordEpisodeStatistics, PPO, SequentialTrainer]:
    """The environments, the agent, and what trains it."""
    set_seed(args.seed)
    counted = RecordEpisodeStatistics(gym.make_vec(args.env, args.envs, "sync"), buffer_length=20)
    env = wrap_env(counted, verbose=False)
    spaces = {
        "observation_space": env.observation_space,
        "state_space": env.state_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    ours = args.critic == "kova"
    settings = PPO_CFG(
        rollouts=args.horizon,
        learning_epochs=args.epochs,
        mini_batches=args.batches,
        discount_factor=0.9,
        learning_rate=args.lr,
        value_clip=0.0,
        value_loss_scale=0.0 if ours else 0.5,  # KOVA: the value's loss is left out
        time_limit_bootstrap=True,
        rewards_shaper=lambda rewards, *_: args.reward_scale * rewards,
    )
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    agent = (FilteredPPO if ours else PPO)(  # KOVA
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=args.horizon, num_envs=args.envs, device=env.device),
        cfg=settings,
        **spaces,
    )
    options = {"timesteps": args.steps, "headless": True, "disable_progressbar": True}
    options["close_environment_at_exit"] = False
    return counted, agent, SequentialTrainer(env=env, agents=agent, cfg=options)


def main(args: Args) -> float:
    """Learn; gives the mean return of the last 20 episodes."""
    counted, agent, trainer = make(args)
    began = time.process_time()
    trainer.train()
    mean = float(np.mean(counted.return_queue)) if counted.return_queue else float("nan")
    print(f"mean return of the last {len(counted.return_queue)} episodes: {mean:.1f}")
    print(f"processor seconds: {time.process_time() - began:.1f}")
    if args.critic == "kova":
        first = torch.as_tensor(counted.reset(seed=args.seed)[0][:1])
        belief = agent.critic.posterior(lambda: agent.value.net(first).squeeze(-1))  # KOVA: error bars
        value, std = float(belief.mean) / args.reward_scale, float(belief.std) / args.reward_scale
        print(f"value of the first state: {value:.2f} +- {std:.2f}")
    counted.close()
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
