"""The demo: Kova, Adam and KTD learn the 4x4 maze."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from rich.console import Console

from kova_rl.lab.critics import Adam, Critic, Filtered, Temporal
from kova_rl.lab.maze import Run
from kova_rl.lab.reproduce import BOUNDED, perform, summarise
from kova_rl.lab.terminal import say

__all__ = ["demo"]

CRITICS: dict[str, Critic] = {
    "Kova": Filtered(),
    "Adam 1e-3": Adam(1e-3),
    "KTD as printed": Temporal(),
    "KTD, bounded, P0 and Pn 0.1": Temporal(BOUNDED, prior=0.1, noise=0.1),
}


def demo(out: Path, seeds: int, steps: int, console: Console) -> None:
    """Train what is not trained yet, print the table, draw the curves and what Kova believes."""
    jobs = [
        Run(name, "maze4", critic, seed, steps, out, looks=20)
        for seed, (name, critic) in product(range(seeds), CRITICS.items())
    ]
    perform(jobs, "learning the 4x4 maze", console)
    try:
        from kova_rl.lab import maze_figures
        from kova_rl.lab.show import show
    except ImportError:
        summarise(jobs, "The 4x4 maze", out / "curves", None, console)
        say(console, "No pictures without matplotlib: pip install 'kova-rl[plots]'")
        return
    title = f"The 4x4 maze, {steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}"
    summarise(jobs, title, out / "curves", maze_figures.fig1, console)
    still, moving = show("maze4", jobs[0].path, out)
    say(console, f"What Kova believes, with error bars: {still}, and as it learns: {moving}")
