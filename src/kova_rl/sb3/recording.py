"""Keeps the rollouts of a PPO run, for critics to be compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from kova_rl.sb3.collected import ratio_of, rollout_of
from kova_rl.sb3.ppo import KovaPPO
from kova_rl.sb3.settings import KovaSettings
from kova_rl.value_loop import Rollout

__all__ = ["recorded"]

Kept = Callable[[Rollout, Tensor], None]


class _Recording(KovaPPO):
    kept: Kept

    def train(self) -> None:
        rollout = rollout_of(self, self._cuts)
        super().train()
        self.kept(rollout, ratio_of(self, rollout.observations))


def recorded(
    environment: str, seed: int, rollouts: int, steps: int = 2048, envs: int = 1, critic: str = "adam"
) -> Iterator[tuple[Rollout, Tensor]]:
    """The rollouts of a run of PPO, one after the other, and the policy's ratio after each.

    Networks are two layers of 64 units each, and observations and rewards are normalised as they come
    (``VecNormalize``); all else is Stable-Baselines3's default.

    Args:
        environment: Whose observations are vectors.
        seed: Of the run.
        rollouts: How many.
        steps: Of each environment in a rollout.
        envs: How many environments there are.
        critic: Of the run: ``"adam"``, the host's own, or ``"kova"``, the default of ``KovaPPO``.
    """
    bare = make_vec_env(environment, n_envs=envs, seed=seed)
    if not isinstance(bare.observation_space, spaces.Box) or len(bare.observation_space.shape) != 1:
        raise ValueError(
            f"a stream is recorded of observations that are vectors, {environment} has "
            f"{bare.observation_space}: choose another environment"
        )
    env = VecNormalize(bare)
    sizes = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    arguments: dict[str, Any] = {"seed": seed, "n_steps": steps, "policy_kwargs": sizes, "device": "cpu"}
    kova = KovaSettings() if critic == "kova" else None
    model = _Recording("MlpPolicy", env, kova=kova, **arguments)
    model.set_logger(Logger(None, []))  # of which nothing is kept
    found: list[tuple[Rollout, Tensor]] = []
    model.kept = lambda rollout, ratio: found.append((rollout, ratio))
    for index in range(rollouts):
        # Schedules are the host's defaults, which are constant: a run in parts is the run.
        model.learn(steps * envs, reset_num_timesteps=index == 0)
        yield found.pop()
    env.close()
