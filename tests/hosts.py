"""Small models of every class for Stable-Baselines3, and the hosts that they stand for."""

from __future__ import annotations

import copy
from typing import Any

from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

from kova_rl.sb3 import (
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaTD3,
    KovaTRPO,
)

SMALL = {"net_arch": [16, 16]}


ON: dict[str, Any] = {"policy_kwargs": SMALL, "seed": 3, "device": "cpu"}


OFF: dict[str, Any] = {**ON, "buffer_size": 500, "batch_size": 16, "learning_starts": 20}


HUGE = 1e9
"""A gradient norm that nothing reaches: clipping would couple policy and critic."""


HOSTS: dict[str, tuple[Any, Any, str, dict[str, Any], dict[str, Any], int, float]] = {
    # ours, host, environment, arguments, ours alone, steps, factor of the host's squared error
    "ppo": (KovaPPO, PPO, "Pendulum-v1", {**ON, "n_steps": 48, "batch_size": 20, "max_grad_norm": HUGE}, {}, 150, 0.5),  # noqa: E501
    "ppo-discrete": (KovaPPO, PPO, "CartPole-v1", {**ON, "n_steps": 32, "batch_size": 32, "max_grad_norm": HUGE, "target_kl": 0.01}, {}, 150, 0.5),  # noqa: E501
    "a2c": (KovaA2C, A2C, "CartPole-v1", {**ON, "max_grad_norm": HUGE}, {}, 60, 0.5),
    "trpo": (KovaTRPO, TRPO, "Pendulum-v1", {**ON, "n_steps": 64, "batch_size": 24}, {}, 150, 1.0),
    "dqn": (KovaDQN, DQN, "CartPole-v1", {**OFF, "max_grad_norm": HUGE, "target_update_interval": 25}, {"double": False}, 120, 1.0),  # noqa: E501
    "ddpg": (KovaDDPG, DDPG, "Pendulum-v1", OFF, {}, 60, 1.0),
    "td3": (KovaTD3, TD3, "Pendulum-v1", OFF, {}, 60, 1.0),
    "sac": (KovaSAC, SAC, "Pendulum-v1", OFF, {"value_network": False}, 60, 0.5),
}  # fmt: skip


def small(cls: Any, env: Any = None, **kwargs: Any) -> Any:
    """A model of any class that trains in a second."""
    continuous = cls in (KovaSAC, KovaDDPG, KovaTD3)
    usual = copy.deepcopy(OFF if cls in (KovaSAC, KovaDDPG, KovaTD3, KovaDQN) else ON)
    if cls in (KovaPPO, KovaTRPO):
        usual |= {"n_steps": 32, "batch_size": 16}
    return cls("MlpPolicy", env or ("Pendulum-v1" if continuous else "CartPole-v1"), **(usual | kwargs))


ALL = (KovaPPO, KovaA2C, KovaTRPO, KovaDQN, KovaDDPG, KovaTD3, KovaSAC)
