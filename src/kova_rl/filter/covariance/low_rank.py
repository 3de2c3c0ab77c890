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
from kova_rl.filter.symmetric import product

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
        # X = [W, H L^-T] in coordinates where diag(v) is the identity: its Gram matrix is G.
        d, k = W.shape[0], r + evidence.innovation.shape[0]
        X = work.buffer("X", d, k, W)
        H = noise.whitened(evidence.jacobian, out=X[:, r:])
        information = _information(evidence, H)
        # Rows that nothing observes decay for ever; subnormal numbers would be many times slower.
        faint = squares < torch.finfo(W.dtype).eps ** 3
        rows = _Rows.without(faint.logical_and(information == 0))  # not finite is not 0
        if rows.index is not None:
            X = rows.of(X, work.buffer("rows of X", rows.index.shape[0], k, W))
        v = rows.of(leaked)
        scale = v.rsqrt()
        torch.mul(rows.of(W), (scale * keep).masked_fill_(rows.of(faint), 0.0)[:, None], out=X[:, :r])
        X[:, r:].mul_(scale[:, None])
        G = product(X, X)
        if G.dtype is torch.float32 and MUCH < float(G.diagonal()[r:].sum()) < math.inf:
            X = X.double()  # float32 could not hold what the batch says
            G = product(X, X)
        w = noise.whiten(evidence.innovation)
        z, lower, jitter = _solve(G, w, evidence)  # (I + G)^-1 [0; w]
        delta = rows.spread(torch.mv(X, z).mul_(scale * lr).to(leaked.dtype), leaked)

        def predicted_variance() -> Tensor:
            # H'P-H = G_HH - G_HW (I + G_WW)^-1 G_WH: a Schur complement, less the I of S, in units of P_n.
            return noise.explained(lower[r:, r:]).to(w.dtype).clamp_(min=0.0)

        def commit() -> None:
            Q = _directions(G, lr, r)
            if lr != 1.0:
                X[:, r:].mul_(lr**0.5)
            gained = rows.of(information).mul(lr).add_(rows.of(squares), alpha=keep**2)
            plain = rows.index is None and X.dtype is W.dtype
            kept = torch.mm(X, Q, out=W if plain else work.buffer("kept", X.shape[0], r, X))
            strong = (gained > EXACT).nonzero().squeeze(1) if float(gained.max()) > EXACT else None
            missed = None if strong is None else _missed(X[strong], Q, kept[strong]).mul_(v[strong])
            kept = kept.div_(scale[:, None]).to(v.dtype)
            weighed = _squared(kept)
            left = gained.sub_(weighed).clamp_(min=0.0)
            if strong is not None and missed is not None:
                left[strong] = missed.to(v.dtype)
            # What is not kept in W stays on the diagonal.
            rows.write(state["diagonal"].copy_(leaked), left.add_(v))
            rows.write(squares, weighed)
            rows.write(W, kept)

        nis = w.to(z.dtype).dot(z[r:]).item() / w.shape[0]
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

    @classmethod
    def without(cls, idle: Tensor) -> _Rows:
        count, busy = idle.shape[0], idle.shape[0] - int(idle.count_nonzero())
        return cls((~idle).nonzero().squeeze(1) if 0 < busy <= cls.WORTH * count else None)

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
    return _squared(whitened)


def _squared(matrix: Tensor) -> Tensor:
    """The sum of squares of each row, a part at a time: what is squared would be a matrix as large."""
    parts = [torch.linalg.vecdot(part, part) for part in matrix.split(CHUNK)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _missed(X: Tensor, Q: Tensor, kept: Tensor) -> Tensor:
    """The squared rows of ``X - X Q Q'``, for X, which is overwritten, and ``kept = X Q``."""
    return _squared(X.addmm_(kept, Q.T, alpha=-1.0))


def _solve(G: Tensor, w: Tensor, evidence: Evidence) -> tuple[Tensor, Tensor, float]:
    """``(I + G)^-1 [0; w]``, the factor of ``I + G``, and the jitter that it took."""
    first = G.shape[0] - w.shape[0]
    inner = G.clone()
    inner.diagonal().add_(1.0)
    lower, jitter = cholesky(inner, evidence, first)
    right = G.new_zeros(G.shape[0], 1)
    right[first:, 0] = w
    return torch.cholesky_solve(right, lower)[:, 0], lower, jitter


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
