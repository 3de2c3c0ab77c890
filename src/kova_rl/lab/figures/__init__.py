"""The figures of the paper and of ours: a file each says which runs, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from kova_rl.lab.figures.calibration import CALIBRATION
from kova_rl.lab.figures.changing import CHANGING
from kova_rl.lab.figures.fig1 import FIG1
from kova_rl.lab.figures.fig2 import FIG2
from kova_rl.lab.figures.sweeps import ABLATION, CONTROL, FIG3, GRID, SAC, TIMES
from kova_rl.lab.figures.why import WHY
from kova_rl.lab.names import check_name
from kova_rl.lab.pack import Folder, found
from kova_rl.lab.run import Run
from kova_rl.lab.store import check_writable
from kova_rl.lab.sweep.make import Place, make_all
from kova_rl.lab.terminal import say

__all__ = ["FIGURES", "SCALES", "Figure", "folder", "redraw", "reproduce"]

SCALES = ("smoke", "desk", "paper")


class Figure(Protocol):
    """Which runs, and how they are shown."""

    @property
    def name(self) -> str: ...
    @property
    def makes(self) -> str:
        """In a line."""

    @property
    def alone(self) -> bool:
        """Whether its runs are made one at a time."""

    def runs(self, scale: str, seeds: int | None = None, steps: int | None = None) -> Sequence[Run]:
        """In the order in which they are made."""

    def hours(self, runs: Any) -> float:
        """Core-hours that they take, about."""

    def show(self, root: Path, folders: Sequence[Folder], console: Console) -> None:
        """Tables on the console, pictures and pages in the folder."""


ALL: tuple[Figure, ...] = (
    *(FIG1, FIG2, WHY, FIG3, CONTROL, CHANGING, SAC),
    *(ABLATION, TIMES, GRID, CALIBRATION),
)
FIGURES = {figure.name: figure for figure in ALL}


def folder(name: str, scale: str) -> Path:
    """Where a figure goes if nothing is said; a trial is kept apart from what took an evening."""
    return Path("results") / (f"{name}-smoke" if scale == "smoke" else name)


def reproduce(
    name: str,
    scale: str,
    *,
    seeds: int | None = None,
    steps: int | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    on: str = "processes",
    console: Console,
) -> bool:
    """Make the runs of a figure that are not finished, then show it.

    Returns:
        Whether all runs are done.

    Raises:
        ValueError: A name, scale or number that is not known; nothing runs then.
    """
    check_name("figure", name, FIGURES)
    check_name("--scale", scale, SCALES)
    figure, root = FIGURES[name], folder(name, scale) if out is None else out
    place = Place(root, jobs, on)
    runs = figure.runs(scale, seeds, steps)
    if figure.alone:
        if jobs not in (None, 1) or on != "processes":
            raise ValueError(f"{name}: times measured side by side do not compare: leave --jobs and --on out")
        place = Place(root, 1)
    check_writable(root)
    given = {"seeds": seeds, "steps": steps, "out": out}
    options = [part for key, value in given.items() if value is not None for part in (f"--{key}", value)]
    say(console, f"{name}, {scale}: {len(runs)} runs, about {hours(figure.hours(runs))} core-hours in all")
    sweep = make_all(runs, place, console, ("kova", "reproduce", name, "--scale", scale, *options))
    done = [entry.run.name for entry in sweep.of("done")]
    if done and not sweep.of("waiting", "running"):  # not stopped by Ctrl-C
        there = {folder.name: folder for folder in found(root)}
        figure.show(root, [there[name] for name in done], console)
    return len(done) == len(runs)


def redraw(name: str, root: Path, console: Console) -> None:
    """Show a figure again from the runs that are in this folder, whatever made them."""
    check_name("figure", name, FIGURES)
    FIGURES[name].show(root, found(root), console)


def hours(count: float) -> str:
    """Core-hours as people read them."""
    return f"{count:,.0f}" if count >= 10 else f"{count:.1f}" if count >= 0.095 else f"{count:.2f}"
