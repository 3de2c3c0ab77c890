"""What was solved for: the head's weights and how far they may be off."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.head.misfit import Misfit
from kova_rl.posterior import Belief

__all__ = ["Solution", "widened"]


@dataclass(frozen=True)
class Solution:
    """The solved weights of a head of k features, in float64, and the spread of their error."""

    weights: Tensor
    """Of shape (k,): the head that is at the fixed point of the data, as far as the data go."""
    root: Tensor
    """k x k: ``root @ root.T`` is the covariance of the weights, so it is positive semidefinite."""
    tracked: Tensor
    """Of shape (k,): the head that the critic has, which the prior is centred on."""
    prior: float
    """Variance of a weight about the tracked one before any data; no direction is wider than that."""
    noise: float
    """Standard deviation of a temporal difference at the solution."""
    misfit: Misfit
    """The error that the features can't say, as far as it is clear of chance."""
    freedom: float
    """How many weights the data decide, of k; the prior decides the rest."""
    count: int
    """Transitions that it was solved from."""

    @property
    def covariance(self) -> Tensor:
        """Of the weights, k x k."""
        return self.root @ self.root.T

    def belief(self, features: Tensor, *, critic: bool = False) -> Belief:
        """The values of states, from their features (N x k).

        Args:
            features: What the head is multiplied with; a last column of ones if it has a bias.
            critic: Centred on what the critic itself says, in place of the solution. The distance between
                the two is then part of the spread.
        """
        if features.ndim != 2 or features.shape[1] != len(self.weights):
            raise ValueError(
                f"features must be N x {len(self.weights)}, one column a weight of the head, "
                f"got {tuple(features.shape)}"
            )
        seen = features.to(self.weights)
        mean, spread = seen @ self.weights, seen @ self.root
        if critic:
            solved, mean = mean, seen @ self.tracked
            spread = torch.cat([spread, (solved - mean).unsqueeze(1)], dim=1)
        known = self.prior * seen.square().sum(1)  # no wider than the prior
        own = torch.minimum((known - spread.square().sum(1)).clamp(min=0.0), self.misfit.variance(seen))
        std = (spread.square().sum(1) + own).sqrt()
        return Belief(mean, std, lambda: spread @ spread.T + own.diag())


def widened(solved: Belief, own: Belief) -> Belief:
    """A solved belief with the spread that a filter has of the same predictions added to its own.

    The solution takes the critic's features as they are. They were found from the same data, so that the
    layers below may have learned its chance, of which the solution sees nothing; the filter's covariance is
    of all weights.
    """
    if not own.tracked:
        return solved
    std = torch.hypot(solved.std, own.std.to(solved.std).reshape(solved.std.shape))
    return Belief(solved.mean, std, lambda: solved.covariance + own.covariance.to(solved.std))
