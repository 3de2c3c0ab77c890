"""Stops at the first reward or observation that is not finite, before anything has learned from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, is_vecenv_wrapped

from kova_rl.errors import NonFiniteBatch

__all__ = ["FiniteGuard", "guarded"]


class FiniteGuard(VecEnvWrapper):
    """Raises ``NonFiniteBatch`` for a NaN or an infinity that comes from an environment."""

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._check("observation", observations)
        return observations

    def step_wait(self) -> Any:
        step = observations, rewards, _, _ = self.venv.step_wait()
        self._check("reward", rewards)
        self._check("observation", observations)
        return step

    def _check(self, what: str, values: Any) -> None:
        if isinstance(values, Mapping):
            for name, value in values.items():
                self._check(f"{what} {name!r}", value)
        elif isinstance(values, np.ndarray):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                rows = ~np.isfinite(values.reshape(len(values), -1)).all(1)
                raise NonFiniteBatch(
                    f"environment {int(rows.argmax())} gave the {what} {values[rows.argmax()]}. Nothing has "
                    "learned from it, and the normalisation statistics do not hold it: look into the "
                    "environment, or clip what it gives"
                )
        else:
            for index, value in enumerate(values):
                self._check(f"{what} [{index}]", value)


def guarded(env: VecEnv) -> VecEnv:
    """The environment with a guard in it: inside a ``VecNormalize``, whose statistics a NaN would ruin."""
    if is_vecenv_wrapped(env, FiniteGuard):
        return env
    innermost, inner = None, env
    while isinstance(inner, VecEnvWrapper):
        if isinstance(inner, VecNormalize):
            innermost = inner
        inner = inner.venv
    if innermost is None:
        return FiniteGuard(env)
    innermost.venv = FiniteGuard(innermost.venv)
    return env
