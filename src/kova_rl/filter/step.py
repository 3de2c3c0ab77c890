r"""Predict and update, as functions of tensors. Equation numbers are those of the paper.

Coordinates are whitened by the prior: ``P_0 = I``.
No function changes the filter's state: each returns an :class:`Update`, whose ``commit`` does,
so that a batch can still be refused once its numbers are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from kova_rl.errors import NonFiniteBatch, NotPositiveDefinite
from kova_rl.filter.evidence import Evidence, Noise, inverse_lower

if TYPE_CHECKING:
    from kova_rl.filter.covariance.blocks import BlockDiagonal

State = dict[str, Any]

JITTER_TRIES = 6


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


FLUSH_EVERY = 64
"""Steps between two looks for correlations that have decayed into nothing."""


def affine(
    structure: BlockDiagonal,
    state: State,
    evidence: Evidence,
    lr: float,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Update:
    """One step with ``P- = scale P + shift I``: the scale is folded into the downdate."""
    H, PH, noise, kept, own = _predicted(structure, state, evidence, scale, shift)  # (Alg. 1, line 2)
    M = H.T @ PH  # H' P- H
    S = noise.added_to(M)  # S = H' P- H + P_n                                     (eq. 9)
    lower, jitter = cholesky(S, evidence)
    inverse = inverse_lower(lower)
    w = inverse @ evidence.innovation
    A = torch.mm(PH, inverse.T, out=H)  # K S K' = A A'                            (eq. 10)
    delta = torch.mv(A, w).mul_(lr)  # alpha K innovation                          (eq. 5)

    def commit() -> None:  # P = P- - alpha K S K'                                 (eq. 5)
        structure.add_outer(state, A if lr == 1.0 else A * lr**0.5, None, kept, own)
        if evidence.step % FLUSH_EVERY == 0:
            structure.flush(state)

    return Update(delta, w.dot(w).item() / len(w), lambda: noise.taken_from(S), commit, jitter)


def directional(
    structure: BlockDiagonal,
    state: State,
    evidence: Evidence,
    lr: float,
    eta: float,
    bounded: bool,
) -> Update:
    r"""One step that inflates only the directions that the batch observes.

    With eigenpairs ``(l_i, v_i)`` of ``L_n^-1 H'P H L_n^-T`` and ``u_i = P H L_n^-T v_i``, direction i
    is inflated by ``g_i = 1/(1 - eta_i)``, and prediction and update together change P by

    .. math:: \sum_i u_i u_i' \Big[\frac{g_i - 1}{l_i} - \frac{\alpha g_i^2}{1 + g_i l_i}\Big].
    """
    H, PH, noise, kept, own = _predicted(structure, state, evidence)
    M = H.T @ PH
    check_finite_gram(M, evidence)
    M = noise.whiten_columns(noise.whiten_columns(M).T)
    l, V = _eigh(M.add(M.T).mul_(0.5), evidence)  # noqa: E741 - the docstring's l
    l = l.clamp(min=0.0)  # noqa: E741
    U = torch.mm(PH, noise.whiten_rows(V), out=H)  # P H L_n^-T V
    w = V.T @ noise.whiten(evidence.innovation)

    floor = torch.finfo(l.dtype).eps * l[-1].clamp(min=torch.finfo(l.dtype).tiny)
    per_l = torch.where(l > floor, eta / l.clamp(min=floor), 0.0)  # eta_i / l_i
    if bounded:
        per_l = torch.minimum(per_l, lr / (1 + l))  # eta_i <= alpha l_i/(1 + l_i)
    g = 1 / (1 - per_l * l)
    S = 1 + g * l
    c = g * per_l - lr * g.square() / S
    if bounded:
        c.clamp_(max=0.0)
    delta = torch.mv(U, g * w / S).mul_(lr)
    nis = (w.square() / S).mean().item()

    def predicted_variance() -> Tensor:
        return noise.diagonal_of((V * (g * l)) @ V.T)

    def commit() -> None:
        structure.add_outer(state, U * c.abs().sqrt(), c.sign(), kept, own)

    return Update(delta, nis, predicted_variance, commit)


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
            "changed. Use dtype=torch.float64 for the covariance, or another evolution."
        ) from error
    return values, vectors


def _predicted(
    structure: BlockDiagonal, state: State, evidence: Evidence, scale: float = 1.0, shift: float = 0.0
) -> tuple[Tensor, Tensor, Noise, float, Tensor]:
    """``H`` and ``P- H`` for ``P- = kept P + diag(own)``, then a noise that P can represent, kept and own.

    That is ``scale P + shift I``, but for rounding: the last digits of a stored P mean nothing, so a step
    forgets a few of its correlations' and none of its variances', which keeps P positive definite. H and
    P- H are buffers, which the next step overwrites.
    """
    n, d = len(evidence.innovation), evidence.jacobian.size
    H, PH = (evidence.workspace.buffer(name, d, n, evidence.innovation) for name in ("H", "PH"))
    evidence.jacobian.dense(out=H)
    rest = 16 * torch.finfo(H.dtype).eps
    kept = scale * (1 - rest)
    own = structure.variances(state).clamp_(max=1.0).mul_(scale * rest).add_(shift)
    structure.times(state, H, out=PH).mul_(kept).addcmul_(H, own[:, None])
    return H, PH, _representable(evidence.noise, H), kept, own


def _representable(noise: Noise, H: Tensor) -> Noise:
    """The noise, but no target more exact than the rounding of ``h'P_0 h``.

    A stored P holds variances from the prior's down to about ``eps`` times that. A batch that asks for
    less would leave the difference of two nearly equal numbers, and with it an indefinite P.
    """
    tolerance = 64 * torch.finfo(H.dtype).eps
    flat = H.view(-1)
    if not noise.smallest < tolerance * flat.dot(flat).item():
        return noise
    return noise.at_least(tolerance * torch.linalg.vecdot(H, H, dim=0))


def cholesky(S: Tensor, evidence: Evidence, first: int = 0) -> tuple[Tensor, float]:
    """L of ``S = L L'``, and the jitter that it took; ``first`` is the row at which the batch begins."""
    check_finite_gram(S, evidence, first)
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


def check_finite_gram(M: Tensor, evidence: Evidence, first: int = 0) -> None:
    """A Jacobian with any entry that is not finite shows on the diagonal of its Gram matrix.

    ``first`` is the row of M at which the batch begins.
    """
    if math.isfinite(M.trace().item()):
        return
    bad = (~torch.isfinite(M.diagonal()[first:])).nonzero().flatten().tolist()
    raise NonFiniteBatch(
        f"step {evidence.step}: the gradient of {len(bad)} of {len(M) - first} predictions is not finite or "
        f"overflows (first sample: {bad[0] if bad else 'their sum'}). Nothing was changed. Normalise "
        "the inputs of the critic, and look for a NaN in its weights."
    )
