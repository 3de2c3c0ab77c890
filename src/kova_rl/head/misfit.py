"""What the features can't say: how far values may be off that no weights of the head would mend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.head.stream import Stream, summed_back

__all__ = ["Misfit"]

BLOCKS = 20
"""Of time, over whose scatter the excess is judged."""
SURE = 0.5
"""Standard errors by which the excess must be above nothing: chance alone is not taken for it, mostly."""


@dataclass(frozen=True)
class Misfit:
    r"""Mean square of the error that the head can't represent, near any state.

    If values are right but for chance, temporal differences follow each other without memory, and the
    discounted sum :math:`R_t = \sum_k \gamma^k \delta_{t+k}` (the return less the value) has the variance of
    its terms. Where the value is off by :math:`\epsilon(s)` for all that is near s, its differences go
    together, and the square of the sum is larger than the sum of squares,

    .. math:: E\Big[R_t^2 - \sum_k \gamma^{2k} \delta_{t+k}^2 \mid s_t\Big] \approx \epsilon(s_t)^2.

    Near s is what the head itself takes for near: sample t has the weight
    :math:`(\phi(s)' M^{-1} z_t)^2`, with :math:`M = \sum_t z_t z_t'`.
    """

    excess: Tensor
    """Sums over blocks of time of the excess, weighted by the samples; B x k x k."""
    mass: Tensor
    """The same of the weights alone."""

    @classmethod
    def none(cls, tracked: Tensor) -> Misfit:
        """Where nothing is seen, nothing is in excess."""
        empty = tracked.new_zeros(0, len(tracked), len(tracked))
        return cls(empty, empty)

    @classmethod
    def of(cls, stream: Stream, delta: Tensor, nearness: Tensor) -> Misfit:
        """From temporal differences (n,) at the solution, and ``M^-1 z`` (n x k)."""
        n, k = nearness.shape
        if n < 2 * BLOCKS:
            return cls.none(nearness[0])
        heard = stream.weights * delta
        carry = torch.where(stream.borders, 0.0, stream.weights * stream.discounts)
        excess = summed_back(heard, carry).square() - summed_back(heard.square(), carry.square())
        rest = n % BLOCKS
        near = nearness[rest:].reshape(BLOCKS, n // BLOCKS, k)
        weighted = near * excess[rest:].reshape(BLOCKS, n // BLOCKS, 1)
        return cls(weighted.mT @ near, near.mT @ near)

    def variance(self, features: Tensor) -> Tensor:
        """Of the values of states, from their features (N x k): shape (N,)."""
        if not len(self.mass):
            return features.new_zeros(len(features))
        excess, mass = (((features @ blocks) * features).sum(2) for blocks in (self.excess, self.mass))
        total = mass.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        mean = excess.sum(0) / total
        doubt = (excess - mean * mass).square().sum(0).mul(BLOCKS / (BLOCKS - 1)).sqrt() / total
        return (mean - SURE * doubt).clamp(min=0.0)
