r"""The fixed point of the data for a linear head, and the sandwich about it.

With features :math:`\phi`, traces z and :math:`d_t = \phi_t - \gamma_t \phi'_t`, LSTD(lambda) asks for
weights whose temporal differences :math:`\delta_t = r_t - d_t'w` are orthogonal to the traces:

.. math:: A w = b, \quad A = \sum_t z_t d_t', \quad b = \sum_t z_t r_t.

Taken as k observations of w, with the noise :math:`\sigma^2 M`, :math:`M = \sum_t z_t z_t'`, and with the
prior :math:`w \sim N(w_0, v I)` about the tracked head :math:`w_0`, the solution is one Kalman update,

.. math:: K = v A' (v A A' + \sigma^2 M)^{-1}, \quad w = w_0 + K (b - A w_0),

and the spread of its error, for whatever the noise is in truth, is

.. math:: \Sigma = v (I - K A)(I - K A)' + K C K',

the prior's share where data is thin and the sandwich where it is not, because :math:`K \to A^{-1}`. C is the
long-run covariance of :math:`\sum_t z_t \delta_t`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kova_rl.head.misfit import Misfit
from kova_rl.head.solution import Solution
from kova_rl.head.stream import Stream

__all__ = ["long_run", "solve"]

RANK = 1e-13
"""Of the largest direction of the traces: what is smaller is rounding, and the prior stands for it."""
TINY = torch.finfo(torch.float64).tiny
PASSES = 4
"""Of the noise's variance, which decides the pull of the prior, and depends on the solution."""


def solve(
    stream: Stream,
    tracked: Tensor,
    *,
    lam: float = 0.0,
    prior: float = 1.0,
    window: int | None = None,
    rounding: float = torch.finfo(torch.float32).eps,
) -> Solution:
    """LSTD(lambda) about the tracked head, with the covariance of its error.

    Args:
        stream: Transitions in the order of time.
        tracked: The head that the critic has, of shape (k,).
        lam: lambda, in [0, 1].
        prior: v, the variance of a weight about the tracked one before any data.
        window: Steps over which successive samples may depend on each other; None for the cube root of n.
        rounding: Relative error of the features, the epsilon of the dtype that they were computed in.
    """
    tracked = tracked.double()
    k, n = len(tracked), len(stream)
    eye = torch.eye(k, dtype=torch.float64, device=tracked.device)
    z, d = stream.traces(lam), stream.changes
    z = z / z.abs().amax().clamp(min=TINY) if n else z  # their unit is of no matter
    whiten = _whitening(z)
    if not whiten.shape[1]:  # no sample that counts
        return Solution(tracked, math.sqrt(prior) * eye, tracked, prior, 0.0, Misfit.none(tracked), 0.0, n)
    y = z @ whiten  # the traces, in coordinates where M = I
    rare = y.square().sum(1)
    left, stretch, right = torch.linalg.svd(y.T @ d, full_matrices=False)  # of A in these coordinates
    delta = stream.rewards - d @ tracked
    pull, freedom = left.T @ (y.T @ delta), 0.0
    for _ in range(PASSES):
        noise = float((rare * delta.square()).sum() / rare.sum()) * n / max(n - freedom, 0.1 * n)
        total = (prior * stretch.square() + noise).clamp(min=TINY)
        share, gain = prior * stretch.square() / total, prior * stretch / total
        weights = tracked + right.T @ (gain * pull)
        delta, freedom = stream.rewards - d @ weights, float(share.sum())
    kept = right.T * gain @ left.T  # K in these coordinates
    left_out = delta / (1 - ((d @ kept) * y).sum(1).clamp(0.0, 0.9))
    size = stream.rewards.abs() + (stream.features.abs() + stream.followed.abs()) @ weights.abs()
    extra = _unseen(rare, delta) + _rounding(rare, rounding * size)
    middle = long_run(y * left_out[:, None], window) + (y * extra[:, None]).T @ y
    rest = eye - right.T * share @ right  # I - K A
    covariance = prior * rest @ rest.T + kept @ middle @ kept.T
    beyond = Misfit.of(stream, delta, y @ whiten.T)
    return Solution(weights, _root(covariance, prior), tracked, prior, math.sqrt(noise), beyond, freedom, n)


def _whitening(z: Tensor) -> Tensor:
    """W, k x r, with W'(sum z z')W = I over the directions that are there."""
    values, vectors = torch.linalg.eigh(z.T @ z)
    there = values > RANK * values[-1].clamp(min=TINY)
    found: Tensor = vectors[:, there] / values[there].sqrt()
    return found


def _unseen(rare: Tensor, delta: Tensor) -> Tensor:
    r"""Variance of what has not been seen: the leverage times the largest difference squared.

    A sample of leverage h has some m = 1/h of its like. What did not happen in m visits may still have a
    probability of 1/m. If it is as large as the largest difference :math:`\tau` that was seen anywhere, then
    the mean is off by :math:`\tau/m`: a variance of :math:`\tau^2/m` a sample.
    """
    largest = torch.where(rare > 0, delta, 0.0).square().max()
    return rare.clamp(max=1.0) * largest


def _rounding(rare: Tensor, error: Tensor) -> Tensor:
    """Variance of rounding, which is the same at each visit, so that m visits do not make it smaller."""
    return error.square() / rare.clamp(min=1e-8, max=1.0)


def long_run(moments: Tensor, window: int | None) -> Tensor:
    """The long-run covariance of a sum of moments (n x k), whose successive rows may depend on each other.

    Sums over a sliding window, squared: Newey and West's estimate with Bartlett's weights, in one product,
    and positive semidefinite by construction.

    Args:
        moments: Rows in the order of time.
        window: How many rows may depend on each other; 1 for none, None for the cube root of n.
    """
    n, k = moments.shape
    wide = max(1, min(n, round(n ** (1 / 3)) if window is None else window))
    ends = torch.cat([moments.new_zeros(1, k), moments.cumsum(0)])
    ends = torch.cat([ends[:1].expand(wide - 1, k), ends, ends[-1:].expand(wide - 1, k)])
    sums = ends[wide:] - ends[:-wide]
    return sums.T @ sums / wide


def _root(covariance: Tensor, prior: float) -> Tensor:
    """A square root of the covariance, cut to the prior's variance in every direction."""
    values, vectors = torch.linalg.eigh(0.5 * (covariance + covariance.T))
    root: Tensor = vectors * values.clamp(min=0.0, max=prior).sqrt()
    return root
