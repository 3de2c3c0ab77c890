"""What KTD is given, checked: two states, a reward, actions."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch

__all__ = ["batch_of", "number", "pair", "picked", "refuse"]


def refuse(step: int, why: str) -> NoReturn:
    """Say which step met numbers that are not finite, and what helps."""
    raise NonFiniteBatch(
        f"step {step}: {why}. Nothing was changed. Normalise the observations; if the "
        "covariance has wound up, use a bounded evolution such as PriorAnchored."
    )


def pair(state: Any, next_state: Any, like: Tensor, step: int) -> Tensor:
    """s and s', stacked, in the dtype of ``like``."""
    here, there = _tensor(state, like), _tensor(next_state, like)
    if here.shape != there.shape or not here.ndim:
        raise InvalidBatch(
            "state and next_state must be one observation each, of one shape, without a batch dimension, "
            f"got {tuple(here.shape)} and {tuple(there.shape)}"
        )
    states = torch.stack((here, there))
    if not torch.isfinite(states).all():
        refuse(step, "state or next_state is not finite")
    return states


def number(reward: Any, step: int) -> float:
    """The reward."""
    found = torch.as_tensor(reward, dtype=torch.float64).detach()
    if found.numel() != 1:
        raise InvalidBatch(f"reward must be one number, got shape {tuple(found.shape)}")
    value = float(found)
    if not math.isfinite(value):
        refuse(step, f"the reward is {value}")
    return value


def batch_of(states: Any, like: Tensor) -> Tensor:
    """n observations, in the dtype of ``like``."""
    inputs = _tensor(states, like)
    if inputs.ndim < 2 or not torch.isfinite(inputs).all():
        raise InvalidBatch(f"states must be a batch of finite observations, got shape {tuple(inputs.shape)}")
    return inputs


def picked(values: Tensor, actions: Any) -> Tensor:
    """Of (points) x n x (outputs) values, those of n actions: (points) x n x 1."""
    n, outputs = values.shape[1:]
    chosen = torch.as_tensor(actions, device=values.device)
    whole = not chosen.is_floating_point() and chosen.shape == (n,)
    if not whole or bool(((chosen < 0) | (chosen >= outputs)).any()):
        raise InvalidBatch(
            f"actions must be {n} whole numbers in [0, {outputs}), got {chosen.dtype} of shape "
            f"{tuple(chosen.shape)}"
        )
    return values.gather(2, chosen.long().expand(len(values), n)[:, :, None])


def _tensor(values: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
