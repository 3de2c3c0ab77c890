r"""Blocks kept as matrices: for those that grow by a multiple of the prior, and for large ones."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.change import Change
from kova_rl.filter.covariance.parts.base import Part

REST = 16
"""Units in the last place of its correlations that a stored P forgets at each step."""

TILE = 1024
"""Rows of a large matrix that are updated at a time, one triangle of it alone."""


class Matrices(Part):
    r"""P itself, block by block; symmetric to the bit, because one triangle is computed and mirrored.

    The last digits of a stored P mean nothing. So a step forgets a few of its correlations' and none of its
    variances', ``P- = kept P + diag(own)``, and no target counts as more exact than the rounding of
    ``h' diag(P) h``. Together these keep P positive definite; the smallest variance that a direction can
    have is about ``eps`` times that of its weights. :class:`Roots` has no such limit.

    Args:
        stored: count x size x size.
        start: First coordinate.
        kept: See above.
        own: See above, count x size.
        bounded: Whether no variance may exceed the prior's, rounding included.
    """

    halved = False

    def __init__(
        self,
        stored: Tensor,
        start: int = 0,
        kept: float = 1.0,
        own: Tensor | None = None,
        bounded: bool = False,
    ) -> None:
        super().__init__(stored, start)
        self.kept, self.own, self.bounded = kept, own, bounded
        self._diagonal = stored.diagonal(dim1=1, dim2=2)

    def predicted(self, change: Change, step: int) -> Matrices:
        kept, own = forgotten(self._diagonal, *change.affine)
        return Matrices(self.stored, self.start, kept, own, change.bounded)

    def observe(self, H: Tensor, out: Tensor) -> Tensor:
        beta = 0.0
        if self.own is not None:
            torch.mul(H, self.own.unsqueeze(2), out=out)
            beta = 1.0
        if self.count == 1:
            out[0].addmm_(self.stored[0], H[0], beta=beta, alpha=self.kept)
        else:
            out.baddbmm_(self.stored, H, beta=beta, alpha=self.kept)
        return out

    def moved(self, U: Tensor, z: Tensor) -> Tensor:
        return (U @ z).flatten()

    def commit(self, U: Tensor, c: Tensor | float) -> None:
        P, left, alpha = self.stored, U, 1.0
        if isinstance(c, Tensor):
            left = U * c
        else:
            alpha = c
        if self.count == 1:
            _add_symmetric(P[0], left[0], U[0], self.kept, alpha)
        else:
            half = torch.baddbmm(P, left, U.mT, beta=0.5 * self.kept, alpha=0.5 * alpha)
            torch.add(half, half.mT, out=P)
        if self.own is not None:
            self._diagonal.add_(self.own)
        if self.bounded:
            self._diagonal.clamp_(max=1.0)

    def floor(self, H: Tensor, squared: float, seen: float, needed: float) -> float:
        rounding = REST * torch.finfo(H.dtype).eps
        if self.bounded and rounding * squared <= needed:  # no variance is above the prior's
            return rounding * squared
        variances = self.kept * self._diagonal + (0.0 if self.own is None else self.own)
        return rounding * float((torch.linalg.vecdot(H, H) * variances).sum())

    def variances(self) -> Tensor:
        return self._diagonal.flatten().clone()

    def draw(self, normal: Tensor) -> Tensor:
        lower, failed = torch.linalg.cholesky_ex(self.stored)
        if failed.any():
            raise NotPositiveDefinite(
                f"a covariance block of size {self.size} is not positive definite, so that no weights "
                "can be drawn from it. Use dtype=torch.float64, or covariance.LowRank."
            )
        return torch.bmm(lower, normal)


def forgotten(variances: Tensor, scale: float, shift: float) -> tuple[float, Tensor]:
    """``scale P + shift I`` but for rounding, as ``kept P + diag(own)``: see :class:`Matrices`."""
    rest = REST * torch.finfo(variances.dtype).eps
    return scale * (1 - rest), variances.clamp(max=1.0).mul_(scale * rest).add_(shift)


def _add_symmetric(P: Tensor, left: Tensor, right: Tensor, kept: float, alpha: float) -> None:
    """``P <- kept P + alpha left right'``, of which one triangle is computed and mirrored."""
    starts = range(0, len(P), TILE)
    for i in starts:
        for j in starts:
            if j > i:
                break
            rows, cols = slice(i, i + TILE), slice(j, j + TILE)
            tile = torch.addmm(P[rows, cols], left[rows], right[cols].T, beta=kept, alpha=alpha)
            if i == j:
                tile = tile.add(tile.T).mul_(0.5)
            else:
                P[cols, rows] = tile.T
            P[rows, cols] = tile
