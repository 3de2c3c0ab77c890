"""Only the variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.filter.covariance.blocks import BlockDiagonal
from kova_rl.filter.layout import Blocks, Segment, dimension
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Diagonal(BlockDiagonal):
    """One variance a weight: d blocks of one, done elementwise. O(d N), and the crudest error bars."""

    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        return [Blocks(0, dimension(segments), 1)]

    def init(self, segments: Sequence[Segment], like: Tensor) -> State:
        return {"variance": torch.ones(dimension(segments), dtype=like.dtype, device=like.device)}

    def reset(self, state: State) -> None:
        state["variance"].fill_(1.0)

    def times(self, state: State, H: Tensor, out: Tensor) -> Tensor:
        return torch.mul(H, state["variance"][:, None], out=out)

    def add_outer(self, state: State, A: Tensor, signs: Tensor | None, scale: float, shift: Tensor) -> None:
        p = state["variance"]
        squares = A * A
        change = squares.sum(1).neg_() if signs is None else squares @ signs
        predicted = p * scale + shift
        # Rounding must not take the last bit of a variance that the batch has all but removed.
        torch.maximum(predicted + change, predicted * torch.finfo(p.dtype).eps, out=p)

    def flush(self, state: State) -> None:
        """Nothing to do: there are no correlations."""

    def leaked(self, state: State, eta: float, step: int) -> State:
        p = state["variance"]
        return {"variance": p / ((1 - eta) + eta * p)}

    def variances(self, state: State) -> Tensor:
        variance: Tensor = state["variance"]
        return variance.clone()

    def draw(self, state: State, normal: Tensor) -> Tensor:
        variance: Tensor = state["variance"]
        return normal * variance.sqrt()
