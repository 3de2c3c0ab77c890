"""How the d tracked coordinates are arranged: one segment a layer, rows of it its neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """Coordinates ``start .. start + rows * cols``, seen as a rows x cols matrix.

    A row is one neuron: its incoming weights and its bias. Segments of one layer carry the same
    ``layer`` number and stand side by side.
    """

    start: int
    rows: int
    cols: int
    layer: int

    @property
    def size(self) -> int:
        return self.rows * self.cols

    @property
    def stop(self) -> int:
        return self.start + self.size


class Blocks(NamedTuple):
    """``number`` covariance blocks of ``size`` x ``size``, side by side from ``start`` on."""

    start: int
    number: int
    size: int


def dimension(segments: Sequence[Segment]) -> int:
    """The number d of tracked coordinates."""
    return segments[-1].stop
