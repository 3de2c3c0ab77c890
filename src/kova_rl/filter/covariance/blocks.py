"""Covariances that are block-diagonal matrices: all of P, one block a layer, one block a neuron."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kova_rl.filter.change import Change, Directional, Leak, Restart, Scaled, Shifted, Unchanged
from kova_rl.filter.covariance.base import ANY, SMALL, Accepted, Covariance, Prior, Spread
from kova_rl.filter.covariance.parts import Matrices, Part, Roots
from kova_rl.filter.evidence import Evidence, Jacobian, Noise
from kova_rl.filter.layout import Blocks, Segment
from kova_rl.filter.step import MUCH, Gain, State, Update, check_finite, directional_gain, gain
from kova_rl.filter.symmetric import product, times_upper

FLUSH_EVERY = 64
"""Steps between two looks for numbers that have decayed into nothing."""

EXACT = 8
"""Units in the last place of a batch's mean ``h'P_0 h``: no target counts as more exact than this."""


@dataclass(frozen=True)
class BlockDiagonal(Covariance):
    r"""P as a matrix that is zero outside its diagonal blocks.

    Blocks follow the decoupled filter of Puskorius and Feldkamp: one shared innovation covariance
    sums what the blocks contribute, so that the innovation is explained once, not once a block,

    .. math:: S = \sum_b H_b' P_b^- H_b + P_n, \quad K_b = P_b^- H_b S^{-1}.

    It is the dense filter with everything outside the blocks set to zero after each update.

    A block is kept as a root, ``P_b = L_b L_b'``, which is symmetric and positive definite on every machine;
    where the evolution adds a multiple of the prior, or a block is larger than 512, as the matrix itself.

    Args:
        prior: See :class:`Covariance`.
        dtype: See :class:`Covariance`.
    """

    prior: Prior = 1.0
    dtype: torch.dtype | None = None

    accepts: ClassVar[Accepted] = dict.fromkeys((Unchanged, Leak, Scaled, Shifted, Directional, Restart), ANY)

    @abstractmethod
    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        """Where the blocks are."""

    def largest_block(self, segments: Sequence[Segment]) -> int:
        return max(blocks.size for blocks in self.partition(segments))

    def work(self, segments: Sequence[Segment], n: int) -> float:
        return 4.0 * n * sum(part.number * part.size**2 for part in self.partition(segments))

    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        state: State = {}
        for blocks in self.partition(segments):
            eye = torch.eye(blocks.size, dtype=like.dtype, device=like.device)
            rooted = kind is Leak or (kind is not Shifted and blocks.size <= SMALL)
            key = f"{'root' if rooted else 'matrix'}_{blocks.start}"
            state[key] = eye.repeat(blocks.number, 1, 1)
        return state

    def parts(self, state: State) -> list[Part]:
        """The blocks, in the form in which they are kept."""
        made: list[Part] = []
        for key, stored in state.items():
            form, _, start = key.partition("_")
            made.append((Roots if form == "root" else Matrices)(stored, int(start)))
        return made

    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        parts = [part.predicted(change, evidence.step) for part in self.parts(state)]
        n, d = len(evidence.innovation), evidence.jacobian.size
        H, B = (evidence.workspace.buffer(name, d, n, evidence.innovation) for name in ("H", "B"))
        evidence.jacobian.dense(out=H)
        M = _observe(parts, H, B)  # H' P- H
        seen = check_finite(M.diagonal(), evidence)
        if _says_much(parts, seen, evidence):
            parts, H, B = [part.double() for part in parts], H.double(), B.double()
            M = _observe(parts, H, B)
        noise = _representable(evidence, parts, H, seen)
        made: Gain
        if isinstance(change, Directional):
            made = directional_gain(M, noise, evidence, lr, change.eta, change.bounded)
            U = torch.mm(B, made.T.to(H.dtype), out=H)
        else:
            made = gain(M, noise, evidence, lr)
            U = times_upper(B, made.T.to(H.dtype), out=H)
        z, c = made.z.to(H.dtype), made.c.to(H.dtype) if isinstance(made.c, Tensor) else made.c
        shares = [(part, part.rows(U)) for part in parts]
        delta = torch.cat([part.moved(rows, z) for part, rows in shares]).to(evidence.innovation.dtype)

        def commit() -> None:
            for part, rows in shares:
                part.commit(rows, c)
                if evidence.step % FLUSH_EVERY == 0:
                    part.flush()

        def predicted_variance() -> Tensor:
            return made.predicted_variance().to(delta.dtype)

        return Update(delta, made.nis, predicted_variance, commit, made.jitter)

    def variances(self, state: State) -> Tensor:
        return torch.cat([part.variances() for part in self.parts(state)])

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        H = jacobian.dense()
        left, right = H.clone(), torch.empty_like(H)
        for part in self.parts(state):
            B = part.observe(part.rows(H), part.rows(right))
            if part.halved:
                part.rows(left).copy_(B)
        return Spread.of(left, right)

    def draw(self, state: State, normal: Tensor) -> Tensor:
        column = normal[:, None]
        return torch.cat([part.draw(part.rows(column)).flatten() for part in self.parts(state)])


def _says_much(parts: list[Part], seen: float, evidence: Evidence) -> bool:
    """Whether float32 would lose what the batch says, and the parts could keep it."""
    narrow = evidence.innovation.dtype is torch.float32 and all(part.halved for part in parts)
    return narrow and seen > MUCH * evidence.noise.smallest


def _representable(evidence: Evidence, parts: list[Part], H: Tensor, seen: float) -> Noise:
    """The noise, but no target more exact than its prediction or than P can be.

    A prediction rounds, and so does the gradient at it. A filter that takes a target for more exact than
    that takes the curvature of the critic for information, and blows up.
    """
    noise, flat = evidence.noise, H.view(-1)
    squared = float(flat.dot(flat))
    rounding = EXACT * torch.finfo(evidence.innovation.dtype).eps * squared / H.shape[1]
    stored = (part.floor(part.rows(H), squared, seen, noise.smallest) for part in parts)
    return noise.at_least(max(rounding, *stored))


def _observe(parts: list[Part], H: Tensor, B: Tensor) -> Tensor:
    """Fill B, and return ``H' P- H``."""
    for part in parts:
        part.observe(part.rows(H), part.rows(B))
    halved = [part.halved for part in parts]
    if all(halved):
        return product(B, B)
    if any(halved):
        H = torch.cat([part.rows(B if part.halved else H).flatten(0, 1) for part in parts])
    return product(H, B)


@dataclass(frozen=True)
class LayerBlocks(BlockDiagonal):
    """One block a layer: weights of different layers are taken as uncorrelated (the paper's way (b))."""

    accepts: ClassVar[Accepted] = {**BlockDiagonal.accepts, Leak: SMALL}

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
