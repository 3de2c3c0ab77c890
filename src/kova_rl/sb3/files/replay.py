"""Replay buffers in the safe format."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv

from kova_rl.sb3 import registry
from kova_rl.sb3.files import archive

__all__ = ["read", "unset", "write"]

KIND = "replay buffer"
OUTSIDE = ("env", "device")
"""What the model that loads the buffer brings."""


def write(path: archive.Target, buffer: ReplayBuffer) -> None:
    """Write all arrays and counters, and for ``HerReplayBuffer`` its episodes."""
    state = {name: value for name, value in vars(buffer).items() if name not in OUTSIDE}
    if isinstance(buffer, HerReplayBuffer):
        state["infos"] = buffer.infos.tolist() if buffer.copy_info_dict else None
    archive.write(path, KIND, {"about": {"class": type(buffer)}, "state": state})


def read(path: archive.Target, env: VecEnv | None, device: torch.device, truncate: bool) -> ReplayBuffer:
    """What :func:`write` wrote; ``truncate`` ends the unfinished episode of a ``HerReplayBuffer``."""
    parts, arrays, _ = archive.read(path, KIND, "about", "state")
    cls = archive.decoded(parts["about"], arrays).get("class")
    if not (isinstance(cls, type) and issubclass(cls, ReplayBuffer)):
        raise ValueError(f"the file holds a {cls!r}, expected a ReplayBuffer")
    buffer: ReplayBuffer = registry.filled(cls, archive.decoded(parts["state"], arrays))
    buffer.device = device
    if isinstance(buffer, HerReplayBuffer):
        if env is None:
            raise ValueError("a HerReplayBuffer computes rewards with the environment: call set_env first")
        buffer.env = env
        buffer.infos = _infos(buffer.infos, (buffer.buffer_size, buffer.n_envs))
        if truncate:
            buffer.truncate_last_trajectory()
    return buffer


def unset(data: dict[str, Any]) -> None:
    """Leave a buffer for n-step returns that the host chose to the host again, which warns if it is given."""
    chosen = {name: data.get(name) for name in ("n_steps", "gamma")}
    if data.get("replay_buffer_class") is NStepReplayBuffer and data.get("replay_buffer_kwargs") == chosen:
        data["replay_buffer_class"] = None


def _infos(saved: Any, shape: tuple[int, int]) -> Any:
    infos = np.empty(shape, dtype=object)
    for i, j in np.ndindex(shape):
        infos[i, j] = {} if saved is None else saved[i][j]
    return infos
