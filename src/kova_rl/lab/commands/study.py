"""The command ``kova study``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from kova_rl.lab.arguments import Count

__all__ = ["Study"]


@dataclass
class Study:
    """The study that chose Kova's default: a factorial on two mazes and on policy evaluation.

    Prints the settings in their order, with bootstrap intervals, and writes the table and the runs.
    """

    scale: Literal["smoke", "desk", "paper"] = "smoke"
    """smoke: 500 steps, 1 seed; desk: 5,000 steps, up to 2 seeds; paper: up to 4 seeds, an hour or two."""
    seeds: Count = None
    """Seeds of the better settings, if not those of the scale."""
    structures: tuple[str, ...] = ()
    """Only these covariances, such as kronecker low-rank, with Adam and Memoryless; all if not given."""
    out: Path = Path("results/study")
    """Folder for the results."""
    jobs: Count = None
    """Runs at once; one a core."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster, as in kova sweep."""
    draw: bool = False
    """Make no runs: write the table again from those in --out."""

    def run(self) -> None:
        """Run, rank, write."""
        from kova_rl.lab.figures.study import redraw, study
        from kova_rl.lab.sweep.make import Place

        if self.draw:
            redraw(self.out, Console())
        else:
            place = Place(self.out, self.jobs, self.on)
            study(self.scale, self.seeds, place, Console(), self.structures)
