"""What the filter believes of a batch of predictions, and whether it is right to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Belief:
    """A Gaussian belief about N predictions: the spread of the prediction, without target noise."""

    mean: Tensor
    """The predictions, of shape (N,), or as :meth:`reshaped`."""
    std: Tensor
    """Standard deviation of each prediction, of the same shape."""
    joint: Callable[[], Tensor] = field(repr=False)
    """Computes ``covariance``, which only those who ask pay for."""
    tracked: bool = True
    """Whether the spread is a posterior. With ``Memoryless`` it is False, and the spread is the prior's."""

    @classmethod
    def from_covariance(cls, mean: Tensor, covariance: Tensor, tracked: bool = True) -> Belief:
        """A belief with a known joint covariance, N x N."""
        return cls(mean, covariance.diagonal().clamp(min=0.0).sqrt(), lambda: covariance, tracked)

    @property
    def covariance(self) -> Tensor:
        """Joint covariance of the predictions, N x N."""
        return self.joint()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds ``level`` of the probability."""
        half = _quantile(level) * self.std
        return self.mean - half, self.mean + half

    def sample(self, count: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``count`` joint draws of the predictions, count x N."""
        values, vectors = torch.linalg.eigh(self.covariance)
        normal = torch.randn(
            count, self.mean.numel(), dtype=self.mean.dtype, device=self.mean.device, generator=generator
        )
        root: Tensor = vectors * values.clamp(min=0.0).sqrt()
        return self.mean + (normal @ root.T).reshape(count, *self.mean.shape)

    def reshaped(self, *shape: int) -> Belief:
        """The same belief with mean and std of another shape; the covariance stays N x N, in its order."""
        return replace(self, mean=self.mean.reshape(shape), std=self.std.reshape(shape))


@dataclass(frozen=True)
class Calibration:
    """How well beliefs match the truth. A perfect one covers each level by that share, and has nees 1."""

    coverage: dict[float, float]
    """Share of the truths inside the central interval, for each level."""
    nees: float
    """Mean of ``(truth - mean)^2 / std^2``. Above 1 is overconfident, below 1 too cautious."""
    nll: float
    """Mean negative log likelihood of the truth, in nats."""
    count: int
    """How many truths it is the mean of."""

    def __str__(self) -> str:
        covered = ", ".join(f"{share:.1%} in {level:.0%}" for level, share in self.coverage.items())
        return f"coverage {covered}; nees {self.nees:.3g}; nll {self.nll:.3g} ({self.count} truths)"


def joint_covariance(compute: Callable[[], Tensor], scale: float, dtype: torch.dtype) -> Tensor:
    """``scale`` times the computed covariance, symmetric to the bit."""
    product = compute()
    return product.add(product.T).mul_(0.5 * scale).to(dtype)


def calibration(pairs: Iterable[tuple[Belief, Tensor]], levels: tuple[float, ...] = LEVELS) -> Calibration:
    """Turn (belief, truth) pairs into coverage, normalised error and likelihood.

    Args:
        pairs: Beliefs and the true values, of the shape of the belief's mean.
        levels: Central intervals whose coverage is counted; 50, 80 and 95% by default.

    Example:
        >>> import torch
        >>> from kova_rl.posterior import Belief, calibration
        >>> belief = Belief.from_covariance(torch.zeros(2), torch.eye(2))
        >>> calibration([(belief, torch.tensor([0.5, 1.5]))]).coverage
        {0.5: 0.5, 0.8: 0.5, 0.95: 1.0}
    """
    errors, deviations = [], []
    for belief, truth in pairs:
        if truth.shape != belief.mean.shape:
            raise ValueError(
                f"truth must have the shape of the belief's mean, {tuple(belief.mean.shape)}, "
                f"got {tuple(truth.shape)}"
            )
        errors.append((truth - belief.mean).detach().double().flatten())
        deviations.append(belief.std.detach().double().flatten())
    if not errors:
        raise ValueError("calibration needs at least one (belief, truth) pair, got none")
    error, std = torch.cat(errors), torch.cat(deviations)
    if not bool((std > 0).all()):
        raise ValueError("calibration needs beliefs with a standard deviation above 0")
    z = error / std
    coverage = {level: float((z.abs() <= _quantile(level)).double().mean()) for level in levels}
    nll = 0.5 * (z.square() + 2 * std.log() + math.log(2 * math.pi))
    return Calibration(coverage, float(z.square().mean()), float(nll.mean()), len(z))


def _quantile(level: float) -> float:
    """How many deviations on each side hold ``level`` of a Gaussian."""
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level!r}")
    return math.sqrt(2) * float(torch.special.erfinv(torch.tensor(level, dtype=torch.float64)))
