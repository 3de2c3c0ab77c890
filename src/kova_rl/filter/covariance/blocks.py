"""Covariances that are block-diagonal matrices: all of P, one block a layer, one block a neuron."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.covariance.base import Covariance, Prior, Spread
from kova_rl.filter.evidence import Evidence, Jacobian
from kova_rl.filter.layout import Blocks, Segment
from kova_rl.filter.step import State, Update

if TYPE_CHECKING:
    from kova_rl.filter.evolution import Evolution


@dataclass(frozen=True)
class BlockDiagonal(Covariance):
    r"""P as a matrix that is zero outside its diagonal blocks.

    Blocks follow the decoupled filter of Puskorius and Feldkamp: one shared innovation covariance
    sums what the blocks contribute, so that the innovation is explained once, not once a block,

    .. math:: S = \sum_b H_b' P_b^- H_b + P_n, \quad K_b = P_b^- H_b S^{-1}.

    It is the dense filter with everything outside the blocks set to zero after each update.

    Args:
        prior: See :class:`Covariance`.
        dtype: See :class:`Covariance`.
    """

    prior: Prior = 1.0
    dtype: torch.dtype | None = None

    @abstractmethod
    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        """Where the blocks are."""

    def init(self, segments: Sequence[Segment], like: Tensor) -> State:
        state: State = {}
        for blocks in self.partition(segments):
            eye = torch.eye(blocks.size, dtype=like.dtype, device=like.device)
            state[str(blocks.start)] = eye.repeat(blocks.number, 1, 1)
        return state

    def reset(self, state: State) -> None:
        """Back to ``P = P_0``."""
        for P in state.values():
            P.zero_()
            P.diagonal(dim1=1, dim2=2).fill_(1.0)

    def step(
        self, state: State, evolution: Evolution, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        return evolution.step(self, state, memory, evidence, lr)

    def times(self, state: State, H: Tensor, out: Tensor) -> Tensor:
        """``P H``, in ``out``."""
        for start, P in _blocks(state):
            if len(P) == 1:
                torch.mm(P[0], _rows(H, start, P)[0], out=_rows(out, start, P)[0])
            else:
                torch.bmm(P, _rows(H, start, P), out=_rows(out, start, P))
        return out

    def add_outer(self, state: State, A: Tensor, signs: Tensor | None, scale: float, shift: Tensor) -> None:
        """``P <- scale P + diag(shift) + A diag(signs) A'``, inside the blocks; signs None is -1."""
        left, alpha = (A, -1.0) if signs is None else (A * signs, 1.0)
        for start, P in _blocks(state):
            a, b = _rows(left, start, P), _rows(A, start, P)
            if len(P) == 1:
                P[0].addmm_(a[0], b[0].T, beta=scale, alpha=alpha)
            else:
                P.baddbmm_(a, b.mT, beta=scale, alpha=alpha)
            P.diagonal(dim1=1, dim2=2).add_(_rows(shift[:, None], start, P)[:, :, 0])

    def flush(self, state: State) -> None:
        """Set correlations to 0 that are about to become subnormal numbers, which are many times slower."""
        for _, P in _blocks(state):
            P.masked_fill_(P.abs() < torch.finfo(P.dtype).tiny ** 0.75, 0.0)

    def leaked(self, state: State, eta: float, step: int) -> State:
        r"""``P- = P ((1-eta) I + eta P)^-1``, which is ``P-^-1 = (1-eta) P^-1 + eta I``, as a new state."""
        out: State = {}
        for key, P in state.items():
            C = P * eta
            C.diagonal(dim1=1, dim2=2).add_(1 - eta)
            lower, failed = torch.linalg.cholesky_ex(C)
            if failed.any():
                raise NotPositiveDefinite(
                    f"step {step}: a covariance block of size {P.shape[-1]} has lost positive "
                    "definiteness. Nothing was changed. Use dtype=torch.float64, or covariance.LowRank."
                )
            leaked = torch.cholesky_solve(P, lower)
            out[key] = leaked.add(leaked.mT).mul_(0.5)
        return out

    def variances(self, state: State) -> Tensor:
        return torch.cat([P.diagonal(dim1=1, dim2=2).flatten() for P in state.values()])

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        H = jacobian.dense()
        return Spread.of(H, self.times(state, H, torch.empty_like(H)))

    def draw(self, state: State, normal: Tensor) -> Tensor:
        out = torch.empty_like(normal)
        for start, P in _blocks(state):
            lower, failed = torch.linalg.cholesky_ex(P)
            if failed.any():
                raise NotPositiveDefinite(
                    f"a covariance block of size {P.shape[-1]} is not positive definite, so that no weights "
                    "can be drawn from it. Use dtype=torch.float64, or covariance.LowRank."
                )
            torch.bmm(lower, _rows(normal[:, None], start, P), out=_rows(out[:, None], start, P))
        return out


def _blocks(state: State) -> list[tuple[int, Tensor]]:
    """(first coordinate, count x size x size) of each run of equal blocks."""
    return [(int(start), P) for start, P in state.items()]


def _rows(H: Tensor, start: int, P: Tensor) -> Tensor:
    """The rows of d x N that belong to the blocks P, as count x size x N."""
    count, size = P.shape[:2]
    return H[start : start + count * size].view(count, size, H.shape[1])


@dataclass(frozen=True)
class LayerBlocks(BlockDiagonal):
    """One block a layer: weights of different layers are taken as uncorrelated (the paper's way (b))."""

    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        layers: dict[int, list[Segment]] = {}
        for segment in segments:
            layers.setdefault(segment.layer, []).append(segment)
        return [Blocks(part[0].start, 1, part[-1].stop - part[0].start) for part in layers.values()]


@dataclass(frozen=True)
class NeuronBlocks(BlockDiagonal):
    """One block for each output unit of a layer: its incoming weights and its bias.

    For modules other than ``nn.Linear``: the rows of dimension 0 of its parameters, joined where
    two parameters of one module have equally many (a convolution's kernel and its bias).
    """

    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        return [Blocks(segment.start, segment.rows, segment.cols) for segment in segments]
