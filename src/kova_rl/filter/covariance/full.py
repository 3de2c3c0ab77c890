"""All of P: the paper's filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kova_rl.filter.change import Leak
from kova_rl.filter.covariance.base import SMALL, Accepted
from kova_rl.filter.covariance.blocks import BlockDiagonal
from kova_rl.filter.layout import Blocks, Segment, dimension


@dataclass(frozen=True)
class Full(BlockDiagonal):
    """All d x d of P. A step is one product with P and one rank-N downdate of it, O(d^2 N)."""

    accepts: ClassVar[Accepted] = {**BlockDiagonal.accepts, Leak: SMALL}

    def partition(self, segments: Sequence[Segment]) -> list[Blocks]:
        return [Blocks(0, 1, dimension(segments))]
