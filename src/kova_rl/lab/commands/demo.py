"""The command ``kova demo``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console

from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import Count, Whole
from kova_rl.lab.figures.fig1 import draw
from kova_rl.lab.figures.mazes import summarise
from kova_rl.lab.mazes.critics import BOUNDED, Adam, Critic, Filtered, Temporal
from kova_rl.lab.mazes.run import MazeRun
from kova_rl.lab.sweep.make import Place, made
from kova_rl.lab.terminal import say

__all__ = ["CRITICS", "Demo"]

CRITICS: dict[str, Critic] = {
    "Kova": Filtered(),
    "Adam 1e-3": Adam(1e-3),
    "KTD as printed": Temporal(),
    "KTD, bounded, P0 and Pn 0.1": Temporal(BOUNDED, prior=0.1, noise=0.1),
}


@dataclass
class Demo:
    """Kova, Adam and KTD learn the 4x4 maze: a table and pictures, in a minute."""

    out: Path = Path("demo")
    """Folder for runs and pictures; made if it is not there. What is finished in it is not run again."""
    seeds: Whole = 3
    """How many seeds each critic has."""
    steps: Whole = 5_000
    """Steps in the maze, at least 100."""
    jobs: Count = None
    """Runs at once; one a core."""

    def run(self) -> None:
        """Train what is not trained yet, print the table, draw the curves and what Kova believes."""
        check_whole("--seeds", self.seeds, least=1)
        check_whole("--steps", self.steps, least=100)
        console = Console()
        runs = [
            MazeRun(label, "maze4", critic, seed, self.steps, looks=20)
            for seed, (label, critic) in product(range(self.seeds), CRITICS.items())
        ]
        folders = made(runs, Place(self.out, self.jobs), console, ("kova", "demo", "--out", self.out))
        summarise("The 4x4 maze", self.out / "curves", folders, draw, console)
        try:
            from kova_rl.lab.figures.beliefs import show
        except ImportError:
            return  # said already
        still, moving = show("maze4", folders[0].path, self.out)
        say(console, f"What Kova believes, with error bars: {still}, and as it learns: {moving}")
