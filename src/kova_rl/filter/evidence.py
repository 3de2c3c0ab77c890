"""What one batch tells the filter: its Jacobian, its innovation and its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

CHUNK = 1 << 14
"""Rows handled at a time: temporaries stay small beside the Jacobian."""


class Factors(NamedTuple):
    """One layer of a Jacobian: its columns of H are ``b_i x a_i``, from ``start`` on, row-major."""

    start: int
    """Its first coordinate."""
    inputs: Tensor
    """a, N x cols: the layer's inputs and the bias' 1, whitened by the prior."""
    gradients: Tensor
    """b, N x rows: gradients of the predictions at the layer's outputs."""


class Jacobian(Protocol):
    """The paper's H: gradients of N predictions, d x N, whitened by the prior (so that ``P_0 = I``)."""

    @property
    def size(self) -> int:
        """The number d of weights."""

    def dense(self, scale: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """The matrix, new or in ``out``, for the caller to overwrite; column i times ``scale[i]``."""

    def gram(self) -> Tensor:
        """``H'H``, N x N."""

    def times(self, column: Tensor) -> Tensor:
        """``H z``, of length d, for z as an N x 1 matrix."""

    def squares(self, weights: Tensor) -> Tensor:
        """``sum_i weights_i h_i**2`` elementwise, of length d."""

    def factors(self) -> list[Factors] | None:
        """Layer by layer, if every column is an outer product within each; else None."""


@dataclass(frozen=True)
class DenseJacobian:
    """A Jacobian that is simply a matrix."""

    matrix: Tensor

    @property
    def size(self) -> int:
        return len(self.matrix)

    def dense(self, scale: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty_like(self.matrix)
        return out.copy_(self.matrix) if scale is None else torch.mul(self.matrix, scale, out=out)

    def gram(self) -> Tensor:
        return self.matrix.T @ self.matrix

    def times(self, column: Tensor) -> Tensor:
        return torch.mm(self.matrix, column).squeeze(1)

    def squares(self, weights: Tensor) -> Tensor:
        return torch.cat([part.square() @ weights for part in self.matrix.split(CHUNK)])

    def factors(self) -> list[Factors] | None:
        return None


class Noise:
    """Covariance of the observation noise ``P_n = L_n L_n'``, as a diagonal (N) or a matrix (N x N)."""

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance
        self.is_diagonal = covariance.ndim == 1

    @cached_property
    def _root(self) -> Tensor:
        return self.covariance.sqrt() if self.is_diagonal else torch.linalg.cholesky(self.covariance)

    @cached_property
    def _inverse(self) -> Tensor:
        return self.covariance.rsqrt() if self.is_diagonal else inverse_lower(self._root)

    @cached_property
    def smallest(self) -> float:
        """The smallest variance, in any direction."""
        spread = self.covariance if self.is_diagonal else torch.linalg.eigvalsh(self.covariance)
        return float(spread.min())

    def at_least(self, variance: float) -> Noise:
        """The same noise with no variance below ``variance``; for a matrix, in any direction."""
        if not self.smallest < variance:
            return self
        if self.is_diagonal:
            return Noise(self.covariance.clamp(min=variance))
        raised = self.covariance.clone()
        raised.diagonal().add_(variance - self.smallest)
        return Noise(raised)

    def one_look(self, nis: float, expected: Tensor, looks: float) -> float:
        """The normalised innovation squared as it were for this noise over ``looks``, by their variances.

        Args:
            nis: With this noise.
            expected: The diagonal of ``H' P- H``.
            looks: By how much the noise was made larger.
        """
        own = self.covariance if self.is_diagonal else self.covariance.diagonal()
        signal, rest = float(expected.mean()), float(own.mean())
        return nis * (signal + rest) / (signal + rest / looks)

    def double(self) -> Noise:
        """The same in float64."""
        return self if self.covariance.dtype is torch.float64 else Noise(self.covariance.double())

    def added_to(self, matrix: Tensor, scale: float = 1.0) -> Tensor:
        """``matrix + scale P_n``, overwriting ``matrix``."""
        (matrix.diagonal() if self.is_diagonal else matrix).add_(self.covariance, alpha=scale)
        return matrix

    def taken_from(self, matrix: Tensor) -> Tensor:
        """The diagonal of ``matrix - P_n``."""
        return matrix.diagonal() - (self.covariance if self.is_diagonal else self.covariance.diagonal())

    def whiten(self, innovation: Tensor) -> Tensor:
        """``L_n^-1 innovation``: in units in which the noise is the identity."""
        return innovation * self._inverse if self.is_diagonal else self._inverse @ innovation

    def whiten_columns(self, matrix: Tensor) -> Tensor:
        """``matrix L_n^-T``: one column a sample."""
        return matrix * self._inverse if self.is_diagonal else matrix @ self._inverse.T

    def whiten_rows(self, matrix: Tensor) -> Tensor:
        """``L_n^-T matrix``: one row a sample."""
        return matrix * self._inverse[:, None] if self.is_diagonal else self._inverse.T @ matrix

    def whitened(self, jacobian: Jacobian, out: Tensor) -> Tensor:
        """``H L_n^-T``, in ``out``."""
        if self.is_diagonal:
            return jacobian.dense(self._inverse, out=out)
        return torch.mm(jacobian.dense(), self._inverse.T, out=out)

    def inverse(self) -> Tensor:
        """``P_n^-1``: a diagonal or a matrix, as P_n is."""
        return self.covariance.reciprocal() if self.is_diagonal else self._inverse.T @ self._inverse

    def diagonal_of(self, whitened: Tensor) -> Tensor:
        """The diagonal of ``L_n whitened L_n'``: variances back in the innovation's units."""
        if self.is_diagonal:
            return whitened.diagonal() * self.covariance
        return (self._root @ whitened).mul_(self._root).sum(1)

    def explained(self, lower: Tensor) -> Tensor:
        """The diagonal of ``S - P_n``, for S whitened by the noise as ``lower lower'``."""
        if self.is_diagonal:
            return lower.square().sum(1).sub_(1.0).mul_(self.covariance)
        root = self._root.to(lower.dtype)
        return (root @ lower).square_().sum(1).sub_(root.square().sum(1))


class Workspace:
    """Buffers that outlive a step: fresh memory for N x d numbers costs as much as a pass over them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._derived: dict[str, tuple[Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_buffers": {}, "_derived": {}}  # nothing worth copying or saving

    def buffer(self, name: str, rows: int, cols: int, like: Tensor) -> Tensor:
        """An uninitialised rows x cols matrix, the same memory at each call where it is large enough."""
        kept = self._buffers.get(name)
        if (
            kept is None
            or kept.numel() < rows * cols
            or kept.dtype != like.dtype
            or kept.device != like.device
        ):
            kept = self._buffers[name] = like.new_empty(rows * cols)
        return kept[: rows * cols].view(rows, cols)

    def derived(self, name: str, source: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``make`` gives for a tensor, kept until another tensor takes its place."""
        known = self._derived.get(name)
        if known is None or known[0] is not source:
            known = self._derived[name] = source, make(source)
        return known[1]


@dataclass(frozen=True)
class Evidence:
    """One batch, as the filter sees it."""

    jacobian: Jacobian
    innovation: Tensor
    noise: Noise
    step: int = 0
    workspace: Workspace = field(default_factory=Workspace)


def inverse_lower(lower: Tensor) -> Tensor:
    """``L^-1`` of a small lower-triangular factor: cheaper than a wide triangular solve."""
    identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    inverse: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False)
    return inverse
