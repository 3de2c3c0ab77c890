"""What one batch tells the filter: its Jacobian, its innovation and its noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK = 1 << 14
"""Columns handled at a time: temporaries stay in the cache, and small beside the Jacobian."""


class Jacobian(Protocol):
    """``H'``, one row a sample, in coordinates whitened by the prior (so that ``P_0 = I``).

    Stored as rows (N x d, the transpose of the paper's H) because a row is what one sample's
    gradient is, and because products along contiguous rows are what BLAS likes.
    """

    def dense(self, row_scale: Tensor | None = None) -> Tensor:
        """A new N x d matrix, which the caller may overwrite; row i times ``row_scale[i]``."""

    def gram(self) -> Tensor:
        """``H'H``, N x N."""

    def transpose_times(self, z: Tensor) -> Tensor:
        """``H z``, of length d."""

    def column_squares(self, weights: Tensor) -> Tensor:
        """``sum_i weights_i h_i**2`` elementwise, of length d."""


@dataclass(frozen=True)
class DenseJacobian:
    """A Jacobian that is simply a matrix."""

    rows: Tensor

    def dense(self, row_scale: Tensor | None = None) -> Tensor:
        return self.rows.clone() if row_scale is None else self.rows * row_scale[:, None]

    def gram(self) -> Tensor:
        return self.rows @ self.rows.T

    def transpose_times(self, z: Tensor) -> Tensor:
        return self.rows.T @ z

    def column_squares(self, weights: Tensor) -> Tensor:
        parts = self.rows.split(CHUNK, dim=1)
        return torch.cat([weights @ part.square() for part in parts])


class Noise:
    """Covariance of the observation noise ``P_n = L_n L_n'``, as a diagonal (N) or a matrix (N x N)."""

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance
        self.is_diagonal = covariance.ndim == 1
        if self.is_diagonal:
            self._root = covariance.sqrt()
            self._inverse = self._root.reciprocal()
        else:
            self._root = torch.linalg.cholesky(covariance)
            self._inverse = inverse_lower(self._root)

    def added_to(self, matrix: Tensor) -> Tensor:
        """``matrix + P_n``, overwriting ``matrix``."""
        (matrix.diagonal() if self.is_diagonal else matrix).add_(self.covariance)
        return matrix

    def whiten(self, rows: Tensor) -> Tensor:
        """``L_n^-1 rows``: in units in which the noise is the identity."""
        if not self.is_diagonal:
            return self._inverse @ rows
        return rows * (self._inverse if rows.ndim == 1 else self._inverse[:, None])

    def whitened(self, jacobian: Jacobian) -> Tensor:
        """``L_n^-1 H'``, a new matrix."""
        if self.is_diagonal:
            return jacobian.dense(self._inverse)
        return self._inverse @ jacobian.dense()

    def diagonal_of(self, whitened: Tensor) -> Tensor:
        """The diagonal of ``L_n whitened L_n'``: variances back in the innovation's units."""
        if self.is_diagonal:
            return whitened.diagonal() * self.covariance
        return (self._root @ whitened).mul_(self._root).sum(1)


@dataclass(frozen=True)
class Evidence:
    """One batch, as the filter sees it."""

    jacobian: Jacobian
    innovation: Tensor
    noise: Noise
    step: int


def inverse_lower(lower: Tensor) -> Tensor:
    """``L^-1`` of a small lower-triangular factor: cheaper than a wide triangular solve."""
    identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, identity, upper=False)
