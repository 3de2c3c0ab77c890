r"""One update, in the N numbers of a batch. Equation numbers are those of the paper.

Coordinates are whitened by the prior: ``P_0 = I``. What is N x N is computed in float64, whatever the
filter's dtype: it is small, and a batch can say more than float32 can hold.
No function changes the filter's state: a structure makes an :class:`Update` of what is returned here, whose
``commit`` does, so that a batch can still be refused once its numbers are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kova_rl.errors import NonFiniteBatch, NotPositiveDefinite
from kova_rl.filter.evidence import Evidence, Noise, inverse_lower

State = dict[str, Any]

JITTER_TRIES = 6

MUCH = 1e4
"""``trace(H'P-H)`` over the noise, above which a batch in float32 is worked out in float64."""


class Update(NamedTuple):
    """The result of one update, before it is made."""

    delta: Tensor
    """Change of the whitened weights, ``alpha K innovation``."""
    nis: float
    """Normalised innovation squared, ``innovation' S^-1 innovation / N``."""
    predicted_variance: Callable[[], Tensor]
    """The diagonal of ``H' P- H``: what the filter expected the innovation's variance to be."""
    commit: Callable[[], None]
    """Writes the posterior covariance into the state."""
    jitter: float = 0.0
    """What was added to the diagonal of S to factorise it."""


class Gain(NamedTuple):
    """What a batch does to the weights and to P: ``P- H`` times N x N matrices.

    With ``U = P- H T`` the weights change by ``U z`` and the covariance is ``P- + U diag(c) U'``.
    """

    T: Tensor
    c: Tensor | float
    z: Tensor
    nis: float
    predicted_variance: Callable[[], Tensor]
    jitter: float = 0.0


def gain(M: Tensor, noise: Noise, evidence: Evidence, lr: float) -> Gain:
    """The update for ``M = H' P- H``, N x N."""
    M = M.double()
    S = noise.added_to(M.clone())  # S = H' P- H + P_n                             (eq. 9)
    lower, jitter = cholesky(S, evidence)
    inverse = inverse_lower(lower)  # K S K' = U U' with U = P- H L_S^-T           (eq. 10)
    w = inverse @ evidence.innovation.double()
    z = w * lr  # alpha K innovation = U (alpha w), and P = P- - alpha U U'        (eq. 5)
    return Gain(inverse.T, -lr, z, w.dot(w).item() / len(w), M.diagonal, jitter)


def directional_gain(
    M: Tensor, noise: Noise, evidence: Evidence, lr: float, eta: float, bounded: bool
) -> Gain:
    r"""The update for ``M = H' P H`` that first inflates the directions that the batch observes.

    With eigenpairs ``(l_i, v_i)`` of ``L_n^-1 M L_n^-T`` and ``u_i = P H L_n^-T v_i``, direction i
    is inflated by ``g_i = 1/(1 - eta_i)``, and prediction and update together change P by

    .. math:: \sum_i u_i u_i' \Big[\frac{g_i - 1}{l_i} - \frac{\alpha g_i^2}{1 + g_i l_i}\Big].
    """
    M, noise = M.double(), noise.double()
    M = noise.whiten_columns(noise.whiten_columns(M).T)
    l, V = _eigh(M.add(M.T).mul_(0.5), evidence)  # noqa: E741 - the docstring's l
    l = l.clamp(min=0.0)  # noqa: E741
    w = V.T @ noise.whiten(evidence.innovation.double())

    floor = torch.finfo(l.dtype).eps * l[-1].clamp(min=torch.finfo(l.dtype).tiny)
    per_l = torch.where(l > floor, eta / l.clamp(min=floor), 0.0)  # eta_i / l_i
    if bounded:
        per_l = torch.minimum(per_l, lr / (1 + l))  # eta_i <= alpha l_i/(1 + l_i)
    g = 1 / (1 - per_l * l)
    S = 1 + g * l
    c = g * per_l - lr * g.square() / S
    if bounded:
        c.clamp_(max=0.0)
    nis = (w.square() / S).mean().item()

    def predicted_variance() -> Tensor:
        return noise.diagonal_of((V * (g * l)) @ V.T)

    return Gain(noise.whiten_rows(V), c, g * w / S * lr, nis, predicted_variance)


def isotropic(evidence: Evidence, lr: float, variance: float) -> Update:
    """One step from ``P- = variance I``: nothing is carried over, and neither P nor H is built."""
    M = evidence.jacobian.gram()
    S = evidence.noise.added_to(M, 1 / variance)  # in units of the variance
    lower, jitter = cholesky(S, evidence)
    z = torch.cholesky_solve(evidence.innovation.unsqueeze(1), lower)
    delta = evidence.jacobian.times(z if lr == 1.0 else z * lr)
    nis = evidence.innovation.dot(z.squeeze(1)).item() / (z.shape[0] * variance)

    def predicted_variance() -> Tensor:
        return evidence.noise.taken_from(S * variance)

    return Update(delta, nis, predicted_variance, lambda: None, jitter)


def _eigh(M: Tensor, evidence: Evidence) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(M)
    except RuntimeError as error:  # torch.linalg.LinAlgError is one
        raise NotPositiveDefinite(
            f"step {evidence.step}: the batch's covariance has no eigendecomposition ({error}). Nothing was "
            "changed. Use another evolution, or a larger observation noise."
        ) from error
    return values, vectors


def cholesky(S: Tensor, evidence: Evidence, first: int = 0) -> tuple[Tensor, float]:
    """L of ``S = L L'``, and the jitter that it took; ``first`` is the row at which the batch begins."""
    check_finite(S.diagonal(), evidence, first)
    return cholesky_of_finite(S, evidence)


def cholesky_of_finite(S: Tensor, evidence: Evidence) -> tuple[Tensor, float]:
    """The same where S is known to be finite."""
    lower, failed = torch.linalg.cholesky_ex(S)
    if not failed.item():
        return lower, 0.0
    scale = float(S.diagonal().abs().mean()) * torch.finfo(S.dtype).eps
    for k in range(JITTER_TRIES):
        jitter = scale * 10.0**k
        lower, failed = torch.linalg.cholesky_ex(
            S + torch.eye(len(S), dtype=S.dtype, device=S.device).mul_(jitter)
        )
        if not failed.item():
            return lower, jitter
    raise NotPositiveDefinite(
        f"step {evidence.step}: the innovation covariance is not positive definite, even with "
        f"{jitter:.1e} added to its diagonal (mean {float(S.diagonal().mean()):.3g}). Nothing was "
        "changed. Use dtype=torch.float64 for the covariance, a larger observation noise, "
        "covariance.LowRank (positive definite by construction), or a bounded evolution."
    )


def check_finite(diagonal: Tensor, evidence: Evidence, first: int = 0) -> float:
    """The trace of a Gram matrix: a Jacobian with any entry that is not finite shows on its diagonal.

    ``first`` is the row at which the batch begins.
    """
    trace: float = diagonal.sum().item()
    if math.isfinite(trace):
        return trace
    bad = (~torch.isfinite(diagonal[first:])).nonzero().flatten().tolist()
    raise NonFiniteBatch(
        f"step {evidence.step}: the gradient of {len(bad)} of {len(diagonal) - first} predictions is not "
        f"finite or overflows (first sample: {bad[0] if bad else 'their sum'}). Nothing was changed. "
        "Normalise the inputs of the critic, and look for a NaN in its weights."
    )
