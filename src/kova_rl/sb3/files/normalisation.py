"""The statistics of ``VecNormalize``, kept with the model that was trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize

__all__ = ["described", "restored"]

SETTINGS = (
    *("training", "norm_obs", "norm_reward", "norm_obs_keys"),
    *("clip_obs", "clip_reward", "gamma", "epsilon"),
)
STATISTICS = ("obs_rms", "ret_rms", "returns")


def described(env: VecNormalize | None) -> dict[str, Any]:
    """Settings and statistics; empty without a ``VecNormalize``."""
    return {
        name: value
        for name, value in ({} if env is None else vars(env)).items()
        if name in (*SETTINGS, *STATISTICS)
    }


def restored(env: GymEnv, saved: dict[str, Any]) -> GymEnv:
    """The environment with these statistics.

    A ``VecNormalize`` in its chain gets them and keeps its own settings, such as ``training=False``; if it
    has none, it is wrapped in one with the saved settings.

    Raises:
        ValueError: The statistics are of observations of another shape.
    """
    if not saved:
        return env
    missing = [name for name in (*SETTINGS, "ret_rms", "returns") if name not in saved]
    if missing:
        raise ValueError(f"the file is damaged: its normalisation lacks {', '.join(missing)}")
    found = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    if found is None:
        env = found = _wrapped(env, saved)
    if "obs_rms" in saved and hasattr(found, "obs_rms"):
        if _shapes(saved["obs_rms"]) != _shapes(found.obs_rms):
            raise ValueError(
                f"the saved statistics are of observations {_shapes(saved['obs_rms'])}, VecNormalize has "
                f"{_shapes(found.obs_rms)}: wrap the environment as in training, VecNormalize included"
            )
        found.obs_rms = saved["obs_rms"]
    found.ret_rms = saved["ret_rms"]
    if np.shape(saved["returns"]) == (found.num_envs,):
        found.returns = saved["returns"]
    return env


def _wrapped(env: GymEnv, saved: dict[str, Any]) -> VecNormalize:
    venv = env if isinstance(env, VecEnv) else BaseAlgorithm._wrap_env(env)
    if not isinstance(env, VecEnv) and isinstance(venv, VecTransposeImage):
        venv = venv.venv  # the host transposes above the statistics, as it does in training
    found = VecNormalize(
        venv,
        norm_obs="obs_rms" in saved,
        clip_obs=saved["clip_obs"],
        norm_obs_keys=saved["norm_obs_keys"],
    )
    for name in SETTINGS:
        setattr(found, name, saved[name])
    return found


def _shapes(statistics: Any) -> Any:
    if isinstance(statistics, dict):
        return {name: one.mean.shape for name, one in statistics.items()}
    return statistics.mean.shape
