"""Models whose archives are tested, and what must be the same of two of them."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
)
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from kova_rl.sb3.saving import SafeSaving

SMALL = {"net_arch": [8]}


class SafePPO(SafeSaving, PPO):
    pass


class SafeA2C(SafeSaving, A2C):
    pass


class SafeTRPO(SafeSaving, TRPO):
    pass


class SafeDQN(SafeSaving, DQN):
    pass


class SafeSAC(SafeSaving, SAC):
    pass


class SafeTD3(SafeSaving, TD3):
    pass


class SafeDDPG(SafeSaving, DDPG):
    pass


def envs(name: str, count: int = 2, normalised: bool = False) -> VecEnv:
    made: VecEnv = make_vec_env(name, n_envs=count)
    return VecNormalize(made, gamma=0.9, clip_obs=5.0) if normalised else made


CASES: dict[str, tuple[type[SafeSaving], str, dict[str, Any]]] = {
    "PPO": (SafePPO, "CartPole-v1", {"n_steps": 16, "batch_size": 16, "n_epochs": 2}),
    "PPO, schedules": (
        SafePPO,
        "Pendulum-v1",
        {
            **{"n_steps": 16, "batch_size": 16, "n_epochs": 2, "use_sde": True, "seed": 3},
            "learning_rate": LinearSchedule(1e-3, 1e-4, 0.5),
            "clip_range": LinearSchedule(0.3, 0.1, 0.8),
        },
    ),
    "A2C": (SafeA2C, "CartPole-v1", {"n_steps": 8}),
    "TRPO": (SafeTRPO, "Pendulum-v1", {"n_steps": 16, "batch_size": 16, "learning_rate": 1e-3}),
    "DQN": (SafeDQN, "CartPole-v1", {"learning_starts": 10, "batch_size": 8, "target_update_interval": 20}),
    "SAC": (SafeSAC, "Pendulum-v1", {"learning_starts": 10, "batch_size": 8}),
    "SAC, fixed entropy": (SafeSAC, "Pendulum-v1", {"learning_starts": 10, "batch_size": 8, "ent_coef": 0.1}),
    "TD3": (
        SafeTD3,
        "Pendulum-v1",
        {
            **{"learning_starts": 10, "batch_size": 8, "n_steps": 3},
            "action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.3 * np.ones(1)),
        },
    ),
    "DDPG": (
        SafeDDPG,
        "Pendulum-v1",
        {
            **{"learning_starts": 10, "batch_size": 8, "train_freq": (4, "step")},
            "action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
        },
    ),
}


def build(case: str, normalised: bool = False) -> SafeSaving:
    cls, name, options = CASES[case]
    more = {"buffer_size": 200} if issubclass(cls, (DQN, SAC, TD3)) else {}
    options = {"seed": 0, **more, **options}
    return cls("MlpPolicy", envs(name, normalised=normalised), policy_kwargs=dict(SMALL), **options)


def same(a: Any, b: Any, path: str = "value") -> None:
    """Equal to the bit, in type as in value."""
    assert type(a) is type(b), f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
        raw = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        assert torch.equal(*raw), path
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b), path
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            same(one, other, f"{path}[{i}]")
    elif isinstance(a, np.random.Generator):
        same(a.bit_generator.state, b.bit_generator.state, path)
    elif isinstance(a, np.random.RandomState):
        same(a.get_state(legacy=False), b.get_state(legacy=False), path)
    elif isinstance(a, spaces.Space | ActionNoise | RunningMeanStd | FloatSchedule | LinearSchedule):
        same(vars(a), vars(b), path)
    elif isinstance(a, ConstantSchedule):
        same(a.val, b.val, path)
    else:
        assert a == b, path
