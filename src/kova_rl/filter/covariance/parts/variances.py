"""A diagonal P: blocks of one, done elementwise."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.filter.change import Change, Leak
from kova_rl.filter.covariance.parts.base import Part


class Variances(Part):
    """``P = diag(p)``: an update leaves each variance a share of itself, which is above 0.

    Args:
        stored: p, of length d.
        start: First coordinate.
        variance: p, if it is not what is stored, but what is to take its place.
        bounded: Whether no variance may exceed the prior's, rounding included.
    """

    def __init__(
        self, stored: Tensor, start: int = 0, variance: Tensor | None = None, bounded: bool = False
    ) -> None:
        super().__init__(stored, start)
        self.variance = stored if variance is None else variance
        self.bounded = bounded

    def predicted(self, change: Change, step: int) -> Variances:
        p, (scale, shift) = self.stored, change.affine
        if isinstance(change, Leak):
            p = p / ((1 - change.eta) + change.eta * p)
        elif (scale, shift) != (1.0, 0.0):
            p = p * scale + shift
        return Variances(self.stored, self.start, p, change.bounded)

    def double(self) -> Variances:
        return Variances(self.stored, self.start, self.variance.double(), self.bounded)

    def observe(self, H: Tensor, out: Tensor) -> Tensor:
        return torch.mul(H, self.variance.sqrt()[:, None, None], out=out)

    def moved(self, U: Tensor, z: Tensor) -> Tensor:
        return (U[:, 0] @ z).mul_(self.variance.sqrt())

    def commit(self, U: Tensor, c: Tensor | float) -> None:
        squares = U[:, 0].square()
        share = (squares @ c if isinstance(c, Tensor) else squares.sum(1).mul_(c)).add_(1.0)
        left = share.clamp_(min=torch.finfo(share.dtype).eps).mul_(self.variance)
        self.stored.copy_(left.clamp_(max=1.0) if self.bounded else left)

    def variances(self) -> Tensor:
        return self.variance.clone()

    def draw(self, normal: Tensor) -> Tensor:
        return normal * self.variance.sqrt()[:, None, None]

    def flush(self) -> None:
        """Nothing to do: there are no correlations."""
