"""Transitions as a head sees them: features, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch

__all__ = ["Stream", "summed_back"]

LARGEST = 1e100
"""Of a trace: the products of large importance weights would overflow."""


@dataclass(frozen=True)
class Stream:
    """n transitions of one or several walks, one after the other, in float64."""

    features: Tensor
    """Of the states, n x k."""
    next_features: Tensor
    """Of the states that followed, n x k; what stands where nothing follows is not looked at."""
    rewards: Tensor
    """Of shape (n,)."""
    discounts: Tensor
    """Of what follows, of shape (n,): gamma, or a power of it, and 0 where the episode terminated."""
    borders: Tensor
    """Whether the next row is not of the same walk, which terminated or was cut. Of shape (n,)."""
    weights: Tensor
    """Importance weights pi(a|s)/b(a|s), of shape (n,); ones on-policy."""
    counts: Tensor
    """How much each counts, of shape (n,): less than 1 where the past is being forgotten."""

    def __post_init__(self) -> None:
        n = len(self.rewards)
        for name in ("rewards", "discounts", "borders", "weights", "counts"):
            if getattr(self, name).shape != (n,):
                raise InvalidBatch(f"{name} must have shape ({n},), got {tuple(getattr(self, name).shape)}")
        if self.features.ndim != 2 or len(self.features) != n:
            raise InvalidBatch(f"features must be {n} x k, got {tuple(self.features.shape)}")
        if self.next_features.shape != self.features.shape:
            raise InvalidBatch(
                f"next_features must be as the features, {tuple(self.features.shape)}, "
                f"got {tuple(self.next_features.shape)}"
            )
        self._refuse_what_is_not_finite()

    def _refuse_what_is_not_finite(self) -> None:
        seen = {"features": self.features, "rewards": self.rewards, "discounts": self.discounts}
        seen |= {"weights": self.weights, "next_features": self.next_features[self.discounts != 0]}
        for name, values in seen.items():
            if not bool(values.isfinite().all()):
                raise NonFiniteBatch(f"{name} must be finite, got {values[~values.isfinite()][0].item()}")
        if bool((self.weights < 0).any()) or bool((self.discounts < 0).any()):
            raise InvalidBatch("importance weights and discounts must not be negative")

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def followed(self) -> Tensor:
        """Discounted features of what follows, n x k; zeros where nothing does."""
        after = torch.where((self.discounts != 0)[:, None], self.next_features, 0.0)
        return self.discounts[:, None] * after

    @property
    def changes(self) -> Tensor:
        r"""What the head is multiplied with in a temporal difference, :math:`\phi - \gamma \phi'`, n x k."""
        return self.features - self.followed

    def traces(self, lam: float) -> Tensor:
        r"""Eligibility traces, n x k: the instruments of LSTD(lambda).

        .. math:: z_t = \rho_t (\phi_t + \gamma_{t-1} \lambda z_{t-1}),

        begun anew after each border, and times how much a row counts. All rows at once, in as many passes as
        the longest walk has powers of two.
        """
        z = self.weights[:, None] * self.features
        if lam == 0 or len(self) < 2:
            return self.counts[:, None] * z
        going = torch.where(self.borders[:-1], 0.0, lam * self.discounts[:-1])
        carry = torch.cat([going.new_zeros(1), self.weights[1:] * going])
        return self.counts[:, None] * _summed(z, carry)

    def returns(self, end: Tensor) -> Tensor:
        """Discounted sums of rewards up to each border, and the value ``end`` (n,) of what follows there."""
        last = self.borders.clone()
        last[-1:] = True
        begin = self.rewards + torch.where(last, self.discounts * end, 0.0)
        return summed_back(begin, torch.where(last, 0.0, self.discounts))


def summed_back(values: Tensor, carry: Tensor) -> Tensor:
    """``out[t] = values[t] + carry[t] out[t+1]``."""
    return _summed(values.flip(0)[:, None], carry.flip(0))[:, 0].flip(0)


def _summed(rows: Tensor, carry: Tensor) -> Tensor:
    """``out[t] = rows[t] + carry[t] out[t-1]``, by doubling."""
    out, carry, step = rows.clone(), carry.clone(), 1
    while step < len(out) and bool((carry != 0).any()):
        out[step:] += carry[step:, None] * out[:-step].clone()
        out.clamp_(-LARGEST, LARGEST)
        carry[step:] *= carry[:-step].clone()
        carry.clamp_(max=LARGEST)
        carry[:step] = 0.0
        step *= 2
    return out
