"""The walls of a maze: read from text or drawn at random, and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.filter.checks import check_real, check_whole

__all__ = ["MAZE4", "MAZE10", "MOVES", "Layout"]

MAZE4 = """\
1011
1110
0010
1111"""
"""The paper's 4x4 maze: 1 is free, 0 a wall."""

MAZE10 = """\
1011111111
1111101111
1111101111
0010010111
1101010001
1111011111
1101111111
1101110000
1000001111
1111111011"""
"""The paper's 10x10 maze. From the top left the shortest way out has 42 moves."""

MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0))
"""Row and column steps of the actions: 0 left, 1 up, 2 right, 3 down."""

BLOCKED = -1
TRIES = 1_000
"""Random mazes that are drawn before giving up."""


@dataclass(frozen=True)
class Layout:
    """A rectangle of free cells and walls whose exit, the bottom right cell, can be reached from all.

    Cells have numbers, row by row: cell ``row * columns + column``.

    Args:
        text: Rows of ``1`` (free) and ``0`` (wall), separated by newlines.

    Raises:
        ValueError: An unknown character, rows of different lengths, a blocked exit, nowhere to start,
            or a free cell without a way to the exit; the message says where, counting from 0.

    Example:
        >>> layout = Layout("110" "\\n" "011")
        >>> layout.shape, layout.starts.tolist(), layout.moves[0].tolist()
        ((2, 3), [0, 1, 4], [-1, -1, 1, -1])
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ValueError(f"maze must be text, rows of 1 (free) and 0 (wall), got {self.text!r}")
        rows = [line.strip() for line in self.text.strip().splitlines()]
        object.__setattr__(self, "text", "\n".join(rows))
        if not rows:
            raise ValueError("the maze is empty: expected rows of 1 (free) and 0 (wall)")
        for r, row in enumerate(rows):
            for c, character in enumerate(row):
                if character not in "01":
                    raise ValueError(
                        f"unknown character {character!r} at row {r}, column {c}: "
                        "expected 1 (free) or 0 (wall)"
                    )
            if len(row) != len(rows[0]):
                short = min(len(row), len(rows[0]))
                raise ValueError(
                    f"the maze is not rectangular: row {r} has {len(row)} cells and row 0 has "
                    f"{len(rows[0])}; they differ from column {short} on"
                )
        if not self.free[self.exit]:
            raise ValueError(
                f"the exit is blocked: row {self.shape[0] - 1}, column {self.shape[1] - 1} must be 1"
            )
        lost = np.flatnonzero(self.free & (self.distances < 0))
        if len(lost):
            where = f"row {lost[0] // self.shape[1]}, column {lost[0] % self.shape[1]}"
            more = f", nor {len(lost) - 1} other free cells" if len(lost) > 1 else ""
            raise ValueError(f"no path to the exit: the free cell at {where} does not reach it{more}")
        if not len(self.starts):
            raise ValueError("nowhere to start: the exit is the only free cell")

    @classmethod
    def random(cls, size: int | tuple[int, int], walls: float, rng: np.random.Generator) -> Layout:
        """Walls at random; what they cut off from the exit becomes wall too, if most of it is left.

        Args:
            size: Rows and columns, or one number for both, at least 2.
            walls: Share of the cells that are walls before the rest is cut off, in [0, 0.6].
            rng: Where the randomness comes from.

        Raises:
            ValueError: A setting out of range, or so many walls that no maze hangs together.
        """
        rows, columns = (size, size) if isinstance(size, int) else size
        check_whole("size (rows)", rows, least=2)
        check_whole("size (columns)", columns, least=2)
        check_real(
            "walls", walls, "a number in [0, 0.6]", isinstance(walls, int | float) and 0 <= walls <= 0.6
        )
        for _ in range(TRIES):
            free = rng.random(rows * columns) >= walls
            free[-1] = True
            kept = flood(free, (rows, columns)) >= 0
            if kept.sum() >= max(2, 0.8 * free.sum()):
                lines = kept.astype(int).astype(str).reshape(rows, columns)
                return cls("\n".join("".join(line) for line in lines))
        raise ValueError(
            f"no maze of {rows} x {columns} with a share of {walls:g} walls hangs together in {TRIES} tries: "
            "lower walls"
        )

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Whether each cell is free."""
        return np.array([character == "1" for character in self.text if character != "\n"])

    @cached_property
    def shape(self) -> tuple[int, int]:
        rows = self.text.split("\n")
        return len(rows), len(rows[0])

    @property
    def exit(self) -> int:
        """The cell at the bottom right."""
        return len(self.free) - 1

    @cached_property
    def moves(self) -> NDArray[np.int64]:
        """Where each action leads from each cell, cells x 4; -1 where it is blocked."""
        return neighbours(self.free, self.shape)

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Moves to the exit from each cell, -1 for walls."""
        return flood(self.free, self.shape)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The cells that an episode may start in: all free ones but the exit."""
        return np.flatnonzero(self.free[:-1])

    @cached_property
    def images(self) -> NDArray[np.float32]:
        """What is observed in each cell: the maze, with the agent's cell set to 0.5."""
        out = np.tile(self.free.astype(np.float32), (len(self.free), 1))
        np.fill_diagonal(out, 0.5)
        return out

    def cell(self, place: Any) -> int:
        """The number of the free cell at (row, column)."""
        if not (isinstance(place, Iterable) and len(place := tuple(place)) == 2):
            raise ValueError(f"a cell is (row, column), got {place!r}")
        row, column = (int(x) for x in place)
        if not (0 <= row < self.shape[0] and 0 <= column < self.shape[1]):
            raise ValueError(
                f"row {row}, column {column} is outside the maze of {self.shape[0]} x {self.shape[1]}"
            )
        if not self.free[cell := row * self.shape[1] + column]:
            raise ValueError(f"row {row}, column {column} is a wall")
        return cell


def neighbours(free: NDArray[np.bool_], shape: tuple[int, int]) -> NDArray[np.int64]:
    """Where each action leads from each cell, -1 where it is blocked."""
    rows, columns = np.divmod(np.arange(len(free)), shape[1])
    out = np.full((len(free), len(MOVES)), BLOCKED)
    for action, (down, right) in enumerate(MOVES):
        r, c = rows + down, columns + right
        inside = (r >= 0) & (r < shape[0]) & (c >= 0) & (c < shape[1])
        to = np.where(inside, r * shape[1] + c, 0)
        out[:, action] = np.where(inside & free & free[to], to, BLOCKED)
    return out


def flood(free: NDArray[np.bool_], shape: tuple[int, int]) -> NDArray[np.int64]:
    """Moves from each cell to the last one, breadth first; -1 where there is no way."""
    moves = neighbours(free, shape)
    out = np.full(len(free), -1)
    frontier, distance = np.array([len(free) - 1]), 0
    while len(frontier):
        out[frontier] = distance
        after = moves[frontier].ravel()
        after = np.unique(after[after != BLOCKED])
        frontier, distance = after[out[after] < 0], distance + 1
    return out
