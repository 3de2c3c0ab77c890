"""What decides the 10x10 maze: not in the paper."""

from __future__ import annotations

from pathlib import Path

from kova_rl import evolution
from kova_rl.agents import Settings
from kova_rl.lab.figures.mazes import MazeFigure
from kova_rl.lab.mazes.critics import Adam, Filtered, tracked
from kova_rl.lab.mazes.series import Series

__all__ = ["WHY", "draw"]


def draw(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate in one panel."""
    from kova_rl.lab.figures.maze_pictures import colour, curves, plt, save

    seen: dict[str, int] = {}
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    curves(axes, all_series, [colour(series.name, seen) for series in all_series])
    axes.set(title=title, ylabel="success rate over the last 50 episodes")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, stem)


LARGE = Settings(buffer=20_000)
CURIOUS = Settings(epsilon=0.3)
WHY = MazeFigure(
    "why",
    "What decides the 10x10 maze",
    "what decides the 10x10 maze (not in the paper)",
    "maze10",
    {
        "Kova, eta 0.001": tracked(0.001),
        "Kova, eta 0.001, buffer 20,000": tracked(0.001),
        "memoryless": Filtered(evolution=evolution.Memoryless(0.01)),
        "memoryless, buffer 20,000": Filtered(evolution=evolution.Memoryless(0.01)),
        "Adam 1e-3": Adam(1e-3),
        "Adam 1e-3, buffer 20,000": Adam(1e-3),
        "Adam 1e-3, epsilon 0.3": Adam(1e-3),
    },
    {"smoke": (2_000, 1), "desk": (30_000, 2), "paper": (100_000, 8)},
    draw,
    {
        "Kova, eta 0.001, buffer 20,000": LARGE,
        "memoryless, buffer 20,000": LARGE,
        "Adam 1e-3, buffer 20,000": LARGE,
        "Adam 1e-3, epsilon 0.3": CURIOUS,
    },
)
"""Not in the paper: is it the optimizer, or what the agent gets to see?"""
