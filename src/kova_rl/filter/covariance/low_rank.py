r"""The inverse of P as a diagonal plus a low rank: linear in d, positive definite by construction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from kova_rl.filter.change import Change, Leak, Restart, Unchanged
from kova_rl.filter.checks import check_whole
from kova_rl.filter.covariance.base import ANY, Accepted, Covariance, Prior, Spread
from kova_rl.filter.evidence import CHUNK, Evidence, Jacobian, inverse_lower
from kova_rl.filter.layout import Segment, dimension
from kova_rl.filter.step import MUCH, State, Update, cholesky

ROUNDS = 2
"""Of subspace iteration in a step."""

EXACT = 100.0
"""Information about a weight, above which what W leaves out is not taken as a difference of squares: the
rounding errors of that, kept above 0, would add up to information that no batch has given."""


@dataclass(frozen=True)
class LowRank(Covariance):
    r"""Keeps the information ``P^-1 = diag(v) + W W'`` with ``v >= 1`` and W of d x rank.

    With ``P_n = L L'``, ``X = [W, H L^-T]`` and ``k = rank + N``, one step is

    .. math::
        \begin{aligned}
        v &\leftarrow (1-\eta) v + \eta, \quad W \leftarrow \sqrt{1-\eta}\, W
            && \text{leakage} \\
        G &= X' \operatorname{diag}(1/v) X
            && k \times k \\
        \Delta\theta &= \alpha \operatorname{diag}(1/v) X (I + G)^{-1} [0;\, L^{-1} \delta]
            && \text{the gain times the innovation} \\
        W &\leftarrow X Q
            && \text{Q spans the strongest directions of } G \\
        v &\leftarrow v + \operatorname{rows}(X - X Q Q')^2
            && \text{the rest stays as information on the diagonal}
        \end{aligned}

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

    accepts: ClassVar[Accepted] = {Unchanged: ANY, Leak: ANY, Restart: ANY}

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=0)
        super().__post_init__()

    def work(self, segments: Sequence[Segment], n: int) -> float:
        return float(dimension(segments)) * (n + self.rank) ** 2

    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        d = dimension(segments)
        return {
            "diagonal": torch.ones(d, dtype=like.dtype, device=like.device),
            "factor": torch.zeros(d, self.rank, dtype=like.dtype, device=like.device),
            "squares": torch.zeros(d, dtype=like.dtype, device=like.device),  # rows of W, squared
        }

    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        noise, r, work = evidence.noise, self.rank, evidence.workspace
        eta = change.eta if isinstance(change, Leak) else 0.0
        keep = (1 - eta) ** 0.5
        W, squares = state["factor"], state["squares"]
        leaked = state["diagonal"].mul(1 - eta).add_(eta)
        H = noise.whitened(evidence.jacobian, out=work.buffer("H", len(W), len(evidence.innovation), W))
        information = _information(evidence, H)
        # Rows that nothing observes decay for ever; subnormal numbers would be many times slower.
        faint = squares < torch.finfo(W.dtype).eps ** 3
        rows = _Rows.where(information != 0, faint)  # not finite is not 0
        v = rows.of(leaked)
        scale = v.rsqrt()
        # X = [W, H L^-T] in coordinates where diag(v) is the identity: its Gram matrix is G.
        X_W = work.buffer("W", len(v), r, v)
        torch.mul(rows.of(W, X_W), (scale * keep).masked_fill_(rows.of(faint), 0.0)[:, None], out=X_W)
        X_H = (H if rows.all else rows.of(H, work.buffer("rows of H", len(v), H.shape[1], v))).mul_(
            scale[:, None]
        )
        G = _gram(X_W, X_H)
        if G.dtype is torch.float32 and MUCH < float(G.diagonal()[r:].sum()) < math.inf:
            X_W, X_H = X_W.double(), X_H.double()  # float32 could not hold what the batch says
            G = _gram(X_W, X_H)
        w = noise.whiten(evidence.innovation)
        z, jitter = _solve(G, w, evidence)  # (I + G)^-1 [0; w]
        moved = torch.mv(X_W, z[:r]).addmv_(X_H, z[r:])
        delta = rows.spread(moved.mul_(scale * lr).to(leaked.dtype), leaked)

        def predicted_variance() -> Tensor:
            # H'P-H = G_HH - G_HW (I + G_WW)^-1 G_WH, in units of the noise.
            inner = G[:r, :r] + torch.eye(r, dtype=G.dtype, device=G.device)
            root = G[r:, :r] @ inverse_lower(torch.linalg.cholesky(inner)).T
            return noise.diagonal_of((G[r:, r:] - root @ root.T).to(w.dtype)).clamp_(min=0.0)

        def commit() -> None:
            Q = _directions(G, lr, r)
            if lr != 1.0:
                X_H.mul_(lr**0.5)
            gained = rows.of(information).mul(lr).add_(rows.of(squares), alpha=keep**2)
            kept = torch.mm(X_H, Q[r:], out=work.buffer("kept", len(v), r, X_W)).addmm_(X_W, Q[:r])
            left = _left(X_W, X_H, Q, kept).mul_(v) if float(gained.max()) > EXACT else None
            kept = kept.div_(scale[:, None]).to(v.dtype)
            weighed = torch.linalg.vecdot(kept, kept)
            if left is None:
                left = gained.sub_(weighed).clamp_(min=0.0)
            # What is not kept in W stays on the diagonal.
            rows.write(state["diagonal"].copy_(leaked), left.to(v.dtype).add_(v))
            rows.write(squares, weighed)
            rows.write(W, kept)

        nis = w.to(z.dtype).dot(z[r:]).item() / len(w)
        return Update(delta, nis, predicted_variance, commit, jitter)

    def _whitened_root(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """``P = D (I + B diag(f) B')^2 D`` with D a diagonal: a symmetric root, without cancellation."""
        scale = state["diagonal"].rsqrt()
        Q = state["factor"] * scale[:, None]
        E, Y = torch.linalg.eigh((Q.T @ Q).double())  # float32 can fail to converge while W is nearly empty
        root = (1 + E.clamp(min=0.0)).sqrt()
        return scale, Q @ Y.to(Q.dtype), (-1 / (root * (1 + root))).to(Q.dtype)

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        scale, B, f = self._whitened_root(state)
        root = jacobian.dense().mul_(scale[:, None])
        root.addmm_(B, f[:, None] * (B.T @ root))
        return Spread.of(root, root)

    def draw(self, state: State, normal: Tensor) -> Tensor:
        scale, B, f = self._whitened_root(state)
        return torch.addmv(normal, B, f * (B.T @ normal)).mul_(scale)

    def variances(self, state: State) -> Tensor:
        v = state["diagonal"]
        Q = state["factor"] * v.rsqrt()[:, None]
        inner = Q.T @ Q
        inner.diagonal().add_(1.0)
        explained = (Q @ inverse_lower(torch.linalg.cholesky(inner)).T).square().sum(1)
        # P_jj >= 1/(P^-1)_jj: a floor for what the subtraction loses to rounding.
        return torch.maximum((1 - explained) / v, 1 / (v + state["squares"]))


class _Rows:
    """The rows that are not zero in both W and H: weights of dead units and dark inputs have none.

    A critic with ReLU units may have them for half of its weights, and the work on the others is halved.
    """

    WORTH = 0.8
    """The largest share of all rows that is worth the copying."""

    def __init__(self, index: Tensor | None) -> None:
        self.index = index
        self.all = index is None

    @classmethod
    def where(cls, observed: Tensor, faint: Tensor) -> _Rows:
        index = torch.logical_or(observed, ~faint).nonzero().squeeze(1)
        return cls(index if 0 < len(index) <= cls.WORTH * len(observed) else None)

    def of(self, whole: Tensor, out: Tensor | None = None) -> Tensor:
        """These rows, in ``out`` if they are not all; then it is the tensor itself."""
        return whole if self.index is None else torch.index_select(whole, 0, self.index, out=out)

    def spread(self, part: Tensor, like: Tensor) -> Tensor:
        """A vector that is 0 in the other rows."""
        return part if self.index is None else torch.zeros_like(like).index_copy_(0, self.index, part)

    def write(self, whole: Tensor, part: Tensor) -> None:
        """Put these rows in their places."""
        if self.index is not None:
            whole.index_copy_(0, self.index, part)
        elif whole is not part:
            whole.copy_(part)


def _information(evidence: Evidence, whitened: Tensor) -> Tensor:
    """The diagonal of ``H P_n^-1 H'``."""
    if evidence.noise.is_diagonal:
        return evidence.jacobian.squares(evidence.noise.covariance.reciprocal())
    return torch.cat([part.square().sum(1) for part in whitened.split(CHUNK)])


def _gram(W: Tensor, H: Tensor) -> Tensor:
    """``[W, H]' [W, H]``."""
    r, k = W.shape[1], W.shape[1] + H.shape[1]
    G = W.new_empty(k, k)
    torch.mm(W.T, W, out=G[:r, :r])
    torch.mm(H.T, W, out=G[r:, :r])
    torch.mm(H.T, H, out=G[r:, r:])
    G[:r, r:] = G[r:, :r].T
    return G


def _left(W: Tensor, H: Tensor, Q: Tensor, kept: Tensor) -> Tensor:
    """The squared rows of ``X - X Q Q'``, for ``X = [W, H]``, which is overwritten, and ``kept = X Q``."""
    W.addmm_(kept, Q[: W.shape[1]].T, alpha=-1.0)
    H.addmm_(kept, Q[W.shape[1] :].T, alpha=-1.0)
    squares: Tensor = torch.linalg.vecdot(W, W).add_(torch.linalg.vecdot(H, H))
    return squares


def _solve(G: Tensor, w: Tensor, evidence: Evidence) -> tuple[Tensor, float]:
    """``(I + G)^-1 [0; w]``, and the jitter that it took."""
    inner = G.clone()
    inner.diagonal().add_(1.0)
    lower, jitter = cholesky(inner, evidence, first=len(G) - len(w))
    right = G.new_zeros(len(G), 1)
    right[len(G) - len(w) :, 0] = w
    return torch.cholesky_solve(right, lower)[:, 0], jitter


def _directions(G: Tensor, lr: float, r: int) -> Tensor:
    """Q spans the r strongest directions of ``D G D``, where D tempers the batch by ``lr``.

    Any orthonormal Q gives a valid filter, because what it leaves out goes to the diagonal, so two rounds
    of subspace iteration do for what an eigendecomposition would do at several times the price: on
    recorded batches both are about equally close to the exact filter (``make bench``).
    """
    if lr != 1.0:
        D = G.new_ones(len(G), 1)
        D[r:] = lr**0.5
        G = G * D * D.T
    Q = _start(len(G), r, G.dtype, G.device)
    for _ in range(ROUNDS):
        Q = torch.linalg.qr(G @ Q).Q
    return Q


@lru_cache(maxsize=64)
def _start(k: int, r: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A fixed random block: the same at every step and in every process."""
    block = torch.randn(
        k, r, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float64, device="cpu"
    )
    return block.to(device, dtype)
