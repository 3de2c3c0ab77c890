"""A maze as text and as pixels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from kova_rl.envs.layout import Layout

__all__ = ["pixels", "text"]

SIDE = 32
"""Pixels along a cell."""
WALL, FREE, VISITED = (38, 41, 56), (244, 244, 240), (186, 210, 235)
EXIT, AGENT = (94, 185, 126), (226, 87, 76)


def text(layout: Layout, cell: int, visited: Collection[int]) -> str:
    """``#`` wall, ``.`` free, ``o`` visited, ``A`` the agent, ``X`` the exit."""
    marks = np.where(layout.free, ".", "#")
    marks[list(visited)] = "o"
    marks[layout.exit] = "X"
    marks[cell] = "A"
    return "\n".join("".join(row) for row in marks.reshape(layout.shape))


def pixels(layout: Layout, cell: int, visited: Collection[int]) -> NDArray[np.uint8]:
    """Rows x columns cells of 32 x 32 pixels, with the agent as a disc."""
    colours = np.where(layout.free[:, None], FREE, WALL).astype(np.uint8)
    colours[list(visited)] = VISITED
    colours[layout.exit] = EXIT
    image = colours.reshape(*layout.shape, 3).repeat(SIDE, 0).repeat(SIDE, 1)
    image[::SIDE] = image[:, ::SIDE] = WALL  # a thin grid
    top, left = (SIDE * x for x in divmod(cell, layout.shape[1]))
    y, x = np.ogrid[:SIDE, :SIDE]
    disc = (y - SIDE / 2) ** 2 + (x - SIDE / 2) ** 2 <= (0.34 * SIDE) ** 2
    image[top : top + SIDE, left : left + SIDE][disc] = AGENT
    return image
