"""A model and its environments from plain settings."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch import nn

from kova_rl.algorithms import ALGORITHMS
from kova_rl.envs.making import make_env
from kova_rl.filter.checks import check_whole

__all__ = ["Settings", "build", "environments"]

OURS = (
    "policy",
    "env",
    "learning_rate",
    "policy_kwargs",
    "kova",
    "value",
    "seed",
    "device",
    "_init_setup_model",
    "self",
)
"""Arguments of the algorithms that are not the user's to set by ``host``."""
COUNTS = (
    *("n_steps", "batch_size", "n_epochs", "buffer_size", "train_freq", "target_update_interval"),
    *("n_critic_updates", "cg_max_steps", "line_search_max_iter", "sub_sampling_factor", "refresh"),
    "stats_window_size",
)
"""Arguments that are whole numbers from 1."""
SHARES = ("gamma", "gae_lambda", "tau")
"""Arguments from 0 to 1."""


@dataclass(frozen=True)
class Settings:
    """What a model and its environments are made of. What is None is the algorithm's default."""

    algorithm: str
    environment: str
    critic: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the algorithm, ``kova`` and ``value``."""
    n_envs: int = 1
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    normalise_observations: bool = True
    normalise_rewards: bool = True
    learning_rate: float | None = None
    decay: bool = False
    network: tuple[int, ...] | None = None
    activation: str | None = None
    host: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = _defaults(self.algorithm)
        valid = [name for name in defaults if name not in OURS]
        for name, value in self.host.items():
            if name not in valid:
                near = difflib.get_close_matches(name, valid, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"host: {self.algorithm} takes {', '.join(valid)}, got {name!r}{hint}")
            _check(name, value, defaults[name])


def _class(algorithm: str) -> Any:
    return getattr(importlib.import_module("kova_rl.sb3"), ALGORITHMS[algorithm].ours)


def _defaults(algorithm: str) -> dict[str, Any]:
    """Of the arguments that the algorithm takes by name."""
    parameters = inspect.signature(_class(algorithm)).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD}


def _check(name: str, value: Any, default: Any) -> None:
    """Raise ``ValueError`` for what the algorithm would stumble over, or take for something else."""
    if name in COUNTS:
        check_whole(f"host: {name}", value, least=1)
    elif isinstance(default, bool) and not isinstance(value, bool):
        raise ValueError(f"host: {name} must be true or false, got {value!r}")
    elif isinstance(default, int | float) and not isinstance(value, int | float):
        raise ValueError(f"host: {name} must be a number, got {value!r}")
    elif name in SHARES and not 0 <= value <= 1:
        raise ValueError(f"host: {name} must be in [0, 1], got {value!r}")


def environments(settings: Settings) -> VecEnv:
    """Copies of the environment, with a monitor each, normalised as asked."""

    def make() -> gymnasium.Env[Any, Any]:
        return Monitor(make_env(settings.environment, settings.environment_options))

    env: VecEnv = DummyVecEnv([make] * settings.n_envs)
    if not (settings.normalise_observations or settings.normalise_rewards):
        return env
    try:
        return VecNormalize(
            env,
            norm_obs=settings.normalise_observations,
            norm_reward=settings.normalise_rewards,
            gamma=settings.host.get("gamma", 0.99),
        )
    except ValueError as error:
        env.close()
        raise ValueError(
            f"the observations of {settings.environment} can't be normalised ({error}): "
            "set normalise_observations to False"
        ) from None


def build(settings: Settings, env: VecEnv) -> BaseAlgorithm:
    """The model, on the CPU."""
    kind, arguments = _class(settings.algorithm), {**settings.host, **settings.critic}
    rate = settings.learning_rate or _defaults(settings.algorithm)["learning_rate"]
    arguments["learning_rate"] = LinearSchedule(rate, 0.0, 1.0) if settings.decay else rate
    policy: dict[str, Any] = {}
    if settings.network is not None:
        policy["net_arch"] = list(settings.network)
    if settings.activation is not None:
        policy["activation_fn"] = {"tanh": nn.Tanh, "relu": nn.ReLU}[settings.activation]
    several = isinstance(env.observation_space, gymnasium.spaces.Dict)
    image = not several and len(env.observation_space.shape or ()) == 3
    name = "MultiInputPolicy" if several else "CnnPolicy" if image else "MlpPolicy"
    torch.set_num_threads(1)
    try:
        model: BaseAlgorithm = kind(name, env, policy_kwargs=policy or None, device="cpu", **arguments)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"{settings.algorithm} on {settings.environment}: {error}") from None
    return model
