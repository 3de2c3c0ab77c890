"""Kova inside Stable-Baselines3: the host's numbers, error bars, diagnostics, and what is refused."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from kova_rl import KovaError, NonFiniteBatch, covariance, evolution, observation
from kova_rl.info import StepInfo
from kova_rl.sb3 import (
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaSettings,
    KovaTD3,
    KovaTRPO,
    Optimism,
    Thompson,
)

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")  # short ones are tested
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


class HostsOptimizer:
    """The host's own optimizer behind the interface of ``Kova``: what Kova is swapped for in the test."""

    observation = observation.BatchSize()

    def __init__(self, module: nn.Module, like: torch.optim.Optimizer, factor: float, huber: bool) -> None:
        self.inner = type(like)(module.parameters(), **like.defaults)
        self.factor, self.huber = factor, huber
        self.like = like

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self, predict: Any, targets: torch.Tensor) -> StepInfo:
        predictions = predict()
        distance = nn.functional.smooth_l1_loss if self.huber else nn.functional.mse_loss
        loss = self.factor * distance(targets, predictions)
        self.inner.zero_grad()
        loss.backward()
        self.inner.param_groups[0]["lr"] = self.like.param_groups[0]["lr"]
        self.inner.step()
        return StepInfo((targets - predictions).detach(), 0.0, torch.zeros(1), 0.0, self)  # type: ignore[arg-type]

    def variances(self) -> torch.Tensor:
        return torch.zeros(1)

    def unwhitened(self, change: torch.Tensor) -> torch.Tensor:
        return change


def hosts_optimizer(model: Any) -> torch.optim.Optimizer:
    return model.policy.optimizer if hasattr(model.policy, "optimizer") else model.critic.optimizer


@pytest.mark.parametrize("name", HOSTS)
def test_with_the_hosts_optimizer_put_back_the_weights_are_the_hosts(name: str) -> None:
    ours, host, env, arguments, own, steps, factor = copy.deepcopy(HOSTS[name])
    theirs = host("MlpPolicy", env, **copy.deepcopy(arguments)).learn(steps)
    model = ours("MlpPolicy", env, **arguments, **own)
    for key, kova in vars(model.filters).items():
        swapped = HostsOptimizer(kova.module, hosts_optimizer(model), factor, huber=name == "dqn")
        setattr(model.filters, key, swapped)
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.learn(steps)
    found = model.policy.state_dict()
    for key, value in theirs.policy.state_dict().items():
        assert torch.equal(found[key], value), key
    moved = {key for key, value in before.items() if not torch.equal(found[key], value)}
    assert len(moved) >= len(before) - 1  # the test would prove nothing if nothing had moved


@pytest.mark.parametrize("name", HOSTS)
def test_without_kova_it_is_the_host(name: str) -> None:
    ours, host, env, arguments, own, steps, _ = copy.deepcopy(HOSTS[name])
    model = ours("MlpPolicy", env, **arguments, **own, kova=None).learn(steps)
    theirs = host("MlpPolicy", env, **copy.deepcopy(arguments)).learn(steps)
    for key, value in theirs.policy.state_dict().items():
        assert torch.equal(model.policy.state_dict()[key], value), key
    with pytest.raises(KovaError, match="kova=None"):
        model.value_distribution(model.get_env().reset())
