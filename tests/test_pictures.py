"""The demo's table and the pictures of mazes and chain can be read."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kova_rl.lab.commands import demo
from kova_rl.lab.figures import FIGURES, chain
from kova_rl.lab.figures.mazes import MazeFigure
from kova_rl.lab.mazes.run import layout
from kova_rl.lab.mazes.series import Series, cells, table

pytest.importorskip("matplotlib")
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from kova_rl.lab.evaluation.panel import Panel
from kova_rl.lab.figures import beliefs as show
from kova_rl.lab.figures import chain_picture


def series(names: Any) -> list[Series]:
    steps, rates, cost = np.arange(1, 201), np.linspace(0.3, 0.9, 600).reshape(3, 200), np.full(3, 12.34)
    broken = {"KTD as printed": (("NonFiniteBatch",), (1234,))}
    return [Series(name, steps, rates, cost, 1000 * cost, *broken.get(name, ((), ()))) for name in names]


def test_the_demos_table_reads_at_80_columns() -> None:
    console, rows = Console(file=io.StringIO(), width=80), series(demo.CRITICS)
    console.print(table("The 4x4 maze", rows))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for row in map(cells, rows):
        line = next(line for line in printed.splitlines() if line.startswith(row[0]))
        assert all(number in line for number in row[:5])
    assert "KTD as printed broke down: 1 of 3, step 1,234 on (NonFiniteBatch)" in printed


def luminance(colours: Any) -> Any:
    """As WCAG 2 defines it, of rows of red, green and blue."""
    c = np.asarray(colours)[..., :3]
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_no_value_has_the_colour_of_a_wall() -> None:
    maze = layout("maze4")
    q = np.tile(np.linspace(0, 1, 16, dtype=np.float32)[None, :, None], (1, 1, 4))
    figure, axes = plt.subplots(1, 3)
    images = show.panels(axes, show.Beliefs("all", maze, np.array([1]), q, q), 0, (0.0, 1.0, 1.0))
    plt.close(figure)
    for image in images:
        ratio = (luminance(image.cmap(np.linspace(0, 1, 256))) + 0.05) / (luminance(to_rgb(show.WALL)) + 0.05)
        assert ratio.min() > 2


def draw_chain(path: Path) -> None:
    belief = {"mean": np.zeros(30), "std": np.ones(30), "truth": np.zeros(30)}
    curve = {"samples": np.arange(8, 248, 8), "error": np.full(30, 0.1)}
    panel = Panel("chain", "switch", 0.02, 120, {name: [curve] for name in chain.critics()})
    chain_picture.draw(path, panel, dict.fromkeys(chain.LOOKS, belief))


DRAWN: dict[str, Callable[[Path], None]] = {
    "demo": lambda path: demo.draw(path, series(demo.CRITICS), "demo"),
    "chain": draw_chain,
} | {
    name: lambda path, figure=figure: figure.draw(path, series(figure.critics), figure.name)  # type: ignore[misc]
    for name, figure in FIGURES.items()
    if isinstance(figure, MazeFigure)
}


@pytest.mark.parametrize("name", DRAWN)
def test_legends_cover_no_curves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(plt, "close", drawn.append)
        DRAWN[name](tmp_path / name)
    (figure,) = drawn
    figure.canvas.draw()
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    assert legends
    for legend in legends:
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        assert not any(box.overlaps(ax.get_window_extent()) for ax in figure.axes)
    plt.close(figure)
