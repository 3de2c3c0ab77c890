"""What a run in a maze believed: the value of each cell, how sure it was, and where it would go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.colors import Colormap, ListedColormap
from numpy.typing import NDArray

from kova_rl.envs.layout import MOVES, Layout
from kova_rl.lab import files
from kova_rl.lab.drawing import plt, save
from kova_rl.lab.files import named
from kova_rl.lab.mazes.run import layout
from kova_rl.lab.pack import one

__all__ = ["Beliefs", "greedy_path", "read", "show"]

WALL, FLOOR, PATH, START = "#26293a", "#f4f4f0", "#e2574c", "#f2b266"
VALUE, SPREAD = ("viridis", 0.3, 1.0), ("magma_r", 0.0, 0.55)
"""Colour maps, each from where to where: without their dark ends, which look like walls."""
FRAME_MS = 220


@dataclass(frozen=True)
class Beliefs:
    """The looks of one run; ``mean`` and ``std`` are looks x cells x actions."""

    title: str
    layout: Layout
    steps: NDArray[np.int32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]


def read(maze: str, path: Path) -> Beliefs:
    """The beliefs that a run kept.

    Args:
        maze: In which it was.
        path: Its folder; the hash at the end of the name may be left out.

    Raises:
        ValueError: No such run, or one of another maze, or one that kept no beliefs.
    """
    folder = one(path)
    config = folder.json("config.json")
    if config.get("environment") != maze:
        raise ValueError(f"{path} is a run in {config.get('environment')}, not in {maze}")
    arrays = folder.arrays()
    if "looks" not in arrays:
        raise ValueError(
            f"{path} kept no beliefs: seed 0 of 'kova reproduce fig2' and the runs of 'kova demo' do"
        )
    title = f"{config['label']}, seed {config['seed']}"
    return Beliefs(title, layout(maze), arrays["looks"], arrays["q_mean"], arrays["q_std"])


def greedy_path(maze: Layout, q: NDArray[np.float32], start: int) -> tuple[list[int], bool]:
    """The cells that the best actions lead through, and whether they end at the exit."""
    cells, seen = [start], {start}
    while cells[-1] != maze.exit:
        to = int(maze.moves[cells[-1], q[cells[-1]].argmax()])
        if to < 0 or to in seen:
            return cells, False
        cells.append(to)
        seen.add(to)
    return cells, True


def shades(name: str, low: float, high: float) -> Colormap:
    """A part of a colour map."""
    return ListedColormap(plt.get_cmap(name)(np.linspace(low, high, 256)))


def panels(axes: Any, beliefs: Beliefs, at: int, limits: tuple[float, float, float]) -> list[Any]:
    """Value, standard deviation and greedy path at one look; returns the two images."""
    maze, q, std = beliefs.layout, beliefs.mean[at], beliefs.std[at]
    best = q.argmax(1)
    known = maze.free.copy()
    known[maze.exit] = False
    cells = np.arange(len(best))
    value = np.where(known, q[cells, best], np.nan).reshape(maze.shape)
    spread = np.where(known, std[cells, best], np.nan).reshape(maze.shape)
    images = []
    for panel, data, colours, low, high in (
        (axes[0], value, VALUE, limits[0], limits[1]),
        (axes[1], spread, SPREAD, 0.0, limits[2]),
    ):
        _floor(panel, maze)
        images.append(panel.imshow(data, cmap=shades(*colours), vmin=low, vmax=high))
    if np.isnan(spread).all():
        panel_text = {"ha": "center", "va": "center", "fontsize": 9, "color": "#666666"}
        axes[1].text(0.5, 0.5, "no error bars", transform=axes[1].transAxes, **panel_text)
    _policy(axes[2], maze, q)
    return images


def _floor(panel: Any, maze: Layout) -> None:
    panel.clear()
    panel.imshow(maze.free.reshape(maze.shape), cmap=ListedColormap([WALL, FLOOR]), vmin=0, vmax=1)
    bottom, right = (x - 1 for x in maze.shape)
    sign = {
        "fontsize": 6.5,
        "color": "#2d7a46",
        "weight": "bold",
        "bbox": {"fc": FLOOR, "ec": "none", "pad": 1},
    }
    panel.text(right, bottom, "exit", ha="center", va="center", **sign)
    panel.set(xticks=[], yticks=[])


def _policy(panel: Any, maze: Layout, q: NDArray[np.float32]) -> None:
    """An arrow a cell, and the greedy path from the cell that is farthest from the exit."""
    _floor(panel, maze)
    cells = maze.starts
    rows, columns = np.divmod(cells, maze.shape[1])
    down, right = np.array(MOVES)[q[cells].argmax(1)].T
    panel.quiver(
        columns, rows, right, -down, color="#8a8f9c", pivot="mid", scale=1.8, scale_units="xy", width=0.008
    )
    path, solved = greedy_path(maze, q, int(maze.distances.argmax()))
    path_rows, path_columns = np.divmod(np.array(path), maze.shape[1])
    panel.plot(path_columns, path_rows, color=PATH, lw=2.5, solid_capstyle="round")
    panel.plot(path_columns[0], path_rows[0], "o", color=START, ms=7, mec=PATH)
    moves = f"{len(path) - 1} move{'' if len(path) == 2 else 's'}"
    panel.set_xlabel(f"exit in {moves}" if solved else f"stuck after {moves}", fontsize=8)


def _limits(beliefs: Beliefs) -> tuple[float, float, float]:
    """Colours that mean the same at every look."""
    free = beliefs.layout.starts
    best = beliefs.mean[:, free].max(2)
    spread = beliefs.std[:, free]
    high = 1.0 if np.isnan(spread).all() else float(np.nanquantile(spread, 0.99))
    return float(np.quantile(best, 0.02)), float(best.max()), high


def show(maze: str, path: Path, out: Path) -> tuple[Path, Path]:
    """Write the picture (PNG and PDF) and the GIF; returns the paths of PNG and GIF."""
    beliefs = read(maze, path)
    limits, stem = _limits(beliefs), named(maze, *beliefs.title.replace("seed ", "seed").rsplit(", ", 1))
    _still(beliefs, limits, out / stem)
    _moving(beliefs, limits, out / f"{stem}.gif")
    return out / f"{stem}.png", out / f"{stem}.gif"


TITLES = ("value", "standard deviation", "greedy policy and path")


def _still(beliefs: Beliefs, limits: tuple[float, float, float], stem: Path) -> None:
    last = len(beliefs.steps) - 1
    looks = sorted({0, last // 3, last})
    figure, grid = plt.subplots(
        len(looks), 3, figsize=(9.6, 3.1 * len(looks)), layout="constrained", squeeze=False
    )
    for row, at in zip(grid, looks, strict=True):
        images = panels(row, beliefs, at, limits)
        row[0].set_ylabel(f"step {beliefs.steps[at]:,}", fontsize=10)
        for panel, image in zip(row, images, strict=False):
            figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02)
    for panel, title in zip(grid[0], TITLES, strict=True):
        panel.set_title(title, fontsize=10)
    figure.suptitle(beliefs.title, fontsize=11)
    save(figure, stem)


def _moving(beliefs: Beliefs, limits: tuple[float, float, float], path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.5), layout="constrained")
    images = panels(axes, beliefs, 0, limits)
    for panel, image in zip(axes, images, strict=False):
        figure.colorbar(image, ax=panel, shrink=0.8, pad=0.02)

    def frame(at: int) -> list[Any]:
        drawn = panels(axes, beliefs, at, limits)
        for panel, title in zip(axes, TITLES, strict=True):
            panel.set_title(title, fontsize=10)
        figure.suptitle(f"{beliefs.title}, step {beliefs.steps[at]:,}", fontsize=10)
        return drawn

    moving = FuncAnimation(figure, frame, frames=len(beliefs.steps), interval=FRAME_MS)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    moving.save(unfinished, writer=PillowWriter(fps=round(1000 / FRAME_MS)), dpi=80)
    content = unfinished.read_bytes()
    unfinished.unlink()
    files.write(path, content)
    plt.close(figure)
