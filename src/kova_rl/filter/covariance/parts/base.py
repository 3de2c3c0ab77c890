"""What a form of P's blocks can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from kova_rl.filter.change import Change

LEAST_SHARE = 1e-12
"""No batch leaves a smaller share of a variance: float64 could not factorise the rest."""


class Part(ABC):
    """Equal blocks of P that stand side by side, in one form.

    Methods that compute return new tensors; only :meth:`commit` and :meth:`flush` write into the stored one.
    H is the part's rows of the Jacobian, as count x size x N; U and B have the same shape.
    """

    halved: ClassVar[bool] = True
    """Whether B is ``L'H`` for ``P = L L'``, so that ``H' P H = B'B``; else it is P H."""

    def __init__(self, stored: Tensor, start: int = 0) -> None:
        self.stored, self.start = stored, start
        self.count = stored.shape[0]
        self.size = stored.shape[-1] if stored.ndim == 3 else 1

    def rows(self, matrix: Tensor) -> Tensor:
        """The part's rows of a d x N matrix, as count x size x N."""
        stop = self.start + self.count * self.size
        return matrix[self.start : stop].view(self.count, self.size, matrix.shape[1])

    @abstractmethod
    def predicted(self, change: Change, step: int) -> Part:
        """P- in place of P; what is written to it by :meth:`commit` is written where P is stored."""

    @abstractmethod
    def observe(self, H: Tensor, out: Tensor) -> Tensor:
        """B, from which everything else is made: P H, or ``L'H`` for ``P = L L'``."""

    @abstractmethod
    def moved(self, U: Tensor, z: Tensor) -> Tensor:
        """The part's share of the weights' change, for ``U = B T``, of length count * size."""

    @abstractmethod
    def commit(self, U: Tensor, c: Tensor | float) -> None:
        """``P <- P- + (P H T) diag(c) (P H T)'``, for ``U = B T``."""

    def floor(self, H: Tensor, squared: float, seen: float, needed: float) -> float:
        """The smallest variance of a target that the form can represent.

        Args:
            H: See above.
            squared: The sum of the squares of the whole Jacobian.
            seen: The trace of ``H' P H``, of the whole P.
            needed: A form may be quick, and wrong, where it is sure that the answer is below this.
        """
        return LEAST_SHARE * seen

    @abstractmethod
    def variances(self) -> Tensor:
        """The diagonal of P, of length count * size."""

    @abstractmethod
    def draw(self, normal: Tensor) -> Tensor:
        """A draw from N(0, P), made of count x size x 1 standard normal numbers."""

    def double(self) -> Part:
        """The same, computing in float64 and stored as before; not for a P that is stored in float32."""
        raise TypeError(f"{type(self).__name__} holds no more than its dtype")

    def flush(self) -> None:
        """Set to 0 what is about to become subnormal numbers, which are many times slower."""
        self.stored.masked_fill_(self.stored.abs() < torch.finfo(self.stored.dtype).tiny ** 0.75, 0.0)
