"""A random walk whose true values are known, evaluated with error bars, beside Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kova_rl import evolution, observation
from kova_rl.lab.evaluation.network import Make, NetworkCritic
from kova_rl.lab.evaluation.protocol import STEP, coverage
from kova_rl.lab.evaluation.tasks import phases
from kova_rl.lab.evaluation.transitions import Array
from kova_rl.lab.evaluation.walk import Walker
from kova_rl.lab.tables import Sheet
from kova_rl.lab.terminal import NO_FIGURE, say
from kova_rl.optimizer import Kova
from kova_rl.posterior import LEVELS

__all__ = ["LOOKS", "Result", "chain", "critics"]

LOOKS = (10, 100, 1_000)
"""Updates after which the belief is drawn."""
WINDOW = 2_000
"""Samples that are replayed."""


@dataclass
class Result:
    """What became of one critic, with one seed."""

    name: str
    errors: list[float] = field(default_factory=list)
    """Root mean square error of the values, after each update."""
    beliefs: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    """Mean and deviation of the values of all states, at each look; tracked critics only."""


def critics() -> dict[str, Make]:
    """The critics that are compared."""
    return {
        "Kova": Kova,
        "Kova, eta 0.01": partial(Kova, evolution=evolution.Leakage(0.01)),
        "Kova, the paper's noise": partial(Kova, observation=observation.BatchSize()),
        "memoryless (released code)": partial(Kova, evolution=evolution.Memoryless(0.01)),
        "Adam 0.01": lambda critic: torch.optim.Adam(critic.parameters(), 0.01),
        "Adam 0.003": lambda critic: torch.optim.Adam(critic.parameters(), 0.003),
        "Adam 0.001": lambda critic: torch.optim.Adam(critic.parameters(), 0.001),
    }


def train(name: str, make: Make, seed: int, updates: int, tick: Callable[[], None]) -> Result:
    """Learn the chain; after two thirds of the updates the rewards change sign."""
    first, second = phases("chain", "switch")
    walker = Walker(first, np.random.default_rng(seed))
    critic = NetworkCritic(make, first.features.shape[1], first.gamma, seed, window=WINDOW, weighted=False)
    result, truth = Result(name), first.values()
    for t in range(1, updates + 1):
        if t - 1 == 2 * updates // 3:
            walker.enter(second)
            truth = second.values()
        critic.observe(walker.walk(STEP))
        mean, std = critic.mean_std(first.features)
        result.errors.append(float(np.sqrt(np.mean((mean - truth) ** 2))))
        if t in LOOKS and std is not None:
            result.beliefs[t] = mean, std
        tick()
    return result


def chain(out: Path, seeds: int, updates: int, console: Console) -> None:
    """Train all critics, print the table and save the picture."""
    torch.set_num_threads(1)
    made, results = critics(), []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("learning", total=len(made) * seeds * updates)
        for name, make in made.items():
            progress.update(task, description=name)
            runs = [train(name, make, seed, updates, lambda: progress.advance(task)) for seed in range(seeds)]
            results.append(runs)
    console.print(table([mean(runs) for runs in results], updates, seeds))
    truth = phases("chain", "switch")[0].values()
    for runs in results:
        held = [coverage(m - truth, std) for run in runs for m, std in run.beliefs.values()]
        if held:
            shares = ", ".join(
                f"{100 * share:.0f}% in {100 * level:.0f}%"
                for share, level in zip(np.mean(held, 0), LEVELS, strict=True)
            )
            say(console, f"Error bars of {runs[0].name}: coverage {shares} intervals")
    try:
        from kova_rl.lab.figures.chain_picture import draw
    except ImportError:
        say(console, NO_FIGURE)
        return
    draw(out / "chain", [mean(runs) for runs in results], truth, updates)
    say(console, f"Picture: {out / 'chain.png'}")


def mean(runs: list[Result]) -> Result:
    """Errors averaged over the seeds and the last 25 updates; the beliefs of the first seed."""
    errors = np.mean([run.errors for run in runs], axis=0)
    total = np.concatenate([[0.0], errors.cumsum()])
    at = np.arange(1, len(errors) + 1)
    start = np.maximum(at - 25, 0)
    return Result(runs[0].name, ((total[at] - total[start]) / (at - start)).tolist(), runs[0].beliefs)


def table(results: list[Result], updates: int, seeds: int) -> Table:
    """Errors at a few updates, the best in each column in bold."""
    switch = 2 * updates // 3
    points = {f"{at:,}": at for at in (switch // 10, switch // 2, switch)}
    points |= {f"+{at:,}": switch + at for at in (switch // 10, updates - switch)}
    columns = [[result.errors[at - 1] for result in results] for at in points.values()]
    rows = [[result.name, *(f"{c[i]:.3f}" for c in columns)] for i, result in enumerate(results)]
    title = f"Value error (RMS) on a chain of 30 states, mean of {seeds} seeds"
    caption = f"by update; at {switch:,} the rewards turn round, and columns with a + count from there"
    best = {(column.index(min(column)), j) for j, column in enumerate(columns, start=1)}
    return Sheet(title, ["critic", *points], rows, caption, best=best).rich()
