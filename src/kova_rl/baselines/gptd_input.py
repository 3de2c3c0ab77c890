"""What GPTD is given, as tensors and numbers that were checked: states, rewards, flags, features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch

__all__ = ["finite_features", "flag", "number", "states_of"]


def _check_finite(name: str, values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise NonFiniteBatch(f"{name} has NaN or infinite entries. Nothing was changed.")


def finite_features(name: str, features: Tensor, dtype: torch.dtype) -> Tensor:
    """Features as the recursion wants them: constants of its dtype, finite."""
    result = features.detach().to("cpu", dtype)
    _check_finite(name, result)
    return result


def _tensor(name: str, value: Any) -> Tensor:
    """On the CPU and finite. Its dtype is its own; a list of floats becomes float64."""
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidBatch(f"{name} must be numbers, got {value!r}. Nothing was changed.") from error
    _check_finite(name, tensor)
    return tensor


def states_of(name: str, value: Any, shape: tuple[int, ...] | None, batch: bool = False) -> Tensor:
    """A state of this shape, or a batch of them."""
    tensor = _tensor(name, value)
    wrong = batch and tensor.ndim == 0
    if shape is not None:
        wrong = wrong or tuple(tensor.shape[1:] if batch else tensor.shape) != shape
    if wrong:
        sizes = "..." if shape is None else ", ".join(map(str, shape))
        expected = f"(n, {sizes})" if batch else str(shape)
        raise InvalidBatch(
            f"{name} must have shape {expected}, got {tuple(tensor.shape)}. Nothing was changed."
        )
    return tensor


def number(name: str, value: Any) -> float:
    """One finite number, in whatever shape."""
    tensor = _tensor(name, value)
    if tensor.numel() != 1:
        raise InvalidBatch(
            f"{name} must be one number, got shape {tuple(tensor.shape)}. Nothing was changed."
        )
    return float(tensor)


def flag(name: str, value: Any) -> bool:
    """True or False, or a number that says so."""
    found = number(name, value)
    if found not in (0.0, 1.0):
        raise InvalidBatch(f"{name} must be boolean, or 0 and 1, got {value!r}. Nothing was changed.")
    return bool(found)
