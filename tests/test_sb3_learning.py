"""Filtered critics learn: thresholds that a random policy can't reach."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.noise import NormalActionNoise

from kova_rl.sb3 import KovaA2C, KovaDDPG, KovaDQN, KovaPPO, KovaSAC, KovaTRPO

OFF: dict[str, Any] = {"batch_size": 64, "learning_rate": 1e-3, "buffer_size": 10_000, "gamma": 0.9}
NOISE = NormalActionNoise(np.zeros(2), np.full(2, 0.3))


class Reach(gym.Env[np.ndarray, np.ndarray]):
    """Walk to the origin of the plane: 30 steps, reward minus the squared distance."""

    observation_space = spaces.Box(-10, 10, (2,))
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.left = self.np_random.uniform(-2, 2, 2).astype(np.float32), 30
        return self.at, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + 0.3 * np.asarray(action, np.float32), -10, 10)
        self.left -= 1
        return self.at, -float(self.at @ self.at), False, self.left == 0, {}


PPO = {"n_steps": 512, "gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3}
DQN = {"learning_starts": 500, "train_freq": 2, "target_update_interval": 200, "exploration_fraction": 0.2}
TASKS: dict[str, tuple[Any, Any, int, dict[str, Any], float]] = {
    # class, environment, steps, settings, return to exceed; by chance it is 24 in CartPole, -136 in Reach
    "ppo": (KovaPPO, "CartPole-v1", 12_000, PPO, 150),
    "a2c": (KovaA2C, "CartPole-v1", 12_000, {"n_steps": 16}, 150),
    "dqn": (KovaDQN, "CartPole-v1", 10_000, {**OFF, **DQN, "gamma": 0.98}, 80),
    "sac": (KovaSAC, Reach, 1_500, OFF, -30),
    "ddpg": (KovaDDPG, Reach, 1_500, {**OFF, "action_noise": NOISE}, -30),
    "trpo": (KovaTRPO, Reach, 8_000, {"n_steps": 512, "batch_size": 64, "gamma": 0.9}, -30),
}
SEED = 0


def trained(name: str, seed: int) -> float:
    """Mean return of the last 20 training episodes."""
    torch.set_num_threads(1)
    cls, env, steps, settings, _ = TASKS[name]
    usual = {"policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu", "seed": seed}
    model = cls("MlpPolicy", env if isinstance(env, str) else env(), **usual, **settings).learn(steps)
    return float(np.mean([episode["r"] for episode in list(model.ep_info_buffer)[-20:]]))


@pytest.mark.filterwarnings("ignore:the first innovations")  # the rewards of Reach are as they come
@pytest.mark.parametrize("name", TASKS)
def test_it_learns(name: str) -> None:
    assert trained(name, SEED) > TASKS[name][-1]
