"""Figures that are mazes: which runs, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from rich.console import Console

from kova_rl.agents import Settings
from kova_rl.filter.checks import check_whole
from kova_rl.lab import files
from kova_rl.lab.mazes.critics import Critic
from kova_rl.lab.mazes.run import MazeRun
from kova_rl.lab.mazes.series import Series, gather, markdown, table
from kova_rl.lab.pack import Folder
from kova_rl.lab.terminal import NO_FIGURE, say

__all__ = ["MazeFigure", "summarise"]

Draw = Callable[[Path, list[Series], str], None]
MILLISECONDS = {"maze4": 2.5, "maze10": 1.5}
"""Of a step, the mean over a figure's critics, on one quiet core."""


@dataclass(frozen=True)
class MazeFigure:
    """Critics in a maze, at three scales."""

    name: str
    title: str
    makes: str
    maze: str
    critics: dict[str, Critic]
    scales: dict[str, tuple[int, int]]
    """Steps and seeds of each scale."""
    draw: Draw
    settings: dict[str, Settings] = field(default_factory=dict)
    """Of the agent, where they are not the paper's, by the name of the critic."""
    looks: int = 0
    """Of the first seed: the others keep no beliefs, which are larger than the rest of the data."""
    alone: bool = False

    def runs(self, scale: str, seeds: int | None = None, steps: int | None = None) -> list[MazeRun]:
        """In the order in which they are made."""
        scaled_steps, scaled_seeds = self.scales[scale]
        steps, seeds = scaled_steps if steps is None else steps, scaled_seeds if seeds is None else seeds
        check_whole("--steps", steps, least=1)
        check_whole("--seeds", seeds, least=1)
        return [
            MazeRun(
                label,
                self.maze,
                critic,
                seed,
                steps,
                looks=self.looks if seed == 0 else 0,
                settings=self.settings.get(label, Settings()),
            )
            for seed, (label, critic) in product(range(seeds), self.critics.items())
        ]

    def hours(self, runs: Sequence[MazeRun]) -> float:
        """Core-hours that they take, about."""
        return sum(run.steps for run in runs) * MILLISECONDS[self.maze] / 3.6e6

    def show(self, root: Path, folders: Sequence[Folder], console: Console) -> None:
        """The table, and the picture if matplotlib is there."""
        order = list(self.critics)
        known = [(folder, folder.json("config.json")) for folder in folders]
        own = [(order.index(c["label"]), c["seed"], f) for f, c in known if c.get("label") in order]
        if not own:
            raise ValueError(f"{root} holds no runs of {self.name}")
        own.sort(key=lambda each: each[:2])
        summarise(self.title, root / self.name, [folder for *_, folder in own], self.draw, console)


def summarise(title: str, stem: Path, folders: Sequence[Folder], draw: Draw, console: Console) -> None:
    """Print the table, and write it and the picture beside the runs.

    Args:
        title: Of both, before the numbers of steps and seeds.
        stem: Of the files' names.
        folders: The runs.
        draw: Makes the picture.
        console: To print on.
    """
    series = gather(folders)
    seeds = max(len(each.rates) for each in series)
    title = f"{title}, {series[0].steps[-1]:,} steps, {seeds} seed{'s' if seeds > 1 else ''}"
    console.print(table(title, series))
    files.write(stem.with_name(f"{stem.name}.md"), markdown(title, series).encode())
    where = f"table: {stem}.md, runs: {stem.parent}"
    try:
        draw(stem, series, title)
        where = f"figure: {stem}.png and {stem}.pdf, {where}"
    except ImportError:
        say(console, NO_FIGURE)
    say(console, where[0].upper() + where[1:])
