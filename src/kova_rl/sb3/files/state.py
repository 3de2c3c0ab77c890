"""The state of a model between two rollouts as bytes, in the format that models are saved in."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr

from kova_rl.sb3.files import archive

__all__ = ["pack", "restore"]

COUNTERS = (
    *("num_timesteps", "_n_updates", "_episode_num", "_n_calls", "_current_progress_remaining"),
    *("exploration_rate", "_total_timesteps", "_num_timesteps_at_start"),
)
PARTS = ("parameters", "variables", "counters", "episodes", "normalisation", "replay", "extra")


def pack(model: BaseAlgorithm, extra: Mapping[str, Any]) -> bytes:
    """All that learning goes on from, if the environments are reset and the generators seeded anew."""
    _, names = model._get_torch_save_params()
    env, buffer = model.get_vec_normalize_env(), io.BytesIO()
    parts: dict[str, Mapping[str, Any]] = {
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name).detach() for name in names},
        "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
        "episodes": {
            "ended": [[float(one["r"]), int(one["l"])] for one in model.ep_info_buffer or ()],
            "successes": [float(one) for one in model.ep_success_buffer or ()],
        },
        "normalisation": {name: getattr(env, name) for name in ("obs_rms", "ret_rms") if hasattr(env, name)},
        "replay": _replay(model),
        "extra": extra,
    }
    archive.write(buffer, "state", parts)
    return buffer.getvalue()


def restore(model: BaseAlgorithm, content: bytes) -> dict[str, Any]:
    """Put a state into a model of the same settings; what was packed as extra."""
    coded, arrays, _ = archive.read(io.BytesIO(content), "state", *PARTS)
    parts = {name: archive.decoded(coded[name], arrays) for name in PARTS}
    model.set_parameters(parts["parameters"], exact_match=True, device=model.device)
    for name, value in parts["variables"].items():
        recursive_getattr(model, name).data.copy_(value)
    for name, value in parts["counters"].items():
        setattr(model, name, value)
    window, episodes = model._stats_window_size, parts["episodes"]
    model.ep_info_buffer = deque(({"r": r, "l": n, "t": 0.0} for r, n in episodes["ended"]), window)
    model.ep_success_buffer = deque(episodes["successes"], window)
    for name, saved in parts["normalisation"].items():
        setattr(model.get_vec_normalize_env(), name, saved)
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        for name, value in parts["replay"]["arrays"].items():
            _fill(getattr(buffer, name), value)
        buffer.pos, buffer.full = parts["replay"]["pos"], parts["replay"]["full"]
    return parts["extra"]


def _replay(model: BaseAlgorithm) -> dict[str, Any]:
    """The part of a replay buffer that is filled."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        return {}
    filled = buffer.buffer_size if buffer.full else buffer.pos + 1  # next observations may lie one further
    arrays: dict[str, Any] = {}
    for name, value in vars(buffer).items():
        if isinstance(value, np.ndarray):
            arrays[name] = value[:filled]
        elif (
            isinstance(value, dict) and value and all(isinstance(part, np.ndarray) for part in value.values())
        ):
            arrays[name] = {key: part[:filled] for key, part in value.items()}
    return {"arrays": arrays, "pos": buffer.pos, "full": buffer.full}


def _fill(into: Any, value: Any) -> None:
    if isinstance(into, dict):
        for key, part in value.items():
            _fill(into[key], part)
    else:
        into[: len(value)] = value
