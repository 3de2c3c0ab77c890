"""The mathematics of KTD: sigma points, their moments, and one update. The equations stand in its class."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kova_rl.baselines.ktd_input import refuse
from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.change import Change
from kova_rl.filter.predict import inflation

__all__ = ["Moments", "Update", "factor", "moments", "sigma_points", "update"]

FLOOR = 1e-4
"""The least variance of an innovation, as in the released code."""


def factor(P: Tensor, step: int) -> Tensor:
    """L, the lower Cholesky factor."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(P)
    if failed.item():
        lowest, highest = (float(x) for x in torch.aminmax(P.diagonal()))
        raise NotPositiveDefinite(
            f"step {step}: the covariance is not positive definite (its variances are "
            f"{lowest:.3g} to {highest:.3g} times the prior's), so it has no sigma points. Nothing was "
            "changed. Use dtype=torch.float64, or evolution.PriorAnchored or DirectionalForgetting, "
            "which stay below the prior."
        )
    return lower


def sigma_points(mean: Tensor, lower: Tensor, c: float, out: Tensor) -> Tensor:
    """The sigma points as rows, (2d+1) x d, in ``out``: the centre, theta + c L_j, theta - c L_j."""
    d = len(lower)
    out[0] = mean
    torch.add(mean, lower.mT, alpha=c, out=out[1 : d + 1])
    torch.sub(mean, lower.mT, alpha=c, out=out[d + 1 :])
    return out


class Moments(NamedTuple):
    """The weighted mean over the sigma points, and how far from it the centre and the others are."""

    mean: Tensor
    centre: Tensor
    rest: Tensor
    w0: float
    """Weight of the centre."""
    w: float
    """Weight of each of the others."""

    def variance(self) -> Tensor:
        """Of each column."""
        squares = self.rest.square().sum(0)
        return (self.w0 * self.centre.square()).add_(squares, alpha=self.w).clamp_(min=0.0)

    def covariance(self) -> Tensor:
        """Of all columns with each other."""
        found = torch.addr(self.w * (self.rest.T @ self.rest), self.centre, self.centre, alpha=self.w0)
        return found.add(found.T).mul_(0.5)


def moments(z: Tensor, kappa: float) -> Moments:
    """Of what the 2d+1 sigma points, the rows, give."""
    total = len(z) // 2 + kappa
    w = 0.5 / total
    mean = z[0] + w * (z[1:] - z[0]).sum(0)
    return Moments(mean, z[0] - mean, z[1:] - mean, kappa / total, w)


class Update(NamedTuple):
    """A step before it is made."""

    weights: Tensor
    covariance: Tensor
    innovation: float
    variance: float
    """S, what the innovation's variance was expected to be."""


def update(
    weights: Tensor,
    predicted: Tensor,
    lower: Tensor,
    z: Tensor,
    reward: float,
    change: Change,
    *,
    kappa: float,
    prior: float,
    noise: float,
    step: int,
) -> Update:
    """Condition on one reward, given what each sigma point predicts for it.

    Args:
        weights: Their mean.
        predicted: P-, in units of the prior; it is overwritten.
        lower: Its factor L.
        z: The predicted rewards, (2d+1,).
        reward: The one that came.
        change: What made P-, and may inflate it once more where the reward looks.
        kappa: Spread of the sigma points.
        prior: Variance of every weight before the first transition.
        noise: Variance of the reward's noise.
        step: For the message.

    Raises:
        NonFiniteBatch: A prediction, or a new weight, is not finite.
    """
    mean, centre, rest, w0, w = moments(z, kappa)
    expected, spread = float(mean), float(w0 * centre * centre + w * rest.dot(rest))
    if not math.isfinite(expected + spread):
        bad = int((~torch.isfinite(z)).sum())
        refuse(step, f"{bad} of {len(z)} sigma points predict no finite reward, or their spread overflows")
    d = len(weights)
    b = (z[1 : d + 1] - z[d + 1 :]).mul_(0.5 / math.sqrt(d + kappa))
    S, explained = max(spread + noise, FLOOR), float(b.dot(b))
    g = inflation(change, explained / max(S - explained, noise))
    S += (g - 1) * explained
    cross = torch.mv(lower, b)  # P_theta_r = L b, before the inflation
    innovation = reward - expected
    new = weights.add(cross, alpha=g / S * innovation * math.sqrt(prior))
    if not torch.isfinite(new).all():
        refuse(step, "the new weights would not be finite")
    share = ((g - 1) / explained if g > 1 and explained > 0 else 0.0) - g**2 / S
    root = cross.mul_(math.sqrt(abs(share)))  # one vector, so that P stays symmetric to the bit
    posterior = predicted.addcmul_(root[:, None], root, value=math.copysign(1.0, share))  # P- - K S K'
    return Update(new, posterior, innovation, S)
