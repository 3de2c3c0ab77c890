"""The classes that a file of ours may name: those of the libraries, and what a user registers."""

from __future__ import annotations

import dataclasses
import difflib
from enum import Enum
from typing import Any

import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent import policies as recurrent
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common import buffers, noise, policies, torch_layers, utils
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.her import GoalSelectionStrategy
from torch.nn.modules import activation

from kova_rl.filter import covariance, evolution, observation
from kova_rl.filter.covariance.isotropic import Isotropic
from kova_rl.sb3.exploration import Draws, Optimism, Thompson
from kova_rl.sb3.settings import KovaSettings
from kova_rl.value_loop import ValueLoop

__all__ = ["class_named", "name_of", "rebuilt", "register", "state_of"]

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}
_INSTANCES: set[type] = set()


def register(name: str, cls: type, *, instances: bool | None = None) -> None:
    """Let files name a class. Do so before ``save`` and before ``load``, under the same name.

    Args:
        name: What stands in the file.
        cls: The class that it means.
        instances: Whether files may hold instances too: a dataclass or named tuple by its fields, an enum by
            its member, another class by its attributes. None is yes for a dataclass, no for others.

    Raises:
        ValueError: The name means another class already.

    Example:
        >>> class Halved:
        ...     def __call__(self, progress: float) -> float:
        ...         return 0.5 * progress
        >>> register("example.Halved", Halved, instances=True)
    """
    if not isinstance(cls, type):
        raise ValueError(f"register takes a name and a class, got {cls!r}: pass the class, not an instance")
    old = _CLASSES.get(name, cls)
    if (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{name!r} is registered for {old.__module__}.{old.__qualname__}: take another name")
    _NAMES.pop(old, None)
    _INSTANCES.discard(old)
    _CLASSES[name], _NAMES[cls] = cls, name
    if dataclasses.is_dataclass(cls) if instances is None else instances:
        _INSTANCES.add(cls)


def name_of(cls: type) -> str | None:
    """The name of this very class, None if it has none."""
    return _NAMES.get(cls)


def class_named(name: str) -> type:
    """The class of this name.

    Raises:
        ValueError: No such class is registered.
    """
    if name not in _CLASSES:
        near = difflib.get_close_matches(str(name), _CLASSES, n=1)
        hint = f" (near it: {near[0]})" if near else ""
        raise ValueError(
            f"the file names the class {name!r}, which is not registered{hint}: call "
            f"kova_rl.sb3.registry.register({name!r}, cls) before load, or load with custom_objects"
        )
    return _CLASSES[name]


def state_of(value: Any) -> dict[str, Any] | None:
    """What an instance is rebuilt from, None if files may not hold instances of its class."""
    cls = type(value)
    if cls not in _INSTANCES:
        return None
    if isinstance(value, Enum):
        return {"member": value.name}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return dict(vars(value))


def rebuilt(cls: type, state: dict[str, Any]) -> Any:
    """The instance again.

    Raises:
        ValueError: Files may not hold instances of the class, or the state would replace one of its methods.
    """
    if cls not in _INSTANCES:
        raise ValueError(
            f"the file holds an instance of {cls.__name__}, of which it may hold the class alone: call "
            f"kova_rl.sb3.registry.register({_NAMES.get(cls)!r}, {cls.__name__}, instances=True) before load"
        )
    if issubclass(cls, Enum):
        return cls[state["member"]]
    if issubclass(cls, tuple) or dataclasses.is_dataclass(cls):
        return cls(**state)
    return filled(cls, state)


def filled(cls: type, state: dict[str, Any]) -> Any:
    """An instance with these attributes, made without its constructor; none may stand before a method."""
    taken = sorted(name for name in state if hasattr(cls, name))
    if taken:
        raise ValueError(f"the file would replace {', '.join(taken)} of {cls.__name__}: it is damaged")
    instance: Any = object.__new__(cls)
    vars(instance).update(state)
    return instance


def _register_all(prefix: str, *classes: type, instances: bool | None = None) -> None:
    for cls in classes:
        if cls not in _NAMES:
            register(f"{prefix}.{cls.__name__}", cls, instances=instances)


def _libraries() -> None:
    for cls in (bool, int, float, str):
        register(cls.__name__, cls)
    _register_all("torch.nn", *(getattr(activation, name) for name in activation.__all__), torch.nn.Identity)
    _register_all("torch.optim", *(cls for cls in vars(torch.optim).values() if _optimizer(cls)))
    _register_all("gymnasium", spaces.Box, spaces.Discrete, spaces.MultiDiscrete, instances=True)
    _register_all("gymnasium", spaces.MultiBinary, spaces.Tuple, spaces.Dict, instances=True)
    _register_all("sb3", utils.FloatSchedule, utils.ConstantSchedule, utils.LinearSchedule, instances=True)
    _register_all("sb3", noise.NormalActionNoise, noise.OrnsteinUhlenbeckActionNoise, instances=True)
    _register_all("sb3", noise.VectorizedActionNoise, RunningMeanStd, instances=True)
    _register_all("sb3", TrainFreq, TrainFrequencyUnit, GoalSelectionStrategy, instances=True)
    _register_all("sb3", torch_layers.FlattenExtractor, torch_layers.NatureCNN)
    _register_all("sb3", torch_layers.CombinedExtractor, torch_layers.MlpExtractor, RMSpropTFLike)
    _register_all("sb3", buffers.ReplayBuffer, buffers.DictReplayBuffer, buffers.NStepReplayBuffer)
    _register_all("sb3", buffers.RolloutBuffer, buffers.DictRolloutBuffer, HerReplayBuffer)
    _register_all("sb3", policies.ActorCriticPolicy)
    _register_all("sb3_contrib", recurrent.RecurrentActorCriticPolicy)
    for host in (A2C, PPO, DQN, SAC, TD3, DDPG):
        _register_all(f"sb3.{host.__name__}", *host.policy_aliases.values())
    for name in sb3_contrib.__all__:
        contributed = getattr(sb3_contrib, name)
        _register_all(f"sb3_contrib.{name}", *contributed.policy_aliases.values())


def _optimizer(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)


def _ours() -> None:
    for module in (covariance, evolution, observation):
        members = (getattr(module, name) for name in module.__all__)
        _register_all("kova_rl", *(cls for cls in members if dataclasses.is_dataclass(cls)))  # type: ignore[arg-type]
    _register_all("kova_rl", Isotropic, KovaSettings, ValueLoop, Optimism, Thompson)
    register("kova_rl.Draws", Draws, instances=True)


_libraries()
_ours()
