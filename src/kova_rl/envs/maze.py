"""The maze as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kova_rl.envs import picture
from kova_rl.envs.layout import MOVES, Layout
from kova_rl.filter.checks import check_choice

__all__ = ["MazeEnv"]

NEW, VISITED, EXIT = -0.04, -0.25, 1.0
"""Rewards of a step onto a new cell, onto a visited one or against a wall, and onto the exit."""
LOSS = -0.5
"""Times the number of cells: an episode whose total reward falls below is lost."""

Observation = NDArray[np.float32]


class MazeEnv(gymnasium.Env[Observation, np.int64]):
    r"""Find the exit, at the bottom right, from a random free cell.

    The observation is the maze as a flat image (1 free, 0 wall) with the agent's cell set to 0.5. The
    actions are 0 left, 1 up, 2 right, 3 down. A step onto a new cell gives -0.04; onto a visited one,
    -0.25, as does a step against a wall or the border, which stays; onto the exit, +1. The episode
    terminates at the exit, or is lost when its total reward falls below -0.5 x the number of cells;
    ``info["is_success"]`` says which. Visited cells are not observed, as in the paper.

    ``info["action_mask"]`` (int8, as in Gymnasium's Taxi) and :meth:`action_masks` (bool, as
    sb3-contrib's MaskablePPO asks for) say which moves are not blocked.

    Args:
        maze: Rows of ``1`` (free) and ``0`` (wall), separated by newlines. None draws one at random.
        size: Of a random maze: rows and columns, or one number for both.
        walls: Of a random maze: the share of its cells that are walls.
        layout_seed: Of a random maze: the same seed gives the same maze.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.

    Raises:
        ValueError: A bad maze; the message says what is wrong and where.

    Example:
        >>> env = MazeEnv(maze="11\n01", render_mode="ansi")
        >>> observation, info = env.reset(seed=0, options={"start": (0, 0)})
        >>> observation.tolist(), info["action_mask"].tolist()
        ([0.5, 1.0, 0.0, 1.0], [0, 0, 1, 0])
        >>> [env.step(action)[1:3] for action in (2, 3)]
        [(-0.04, False), (1.0, True)]
    """

    metadata = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 8,
    }

    def __init__(
        self,
        maze: str | None = None,
        size: int | tuple[int, int] = 8,
        walls: float = 0.25,
        layout_seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        if maze is None:
            self.layout = Layout.random(size, walls, np.random.default_rng(layout_seed))
        else:
            self.layout = Layout(maze)
        cells = len(self.layout.free)
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (cells,), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self.lost_below = LOSS * cells
        self._masks = (self.layout.moves >= 0).astype(np.int8)
        self._moves: list[list[int]] = self.layout.moves.tolist()
        self._cell: int | None = None
        self._visited: set[int] = set()
        self._total = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin at a random free cell, or at ``options={"start": (row, column)}``."""
        super().reset(seed=seed)
        if options and "start" in options:
            cell = self.layout.cell(options["start"])
            if cell == self.layout.exit:
                raise ValueError("an episode can't start at the exit")
        else:
            starts = self.layout.starts
            cell = int(starts[self.np_random.integers(len(starts))])
        self._cell, self._visited, self._total = cell, {cell}, 0.0
        return self.layout.images[cell].copy(), {"action_mask": self._masks[cell].copy()}

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._cell is None:
            raise gymnasium.error.ResetNeeded("the episode has not begun: call reset() first")
        if action not in (0, 1, 2, 3):
            raise ValueError(f"action must be 0 (left), 1 (up), 2 (right) or 3 (down), got {action!r}")
        after = self._moves[self._cell][int(action)]
        cell = self._cell if after < 0 else after
        success = cell == self.layout.exit
        reward = EXIT if success else VISITED if cell in self._visited else NEW
        self._visited.add(cell)
        self._total += reward
        lost = self._total < self.lost_below
        self._cell = cell
        info = {"action_mask": self._masks[cell].copy()}
        if terminated := success or lost:
            info["is_success"] = success
        observation = self.layout.images[cell].copy()
        return observation, reward, terminated, False, info

    def state_dict(self) -> dict[str, Any]:
        """Where the episode stands, and the chance of those to come."""
        chance = self.np_random.bit_generator.state
        return {"cell": self._cell, "visited": sorted(self._visited), "total": self._total, "chance": chance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        self._cell, self._visited, self._total = state["cell"], set(state["visited"]), state["total"]
        self.np_random.bit_generator.state = state["chance"]

    def action_masks(self) -> NDArray[np.bool_]:
        """Which moves are not blocked, from where the agent is."""
        if self._cell is None:
            raise gymnasium.error.ResetNeeded("the agent is nowhere yet: call reset() first")
        mask: NDArray[np.bool_] = self._masks[self._cell].astype(bool)
        return mask

    def render(self) -> str | NDArray[np.uint8] | None:
        """Text, or a picture, of walls, exit, visited cells and agent; by ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() draws nothing without a render_mode: make(..., render_mode='ansi')"
            )
            return None
        if self._cell is None:
            raise gymnasium.error.ResetNeeded("nothing to draw yet: call reset() first")
        draw = picture.text if self.render_mode == "ansi" else picture.pixels
        return draw(self.layout, self._cell, self._visited)
