"""Targets that are noisy together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NoiseNotPositiveDefinite, NonFiniteBatch
from kova_rl.filter.checks import check_fraction, check_positive
from kova_rl.filter.observation.base import Inputs, Observation
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Correlated(Observation):
    """Targets that are noisy together: a full N x N matrix, passed to ``step`` as ``covariance=``.

    :func:`kernel` builds one from the states.
    """

    inputs = ("covariance",)
    unit_free = False

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        matrix = torch.as_tensor(inputs["covariance"]).detach().to(innovation)
        n = len(innovation)
        if matrix.shape != (n, n):
            raise InvalidBatch(
                f"covariance must be {n} x {n}, one row a sample, got shape {tuple(matrix.shape)}"
            )
        if not torch.isfinite(matrix).all():
            raise NonFiniteBatch("covariance has NaN or infinite entries. Nothing was changed.")
        if not torch.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6 * float(matrix.abs().max())):
            raise NoiseNotPositiveDefinite("covariance must be symmetric. Nothing was changed.")
        if torch.linalg.cholesky_ex(matrix).info.item():
            raise NoiseNotPositiveDefinite(
                f"covariance must be positive definite; its smallest eigenvalue is "
                f"{float(torch.linalg.eigvalsh(matrix)[0]):.3g}. Nothing was changed. Add a little "
                "to its diagonal."
            )
        return matrix


def kernel(
    states: Tensor,
    lengthscale: float | None = None,
    variance: float = 1.0,
    correlation: float = 0.5,
) -> Tensor:
    r"""A covariance for :class:`Correlated`: targets of near-by states err together.

    .. math:: K_{ij} = \sigma^2 \Big(\rho\, e^{-|s_i - s_j|^2 / 2 \ell^2} + (1-\rho) [i = j]\Big),

    which is positive definite for every ``rho < 1``, duplicate states included.

    Args:
        states: N x anything.
        lengthscale: l; None takes the median distance between different states.
        variance: sigma^2, in the targets' units squared.
        correlation: rho, what two equal states share, in [0, 1).

    Example:
        >>> import torch
        >>> from kova_rl import observation
        >>> observation.kernel(torch.tensor([[0.0], [0.0]]))
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """
    check_positive("variance", variance)
    check_fraction("correlation", correlation)
    if states.ndim < 1 or len(states) == 0:
        raise InvalidBatch(f"states must be N x anything, got shape {tuple(states.shape)}")
    flat = states.detach().reshape(len(states), -1)
    if not flat.is_floating_point():
        flat = flat.to(torch.get_default_dtype())
    distance = torch.cdist(flat, flat)
    if lengthscale is None:
        apart = distance[distance > 0]
        lengthscale = float(apart.median()) if len(apart) else 1.0
    check_positive("lengthscale", lengthscale)
    shared = torch.exp(-distance.square() / (2 * lengthscale**2)).mul_(correlation)
    shared.diagonal().fill_(1.0)
    return shared.mul_(variance)
