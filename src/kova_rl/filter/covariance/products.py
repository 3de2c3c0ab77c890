"""A layer's share of ``H'PH`` and of ``P H z``, for a P that is a Kronecker product of two factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kova_rl.filter.evidence import Workspace, inverse_lower

__all__ = [
    "Layer",
    "Pair",
    "Sides",
    "exact",
    "gram",
    "inverse_of",
    "inverses_of",
    "sides_of",
    "squares_of",
    "tiles",
    "unrooted",
]

INVERTED = 512
"""Rows of a factor up to which products with its inverse are quicker than solving with its root."""
LARGE = 128
"""Samples, or rows, from which on a symmetric or triangular product is worth halving."""
TILES = 2
"""Parts in which that is done."""

Layer = dict[str, Any]
"""The state of a layer: its information's two factors, and the roots of P's."""
Pair = tuple[Tensor, Tensor]
"""Inputs and output gradients of a batch, one row a sample each."""
Inverse = Pair | Tensor | None
"""Of a layer: P's two factors; of one output, the inverse of its root; None for its roots as they are."""


class Sides(NamedTuple):
    """A layer's share of ``H'PH`` is ``(a c') * (b d')``, of a left pair a, b and a right one c, d."""

    left: Pair
    right: Pair
    triangle: Tensor | None = None
    """``U^-1``, if a layer of one output was multiplied with it."""

    def squares(self) -> Tensor:
        """The diagonal of it, where both pairs are the same."""
        a, b = self.left
        out: Tensor = torch.linalg.vecdot(a, a) * torch.linalg.vecdot(b, b)
        return out

    def double(self) -> Sides:
        pair = self.left[0].double(), self.left[1].double()
        return Sides(pair, pair)

    def place(self, layer: Layer, z: Tensor, out: Tensor) -> None:
        """Write the layer's part of ``P H z``, rows x cols; z is a column."""
        (a, b), (rows, cols) = self.left, out.shape
        if self.triangle is not None:
            torch.mm((b * z).T @ a, self.triangle.T, out=out)
            return
        halved, work = self.left is not self.right, z.shape[0] * (rows**2 + cols**2)
        if not halved and a.dtype == out.dtype and work < rows * cols * (rows + cols):
            a, b = _solved(layer["inputs root"], a, True), _solved(layer["outputs root"], b, True)
            halved = True
        if halved:
            torch.mm((b * z).T, a, out=out)
        else:
            out.copy_(unrooted(layer, ((b * z).T @ a).to(out.dtype)))


def sides_of(layer: Layer, pair: Pair, inverses: Inverse = None) -> Sides:
    """``a M_A, b M_B`` and a, b, given the two inverses; else ``a U^-1, b V^-1`` twice."""
    a, b = pair
    if isinstance(inverses, Tensor):
        rooted = _times_triangle(a, inverses), b
        return Sides(rooted, rooted, inverses)
    if inverses is not None:
        return Sides((a @ inverses[0], b @ inverses[1]), pair)
    # Of one output the root is 1.
    rooted = _solved(layer["inputs root"], a), b if b.shape[1] == 1 else _solved(layer["outputs root"], b)
    return Sides(rooted, rooted)


def exact(layer: Layer) -> str | None:
    """The factor that is a layer's information itself, because the other is a number."""
    if layer["outputs"].shape[0] == 1:
        return "inputs"
    return "outputs" if layer["inputs"].shape[0] == 1 else None


def squares_of(sides: list[Sides]) -> Tensor:
    """The diagonal of ``H'PH``, of roots."""
    return torch.stack([side.squares() for side in sides]).sum(0)


def inverses_of(layers: dict[str, Layer], workspace: Workspace) -> list[Inverse]:
    """What each layer is multiplied with; kept until its roots are others."""

    def kept(name: str, start: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        return workspace.derived(f"{name} {start}", layers[start][f"{name} root"], make)

    found: list[Inverse] = []
    for start, layer in layers.items():
        cols, rows = layer["inputs"].shape[0], layer["outputs"].shape[0]
        if max(cols, rows) > INVERTED or cols == 1:
            found.append(None)
        elif rows == 1:
            found.append(kept("inputs", start, _triangle_of))
        else:
            found.append((kept("inputs", start, inverse_of), kept("outputs", start, inverse_of)))
    return found


def _triangle_of(root: Tensor) -> Tensor:
    """``U^-1``, upper triangular."""
    return inverse_lower(root.T).T


def _times_triangle(rows: Tensor, triangle: Tensor) -> Tensor:
    """Their product, with an upper triangle: a large one without most of its zeros."""
    n = triangle.shape[0]
    if n < LARGE:
        return rows @ triangle
    out = torch.empty_like(rows)
    for start, stop in tiles(n):
        torch.mm(rows[:, :stop], triangle[:stop, start:stop], out=out[:, start:stop])
    return out


def inverse_of(root: Tensor) -> Tensor:
    """Of ``U'U``, contiguous."""
    return torch.cholesky_inverse(root, upper=True).T


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
    for (a, b), (c, d), _ in sides:
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
    if matrix.shape[0] == 1:
        return half
    out: Tensor = torch.linalg.solve_triangular(layer["outputs root"], half, upper=True)
    return out
