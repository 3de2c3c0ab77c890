"""A layer's share of ``H'PH`` and of ``P H z``, for a P that is a Kronecker product of two factors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Layer", "Pair", "Sides", "gram", "sides_of", "tiles", "unrooted"]

LARGE = 128
"""Samples from which on a symmetric product is worth halving."""
TILES = 2
"""Parts in which that is done."""

Layer = dict[str, Any]
"""The state of a layer: its information's two factors, and the roots and inverses of P's."""
Pair = tuple[Tensor, Tensor]
"""Inputs and output gradients of a batch, one row a sample each."""


class Sides(NamedTuple):
    """A layer's share of ``H'PH`` is ``(a c') * (b d')``, of a left pair a, b and a right one c, d."""

    left: Pair
    right: Pair

    def double(self) -> Sides:
        pair = self.left[0].double(), self.left[1].double()
        return Sides(pair, pair)

    def place(self, layer: Layer, z: Tensor, out: Tensor) -> None:
        """Write the layer's part of ``P H z``, rows x cols; z is a column."""
        (a, b), (rows, cols) = self.left, out.shape
        halved = self.left is not self.right
        if not halved and a.dtype == out.dtype and len(z) * (rows**2 + cols**2) < rows * cols * (rows + cols):
            a, b = _solved(layer["inputs root"], a, True), _solved(layer["outputs root"], b, True)
            halved = True
        if halved:
            torch.mm((b * z).T, a, out=out)
        else:
            out.copy_(unrooted(layer, ((b * z).T @ a).to(out.dtype)))


def sides_of(layer: Layer, pair: Pair, plain: bool) -> Sides:
    """``a M_A, b M_B`` and a, b if that is exact enough and they are kept; else ``a U^-1, b V^-1`` twice."""
    a, b = pair
    if plain and "inputs inverse" in layer:
        return Sides((a @ layer["inputs inverse"], b @ layer["outputs inverse"]), pair)
    # Of one output the root is 1.
    rooted = _solved(layer["inputs root"], a), b if b.shape[1] == 1 else _solved(layer["outputs root"], b)
    return Sides(rooted, rooted)


def gram(sides: list[Sides]) -> Tensor:
    """The sum over layers, N x N and symmetric: of a large one a triangle is a copy."""
    n = sides[0].left[0].shape[0]
    if n < LARGE:
        return _block(sides, 0, n)
    out = sides[0].left[0].new_empty(n, n)
    for start, stop in tiles(n):
        out[start:stop, :stop] = _block(sides, start, stop)
        out[:start, start:stop] = out[start:stop, :start].T
    return out


def tiles(n: int) -> Iterator[tuple[int, int]]:
    """A few ranges of rows, of which a symmetric product needs only what is left of their last."""
    size = -(-n // TILES)
    for start in range(0, n, size):
        yield start, min(start + size, n)


def _block(sides: list[Sides], start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of it, and as many columns as there are up to there."""
    out: Tensor | None = None
    for (a, b), (c, d) in sides:
        inner, outer = torch.mm(a[start:stop], c[:stop].T), torch.mm(b[start:stop], d[:stop].T)
        out = inner.mul_(outer) if out is None else out.addcmul_(inner, outer)
    assert out is not None
    return out


def _solved(root: Tensor, rows: Tensor, transposed: bool = False) -> Tensor:
    """``rows U^-1``, or ``rows U^-T``: from the right, which is the faster side."""
    out: Tensor = torch.linalg.solve_triangular(
        root.T if transposed else root, rows, upper=not transposed, left=False
    )
    return out


def unrooted(layer: Layer, matrix: Tensor) -> Tensor:
    """``V^-1 matrix U^-T``, rows x cols."""
    half = _solved(layer["inputs root"], matrix, True)
    if len(matrix) == 1:
        return half
    out: Tensor = torch.linalg.solve_triangular(layer["outputs root"], half, upper=True)
    return out
