"""Stops at the first reward or observation that is not finite, before anything has learned from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from kova_rl.errors import NonFiniteBatch

__all__ = ["GuardedEnvironment", "check_batch", "check_rollout", "guarded"]


def check_finite(what: str, values: Any, at: int | None = None) -> None:
    """Raise if what an environment gave is not finite.

    Args:
        what: A reward or an observation.
        values: Arrays, in whatever structure the space has.
        at: The environment; None if the rows are environments.
    """
    if isinstance(values, Mapping):
        for name, value in values.items():
            check_finite(f"{what} {name!r}", value, at)
    elif isinstance(values, tuple | list):
        for index, value in enumerate(values):
            check_finite(f"{what} [{index}]", value, at)
    else:  # an array, or the number of a discrete space
        values = np.asarray(values)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            rows = ~np.isfinite(values.reshape(len(values) if at is None else 1, -1)).all(1)
            row = int(rows.argmax())
            raise NonFiniteBatch(
                f"environment {row if at is None else at} gave the {what} "
                f"{values[row] if at is None else values}. Nothing has learned from it, and the "
                "normalisation statistics do not hold it: look into the environment, or clip its numbers"
            )


class GuardedEnvironment(BaseAlgorithm):
    """A mixin: every environment that the model is given gets a guard."""

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return guarded(BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper))


def guarded(env: VecEnv) -> VecEnv:
    """The same environment with a guard: inside a ``VecNormalize``, whose statistics a NaN would ruin.

    It is a class with two methods more and not a wrapper, because the host compares the wrappers of the
    environments for training and for evaluation.
    """
    watched, inner = env, env
    while isinstance(inner, VecEnvWrapper):
        if isinstance(inner, VecNormalize):
            watched = inner.venv
        inner = inner.venv
    if not vars(type(watched)).get("guards_numbers"):
        watched.__class__ = _guarded_class(type(watched))
    return env


@cache
def _guarded_class(cls: Any) -> type[VecEnv]:
    class Guarded(cls):  # type: ignore[misc]
        guards_numbers = True

        def reset(self) -> Any:
            observations = super().reset()
            check_finite("observation", observations)
            return observations

        def step_wait(self) -> Any:
            step = observations, rewards, dones, infos = super().step_wait()
            if not math.isfinite(rewards.sum()):
                check_finite("reward", rewards)
            if type(observations) is not np.ndarray or not math.isfinite(observations.sum()):
                check_finite("observation", observations)
            if dones.any():
                for index in np.flatnonzero(dones):
                    check_finite("observation", infos[index].get("terminal_observation", ()), at=int(index))
            return step

    Guarded.__name__, Guarded.__qualname__ = cls.__name__, cls.__qualname__
    return Guarded


def check_rollout(buffer: RolloutBuffer) -> None:
    """Refuse a rollout that is not finite, before anything learns from it."""
    arrays = {name: getattr(buffer, name) for name in ("rewards", "returns", "advantages")}
    observed = buffer.observations
    arrays |= observed if isinstance(observed, dict) else {"observations": observed}
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise NonFiniteBatch(
                f"{int((~np.isfinite(values)).sum())} of the rollout's {name} are not finite. Nothing has "
                "stepped on it: look into the environment, or normalise it (VecNormalize)"
            )


def check_batch(data: Any) -> None:
    """Refuse a batch of a replay buffer that is not finite, before anything learns from it."""
    for name in ("rewards", "observations", "next_observations"):
        value = getattr(data, name)
        for tensor in value.values() if isinstance(value, Mapping) else (value,):
            if tensor.is_floating_point() and not math.isfinite(float(tensor.sum())):
                raise NonFiniteBatch(
                    f"a batch from the replay buffer has {name} that are not finite. Nothing has "
                    "stepped on it: look into the environment, or into what was put into the buffer"
                )
