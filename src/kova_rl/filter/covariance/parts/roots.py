r"""Blocks kept as roots, ``P = L L'``: positive definite and symmetric whatever is rounded, and how."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.change import Change, Leak, Scaled
from kova_rl.filter.covariance.parts.base import Part

FEW = 4
"""Up to so many blocks, a batch smaller than half a block changes them by a factor of low rank."""


class Roots(Part):
    r"""``P = L L'`` for each block, L any square matrix.

    An update multiplies the root, ``L <- L M`` with ``M M' = I + U diag(c) U'`` and ``U = L'H T``, and no
    variance is subtracted from another: M is the Cholesky factor of a matrix whose eigenvalues are the shares
    of the variances that the batch leaves. A batch that leaves less than float32 can tell from nothing is
    worked out in float64.

    Args:
        stored: count x size x size.
        start: First coordinate.
        root: L, if it is not what is stored, but what is to take its place.
        bounded: Whether no variance may exceed the prior's, rounding included.
    """

    def __init__(
        self, stored: Tensor, start: int = 0, root: Tensor | None = None, bounded: bool = True
    ) -> None:
        super().__init__(stored, start)
        self.root = stored if root is None else root
        self.bounded = bounded

    def predicted(self, change: Change, step: int) -> Roots:
        root = self.stored
        if isinstance(change, Scaled):
            root = root * change.factor**0.5
        elif isinstance(change, Leak) and change.eta > 0.0:
            root = self._leaked(change.eta, step)
        return Roots(self.stored, self.start, root, change.bounded)

    def _leaked(self, eta: float, step: int) -> Tensor:
        """``P- = L C^-1 L'`` with ``C = (1-eta) I + eta L'L``, which has no eigenvalue below 1 - eta."""
        C = torch.bmm(self.stored.mT, self.stored).mul_(eta)
        C.diagonal(dim1=1, dim2=2).add_(1 - eta)
        lower = _cholesky(C, f"step {step}: {1 - eta:g} I + {eta:g} L'L")
        leaked: Tensor = torch.linalg.solve_triangular(lower.mT, self.stored, upper=True, left=False)
        return leaked

    def double(self) -> Roots:
        return Roots(self.stored, self.start, self.root.double(), self.bounded)

    def observe(self, H: Tensor, out: Tensor) -> Tensor:
        return torch.bmm(self.root.mT, H, out=out)

    def moved(self, U: Tensor, z: Tensor) -> Tensor:
        return torch.bmm(self.root, (U @ z)[:, :, None]).flatten()

    def commit(self, U: Tensor, c: Tensor | float) -> None:
        self.stored.copy_(_times_root(self.root, U, c))
        if self.bounded:  # rounding alone may take a variance above the prior's
            self.stored.mul_(self.stored.square().sum(2, keepdim=True).clamp_(min=1.0).rsqrt_())

    def variances(self) -> Tensor:
        return self.root.square().sum(2).flatten()

    def draw(self, normal: Tensor) -> Tensor:
        return torch.bmm(self.root, normal)


def _times_root(L: Tensor, U: Tensor, c: Tensor | float) -> Tensor:
    """``L M`` with ``M M' = I + U diag(c) U'``, block by block."""
    count, size, n = U.shape
    if count > FEW or size <= 2 * n:
        return torch.bmm(L, _root(U, c))
    Q, R = torch.linalg.qr(U)
    inner = _root(R, c)  # M = I + Q (inner - I) Q'
    inner.diagonal(dim1=1, dim2=2).sub_(1.0)
    return torch.baddbmm(L, torch.bmm(torch.bmm(L, Q), inner), Q.mT)


def _root(U: Tensor, c: Tensor | float) -> Tensor:
    """The Cholesky factor of ``I + U diag(c) U'``."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(_left_of_one(U, c))
    if not failed.any():
        return lower
    return _cholesky(_left_of_one(U.double(), c), "what the batch leaves of P").to(U.dtype)


def _left_of_one(U: Tensor, c: Tensor | float) -> Tensor:
    """``I + U diag(c) U'``."""
    matrix = torch.bmm(U * c, U.mT) if isinstance(c, Tensor) else torch.bmm(U, U.mT).mul_(c)
    matrix.diagonal(dim1=1, dim2=2).add_(1.0)
    return matrix


def _cholesky(matrix: Tensor, what: str) -> Tensor:
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        raise NotPositiveDefinite(
            f"{what} is not positive definite for {int((failed > 0).sum())} of {len(matrix)} blocks. "
            "Nothing was changed. Was the state damaged? Use dtype=torch.float64, or covariance.LowRank."
        )
    return lower
