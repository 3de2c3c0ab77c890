"""The paper's maze experiments: what is compared, at which scale, and the command that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from rich.console import Console

from kova_rl import covariance, evolution, observation
from kova_rl.agents import Settings
from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab import files, pool
from kova_rl.lab.critics import Adam, Critic, Filtered, Temporal
from kova_rl.lab.maze import Run, run
from kova_rl.lab.series import Series, gather, markdown, table
from kova_rl.lab.terminal import say

__all__ = ["EXPERIMENTS", "Experiment", "perform", "reproduce"]

Draw = Callable[[Path, list[Series], str], None]


@dataclass(frozen=True)
class Experiment:
    """What a figure of the paper compares."""

    title: str
    maze: str
    critics: dict[str, Critic]
    scales: dict[str, tuple[int, int]]
    """Steps and seeds of each scale."""
    settings: dict[str, Settings] = field(default_factory=dict)
    """Of the agent, where they are not the paper's, by the name of the critic."""
    looks: int = 0
    """Of the first seed: the others keep no beliefs, which are larger than the rest of the data."""


def tracked(eta: float) -> Filtered:
    """Kova's default with another eta."""
    default = Filtered().complete().evolution
    return Filtered(evolution=replace(default, eta=eta))  # type: ignore[type-var]


BOUNDED = evolution.DirectionalForgetting(0.01)
"""Of KTD's evolutions, the one that solved the maze in trials."""

FIG1 = Experiment(
    "Fig. 1: the 4x4 maze",
    "maze4",
    {
        "Kova": Filtered(),
        "memoryless (released code)": Filtered(evolution=evolution.Memoryless(0.01)),
        "Kova as printed": Filtered(
            covariance.Full(), evolution.FadingMemory(0.01, on_windup="ignore"), observation.BatchSize()
        ),
        "KTD as printed": Temporal(),
        "KTD, bounded": Temporal(BOUNDED),
        "KTD, bounded, P0 and Pn 0.1": Temporal(BOUNDED, prior=0.1, noise=0.1),
        "Adam 1e-3": Adam(1e-3),
    },
    {"smoke": (1_000, 2), "desk": (5_000, 4), "paper": (5_000, 8)},
)

ETAS = (0.1, 0.01, 0.001)
FIG2 = Experiment(
    "Fig. 2: the 10x10 maze",
    "maze10",
    {
        **{f"Kova, eta {eta:g}": tracked(eta) for eta in ETAS},
        **{f"memoryless, eta {eta:g}": Filtered(evolution=evolution.Memoryless(eta)) for eta in ETAS},
        "Adam 1e-3": Adam(1e-3),
        "Adam 3e-4, decaying": Adam(3e-4, decaying=True),
        "Adam 1e-4": Adam(1e-4),
    },
    {"smoke": (2_000, 1), "desk": (30_000, 2), "paper": (100_000, 8)},
    looks=50,
)

LARGE = Settings(buffer=20_000)
CURIOUS = Settings(epsilon=0.3)
WHY = Experiment(
    "What decides the 10x10 maze",
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
    {
        "Kova, eta 0.001, buffer 20,000": LARGE,
        "memoryless, buffer 20,000": LARGE,
        "Adam 1e-3, buffer 20,000": LARGE,
        "Adam 1e-3, epsilon 0.3": CURIOUS,
    },
)
"""Not in the paper: is it the optimizer, or what the agent gets to see?"""

EXPERIMENTS = {"fig1": FIG1, "fig2": FIG2, "why": WHY}


def reproduce(
    name: str, scale: str, seeds: int | None, steps: int | None, out: Path | None, console: Console
) -> None:
    """Run what is not finished, then write the table and, if matplotlib is there, the figure."""
    check_choice("figure", name, tuple(EXPERIMENTS))
    check_choice("--scale", scale, ("smoke", "desk", "paper"))
    experiment = EXPERIMENTS[name]
    scaled_steps, scaled_seeds = experiment.scales[scale]
    steps, seeds = scaled_steps if steps is None else steps, scaled_seeds if seeds is None else seeds
    check_whole("--steps", steps, least=1)
    check_whole("--seeds", seeds, least=1)
    out = Path("results") / name if out is None else out
    jobs = []
    for seed, (critic_name, critic) in product(range(seeds), experiment.critics.items()):
        looks = experiment.looks if seed == 0 else 0
        settings = experiment.settings.get(critic_name, Settings())
        jobs.append(Run(critic_name, experiment.maze, critic, seed, steps, out, looks, settings))
    perform(jobs, experiment.title, console)
    try:
        from kova_rl.lab.maze_figures import DRAW
    except ImportError:
        say(console, "No figure without matplotlib: pip install 'kova-rl[plots]'")
        DRAW = {}
    summarise(
        jobs,
        f"{experiment.title}, {steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}",
        out / name,
        DRAW.get(name),
        console,
    )


def perform(jobs: Sequence[Run], title: str, console: Console) -> None:
    """Run those that are not finished, in parallel."""
    missing = files.missing(jobs)
    if len(missing) < len(jobs):
        say(console, f"{len(jobs) - len(missing)} of {len(jobs)} runs are finished already")
    pool.run_all(run, missing, title=title, ticks=sum(job.steps for job in missing), console=console)


def summarise(jobs: Sequence[Run], title: str, stem: Path, draw: Draw | None, console: Console) -> None:
    """Print the table, and write it and the figure beside the data."""
    series = gather(jobs)
    console.print(table(title, series))
    files.write(stem.parent / f"{stem.name}.md", markdown(title, series).encode())
    where = f"table: {stem}.md, data: {jobs[0].path.parent}/"
    if draw is not None:
        draw(stem, series, title)
        where = f"figure: {stem}.png and {stem}.pdf, {where}"
    say(console, where[0].upper() + where[1:])
