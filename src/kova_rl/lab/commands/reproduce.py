"""The command ``kova reproduce``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from kova_rl.lab.arguments import Count, NoPath
from kova_rl.lab.figures import FIGURES, SCALES, Figure, folder, hours, redraw, reproduce

__all__ = ["Reproduce"]


@dataclass
class Reproduce:
    """Reproduce a figure of the paper: its runs, the figure as PNG and PDF, and a table.

    On 2 cores smoke takes two to four minutes and shows that everything works; desk takes some minutes to an
    evening; paper is the original protocol. The same command again makes only what is not finished.

    fig1 and fig2 are mazes; fig3, ablation, times and grid are sweeps on MuJoCo, which also get one page,
    report.html. Not in the paper: why asks what decides fig2, control what a tracked critic does for PPO and
    TRPO with ten seeds, changing how PPO's critics follow a world that changes, and calibration whether the
    error bars of a trained critic hold.

    examples:
      kova reproduce --list
      kova reproduce fig1 --scale paper
      kova reproduce fig3 --scale desk --jobs 2
      kova reproduce fig2 --draw --out results/fig2
    """

    figure: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="FIGURE")] = None
    """fig1, fig2, why, fig3, ablation, times, grid, control, changing, sac or calibration."""
    scale: Annotated[str, tyro.conf.arg(metavar="{smoke,desk,paper}")] = "smoke"
    """How many runs, seeds and steps; --list has them."""
    seeds: Count = None
    """Seeds, if not those of the scale."""
    steps: Count = None
    """Steps of every run, if not those of the scale."""
    jobs: Count = None
    """Runs at once; one a core if not given, and one in all for times."""
    out: NoPath = None
    """Folder for the results; results/FIGURE if not given, and results/FIGURE-smoke for smoke."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster, as in kova sweep."""
    draw: bool = False
    """Make no runs: draw the figure again from those in --out."""
    list: bool = False
    """Only list what each figure makes, and the core-hours that it needs."""

    def run(self) -> None:
        """Make it."""
        console = Console()
        if self.list:
            console.print(listing())
            return
        if self.figure is None:
            raise ValueError("which figure? kova reproduce FIGURE; kova reproduce --list has them")
        if self.draw:
            redraw(self.figure, self.out or folder(self.figure, self.scale), console)
        elif not reproduce(
            self.figure,
            self.scale,
            seeds=self.seeds,
            steps=self.steps,
            jobs=self.jobs,
            out=self.out,
            on=self.on,
            console=console,
        ):
            raise SystemExit(1)


def listing() -> Table:
    """What each figure makes, and what it takes at each scale."""
    out = Table(
        title="kova reproduce FIGURE --scale SCALE",
        caption="Core-hours: steps times what a step took on one quiet core, on Hopper-v5 and in the mazes.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    out.add_column("figure", no_wrap=True)
    out.add_column("makes", overflow="fold", max_width=36)
    out.add_column("scale", no_wrap=True)
    for heading in ("runs", "seeds", "steps", "core-hours"):
        out.add_column(heading, justify="right", no_wrap=True)
    for name, figure in FIGURES.items():
        needs = [_needs(figure, scale) for scale in SCALES]
        columns = ("\n".join(column) for column in (SCALES, *zip(*needs, strict=True)))
        out.add_row(name, figure.makes, *columns, end_section=True)
    return out


def _needs(figure: Figure, scale: str) -> tuple[str, str, str, str]:
    """Runs, seeds, steps and core-hours."""
    runs = figure.runs(scale)
    lengths, seeds = [run.steps for run in runs], {run.seed for run in runs}
    span = " to ".join(dict.fromkeys((_short(min(lengths)), _short(max(lengths)))))
    return f"{len(runs):,}", str(len(seeds)), span, hours(figure.hours(runs))


def _short(steps: int) -> str:
    if steps < 10_000:
        return f"{steps:,}"
    return f"{steps / 1e6:g}M" if steps >= 1_000_000 else f"{steps / 1e3:g}k"
