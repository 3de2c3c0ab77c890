r"""The inverse of P as a diagonal plus a low rank: linear in d, positive definite by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kova_rl.filter.checks import check_whole
from kova_rl.filter.covariance.base import Covariance, Prior
from kova_rl.filter.evidence import CHUNK, Evidence, inverse_lower
from kova_rl.filter.layout import Segment, dimension
from kova_rl.filter.step import State, Update, check_finite_gram

if TYPE_CHECKING:
    from kova_rl.filter.evolution import Evolution

@dataclass(frozen=True)
class LowRank(Covariance):
    r"""Keeps the information ``P^-1 = diag(v) + W W'`` with ``v >= 1`` and W of d x rank.

    With ``P_n = L L'``, ``X = [W, H L^-T]`` and ``k = rank + N``, one step is

    .. math::
        v &\leftarrow (1-\eta) v + \eta, \quad W \leftarrow \sqrt{1-\eta}\, W
            && \text{leakage} \\
        G &= X' \operatorname{diag}(1/v) X
            && k \times k \\
        \Delta\theta &= \alpha \operatorname{diag}(1/v) X (I + G)^{-1} [0;\, L^{-1} \delta]
            && \text{the gain times the innovation} \\
        G &= V E V', \quad W \leftarrow X V_r
            && \text{the strongest directions stay} \\
        v &\leftarrow v + \operatorname{rows}(X)^2 - \operatorname{rows}(X V_r)^2
            && \text{the rest stays as information on the diagonal}

    Nothing is subtracted from a covariance, so P is positive definite and at most P_0, in float32
    too, for any number of steps. With rank >= d it is the exact filter. A rank of 0 keeps a diagonal
    information matrix, which is another filter than :class:`Diagonal`.

    For ``lr < 1`` the weights move by ``lr`` times the gain, as in every structure, and the batch
    adds ``lr H P_n^-1 H'`` to the information: ``P- - alpha K S K'`` is not closed in this form.

    Args:
        rank: How many directions are kept apart. Cost and memory are O(d (rank + N)).
        prior: See :class:`Covariance`.
        dtype: See :class:`Covariance`.
    """

    rank: int = 32
    prior: Prior = 1.0
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=0)
        super().__post_init__()

    def init(self, segments: Sequence[Segment], like: Tensor) -> State:
        d = dimension(segments)
        return {
            "diagonal": torch.ones(d, dtype=like.dtype, device=like.device),
            "factor": torch.zeros(self.rank, d, dtype=like.dtype, device=like.device),
        }

    def step(
        self, state: State, evolution: Evolution, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        noise, r = evidence.noise, self.rank
        eta = evolution.leak(memory)
        keep = (1 - eta) ** 0.5
        W = state["factor"]  # rank x d: directions are rows here, as samples are
        v = state["diagonal"] * (1 - eta) + eta
        scale = v.rsqrt()
        J = noise.whitened(evidence.jacobian).mul_(scale)  # in coordinates where diag(v) is I
        G = _gram(W, J, scale, keep)
        check_finite_gram(G[r:, r:], evidence)
        E, V = torch.linalg.eigh(G)
        w = noise.whiten(evidence.innovation)
        z = V @ ((w @ V[r:]) / (1 + E.clamp(min=0.0)))  # (I + G)^-1 [0; w]
        delta = (J.T @ z[r:]).mul_(scale).add_((W.T @ (z[:r] * keep)).div_(v)).mul_(lr)

        def predicted_variance() -> Tensor:
            # H'P-H = G_JJ - G_JW (I + G_WW)^-1 G_WJ, in units of the noise.
            inner = G[:r, :r] + torch.eye(r, dtype=G.dtype, device=G.device)
            root = G[r:, :r] @ inverse_lower(torch.linalg.cholesky(inner)).T
            return noise.diagonal_of(G[r:, r:] - root @ root.T).clamp_(min=0.0)

        def commit() -> None:
            X = V if lr == 1.0 else _tempered(G, lr, r)
            if noise.is_diagonal:
                gained = evidence.jacobian.column_squares(lr / noise.covariance)
            else:
                gained = v * lr * torch.cat([part.square().sum(0) for part in J.split(CHUNK, dim=1)])
            _compress(W, X[:, len(X) - r :], J, scale, keep, gained)
            # What is not kept in W stays on the diagonal; less than nothing is rounding.
            torch.add(v, gained.clamp_(min=0.0), out=state["diagonal"])

        return Update(delta, w.dot(z[r:]) / len(w), predicted_variance, commit)

    def _whitened_root(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """``P = D (I + B' diag(f) B)^2 D`` with D a diagonal: a symmetric root, without cancellation."""
        scale = state["diagonal"].rsqrt()
        Q = state["factor"] * scale
        E, Y = torch.linalg.eigh(Q @ Q.T)
        root = (1 + E.clamp(min=0.0)).sqrt()
        return scale, Y.T @ Q, -1 / (root * (1 + root))

    def halves(self, state: State, rows: Tensor) -> tuple[Tensor, Tensor]:
        scale, B, f = self._whitened_root(state)
        root = rows * scale
        root.addmm_((root @ B.T) * f, B)
        return root, root

    def draw(self, state: State, normal: Tensor) -> Tensor:
        scale, B, f = self._whitened_root(state)
        return (normal + B.T @ ((B @ normal) * f)).mul_(scale)

    def variances(self, state: State) -> Tensor:
        v, W = state["diagonal"], state["factor"]
        Q = W * v.rsqrt()
        inner = Q @ Q.T
        inner.diagonal().add_(1.0)
        explained = (inverse_lower(torch.linalg.cholesky(inner)) @ Q).square().sum(0)
        # P_jj >= 1/(P^-1)_jj: a floor for what the subtraction loses to rounding.
        return torch.maximum((1 - explained) / v, 1 / (v + W.square().sum(0)))


def _gram(W: Tensor, J: Tensor, scale: Tensor, keep: float) -> Tensor:
    """The lower triangle of ``G = X' X`` for ``X = [keep scale W; J]``, in chunks of columns."""
    r, k = len(W), len(W) + len(J)
    G = torch.zeros(k, k, dtype=J.dtype, device=J.device)
    for start in range(0, J.shape[1], CHUNK):
        columns = slice(start, start + CHUNK)
        w, j = W[:, columns] * scale[columns], J[:, columns]
        G[:r, :r].addmm_(w, w.T)
        G[r:, :r].addmm_(j, w.T)
        G[r:, r:].addmm_(j, j.T)
    G[:, :r].mul_(keep)
    G[:r, :r].mul_(keep)
    return G


def _tempered(G: Tensor, lr: float, r: int) -> Tensor:
    """Directions for information that is ``lr`` times as strong: ``D V`` with ``D G D = V E V'``."""
    D = torch.ones(len(G), dtype=G.dtype, device=G.device)
    D[r:] = lr**0.5
    return D[:, None] * torch.linalg.eigh(G * D * D[:, None])[1]


def _compress(W: Tensor, X: Tensor, J: Tensor, scale: Tensor, keep: float, gained: Tensor) -> None:
    """``W <- X' [keep W; J / scale]`` in place, and its rows' squares out of ``gained``."""
    r = len(W)
    of_W, of_J = X[:r].T * keep, X[r:].T
    for start in range(0, J.shape[1], CHUNK):
        columns = slice(start, start + CHUNK)
        old, gain = W[:, columns], gained[columns]
        new = (of_J @ J[:, columns]).div_(scale[columns]).addmm_(of_W, old)
        gain.add_(old.square().sum(0), alpha=keep**2).sub_(new.square().sum(0))
        old.copy_(new)
