r"""Blocks kept as matrices: for those that grow by a multiple of the prior, and for large ones."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.change import Change, Scaled, Shifted
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
        own: See above, of length count * size.
        bounded: Whether no variance may exceed the prior's, rounding included.
    """

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

    def predicted(self, change: Change, step: int) -> Matrices:
        scale, shift = 1.0, 0.0
        if isinstance(change, Shifted):
            scale, shift = change.scale, change.shift
        elif isinstance(change, Scaled):
            scale = change.factor
        rest = REST * torch.finfo(self.stored.dtype).eps
        own = self.variances().clamp_(max=1.0).mul_(scale * rest).add_(shift)
        return Matrices(self.stored, self.start, scale * (1 - rest), own, change.bounded)

    def observe(self, H: Tensor, out: Tensor) -> Tensor:
        if self.count == 1:
            torch.mm(self.stored[0], H[0], out=out[0])
        else:
            torch.bmm(self.stored, H, out=out)
        if self.own is not None:
            out.mul_(self.kept).addcmul_(H, self.own.view(self.count, self.size, 1))
        return out

    def gram(self, H: Tensor, B: Tensor) -> Tensor:
        M = H.flatten(0, 1).T @ B.flatten(0, 1)
        return M.add(M.T).mul_(0.5)

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
        diagonal = P.diagonal(dim1=1, dim2=2)
        if self.own is not None:
            diagonal.add_(self.own.view(self.count, self.size))
        if self.bounded:
            diagonal.clamp_(max=1.0)

    def floor(self, H: Tensor, M: Tensor, needed: float) -> float:
        variances = self.kept * self.variances() + (0.0 if self.own is None else self.own)
        rounding, flat = REST * torch.finfo(H.dtype).eps, H.flatten()
        most = rounding * float(flat.dot(flat)) * float(variances.max())
        if most <= needed:
            return most
        return rounding * float(torch.linalg.vecdot(H, H).flatten().dot(variances))

    def variances(self) -> Tensor:
        return self.stored.diagonal(dim1=1, dim2=2).reshape(-1).clone()

    def draw(self, normal: Tensor) -> Tensor:
        lower, failed = torch.linalg.cholesky_ex(self.stored)
        if failed.any():
            raise NotPositiveDefinite(
                f"a covariance block of size {self.size} is not positive definite, so that no weights "
                "can be drawn from it. Use dtype=torch.float64, or covariance.LowRank."
            )
        return torch.bmm(lower, normal)


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
