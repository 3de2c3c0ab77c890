"""The state of a model between two rollouts as bytes: tensors, numbers and strings, no pickled code."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import recursive_getattr

__all__ = ["pack", "restore"]

COUNTERS = (
    *("num_timesteps", "_n_updates", "_episode_num", "_n_calls", "_current_progress_remaining"),
    *("exploration_rate", "_total_timesteps", "_num_timesteps_at_start"),
)


def pack(model: BaseAlgorithm, extra: Mapping[str, Any]) -> bytes:
    """All that learning goes on from, if the environments are reset and the generators seeded anew."""
    _, names = model._get_torch_save_params()
    tree = {
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name).detach() for name in names},
        "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
        "episodes": [[float(one["r"]), int(one["l"])] for one in model.ep_info_buffer or ()],
        "successes": [float(one) for one in model.ep_success_buffer or ()],
        "normalise": _normalisation(model),
        "replay": _replay(model),
        "extra": dict(extra),
    }
    buffer = io.BytesIO()
    torch.save(_tensors(tree), buffer)
    return buffer.getvalue()


def restore(model: BaseAlgorithm, content: bytes) -> dict[str, Any]:
    """Put a state into a model of the same settings; what was packed as extra."""
    tree = torch.load(io.BytesIO(content), map_location=model.device, weights_only=True)
    model.set_parameters(tree["parameters"], exact_match=True, device=model.device)
    for name, value in tree["variables"].items():
        recursive_getattr(model, name).data.copy_(value)
    for name, value in tree["counters"].items():
        setattr(model, name, value)
    window = model._stats_window_size
    model.ep_info_buffer = deque(({"r": r, "l": n, "t": 0.0} for r, n in tree["episodes"]), window)
    model.ep_success_buffer = deque(tree["successes"], window)
    for name, saved in tree["normalise"].items():
        _set_moments(getattr(model.get_vec_normalize_env(), name), saved)
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        for name, value in tree["replay"]["arrays"].items():
            _each(getattr(buffer, name), value, lambda array, part: array.__setitem__(slice(len(part)), part))
        buffer.pos, buffer.full = tree["replay"]["pos"], tree["replay"]["full"]
    extra: dict[str, Any] = tree["extra"]
    return extra


def _normalisation(model: BaseAlgorithm) -> dict[str, Any]:
    env = model.get_vec_normalize_env()
    names = ("obs_rms", "ret_rms") if env is not None else ()
    return {name: _moments(getattr(env, name)) for name in names if hasattr(env, name)}


def _moments(found: Any) -> Any:
    if isinstance(found, RunningMeanStd):
        return {"mean": np.asarray(found.mean), "var": np.asarray(found.var), "count": float(found.count)}
    return {key: _moments(value) for key, value in found.items()}


def _set_moments(into: Any, saved: Mapping[str, Any]) -> None:
    if isinstance(into, RunningMeanStd):
        into.mean, into.var = saved["mean"].cpu().numpy().copy(), saved["var"].cpu().numpy().copy()
        into.count = saved["count"]
    else:
        for key, value in saved.items():
            _set_moments(into[key], value)


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


def _each(into: Any, value: Any, put: Any) -> None:
    if isinstance(into, dict):
        for key, part in value.items():
            put(into[key], part.cpu().numpy())
    else:
        put(into, value.cpu().numpy())


def _tensors(tree: Any) -> Any:
    """A tree with its arrays as tensors of their own storage, so that a slice is not saved with the whole."""
    if isinstance(tree, Mapping):
        return {key: _tensors(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(np.array(tree))
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, list | tuple):
        return [_tensors(value) for value in tree]
    return tree
