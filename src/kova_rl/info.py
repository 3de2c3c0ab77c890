"""What a step returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class _Optimizer(Protocol):
    def variances(self) -> Tensor: ...

    def unwhitened(self, change: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class StepInfo:
    """What people want to log of one step: floats, computed when they are asked for."""

    innovation: Tensor
    """Targets minus predictions, of shape (N,)."""
    nis: float
    """Normalised innovation squared, ``innovation' S^-1 innovation / N``."""
    _delta: Tensor
    jitter: float
    """What had to be added to the innovation covariance to factorise it; 0 nearly always."""
    _optimizer: _Optimizer

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name):.4g}" for name in SHOWN)
        return f"StepInfo({shown})"

    @property
    def loss(self) -> float:
        """Mean squared innovation, as ``torch.nn.functional.mse_loss`` would give before the step."""
        return float(self.innovation.square().mean())

    @property
    def innovation_mean(self) -> float:
        """Mean of targets minus predictions: a bias, where it stays away from 0."""
        return float(self.innovation.mean())

    @property
    def innovation_std(self) -> float:
        """Spread of targets minus predictions, in the batch."""
        return float(self.innovation.std(correction=0))

    @property
    def update_norm(self) -> float:
        """Norm of the change of the weights."""
        return float(self._optimizer.unwhitened(self._delta).norm())

    @property
    def variance_max(self) -> float:
        """Largest variance of a weight, of the covariance as it is when this is read."""
        return float(self._optimizer.variances().max())

    @property
    def variance_mean(self) -> float:
        """Mean variance of the weights, of the covariance as it is when this is read."""
        return float(self._optimizer.variances().mean())

    def as_dict(self) -> dict[str, float]:
        """All of it, for a logger."""
        return {name: float(getattr(self, name)) for name in NAMES}


NAMES = (
    "loss",
    "innovation_mean",
    "innovation_std",
    "nis",
    "update_norm",
    "variance_max",
    "variance_mean",
    "jitter",
)
SHOWN = ("loss", "innovation_mean", "innovation_std", "nis", "update_norm", "jitter")
"""What is printed: the variances would cost a pass over the covariance."""
