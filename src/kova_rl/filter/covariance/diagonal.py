"""Only the variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.filter.change import Change
from kova_rl.filter.covariance.blocks import BlockDiagonal
from kova_rl.filter.covariance.parts import Part, Variances
from kova_rl.filter.layout import Blocks, Segment, dimension
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Diagonal(BlockDiagonal):
    """One variance a weight: d blocks of one, done elementwise. O(d N), and the crudest error bars."""

    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        return [Blocks(0, dimension(segments), 1)]

    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        return {"variance": torch.ones(dimension(segments), dtype=like.dtype, device=like.device)}

    def parts(self, state: State) -> list[Part]:
        return [Variances(state["variance"])]
