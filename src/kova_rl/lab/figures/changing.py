"""Where tracking should pay: worlds that change. A sweep, with what each change cost and took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from kova_rl.lab import files, stats
from kova_rl.lab.figures.recovery import Recovery, change_of, recovery, written
from kova_rl.lab.figures.sweeps import SweepFigure
from kova_rl.lab.pack import Folder
from kova_rl.lab.terminal import say
from kova_rl.lab.training.config import RunConfig

__all__ = ["CHANGING", "ChangingFigure"]

NEW, OLD = "kova", "adam"


@dataclass(frozen=True)
class ChangingFigure(SweepFigure):
    """Training runs in worlds that change."""

    def runs(self, scale: str, seeds: int | None = None, steps: int | None = None) -> list[RunConfig]:
        """In the order in which they are made.

        Raises:
            ValueError: Besides bad numbers, so few steps that the world does not change.
        """
        runs = super().runs(scale, seeds, steps)
        last = max(change_of(run.flat()) for run in runs)
        if steps is not None and steps <= last:
            raise ValueError(f"--steps must be above {last:,}, where the world changes, got {steps:,}")
        return runs

    def show(self, root: Path, folders: Sequence[Folder], console: Console) -> None:
        """The page and tables of any sweep, then return after the change and steps to recover."""
        super().show(root, folders, console)
        found = [recovery(folder) for folder in folders]
        rows = sorted(
            (row for row in found if row is not None), key=lambda row: (row.environment, row.critic, row.seed)
        )
        if len(rows) < len(found):
            left = len(found) - len(rows)
            say(console, f"Left out: {left} runs, with too few episodes before or after the change.")
        if not rows:
            return
        console.print(table(rows))
        for line in compared(rows):
            say(console, line)
        files.write(root / "changing.csv", written(rows))
        say(console, f"A line a run: {root / 'changing.csv'}")


def table(rows: Sequence[Recovery]) -> Table:
    """A row an environment and critic."""
    out = Table(
        title="When the world changes",
        caption="Means over the seeds, with a 95% interval. After: the mean return from the change to the "
        "end, once no episode of the old world is in it. Recovered: 90% of the return before; median steps, "
        "those that did not recover counted as longest.",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    out.add_column("environment", no_wrap=True)
    out.add_column("critic")
    for heading in ("seeds", "before", "after", "final", "recovered", "steps"):
        out.add_column(heading, justify="right", no_wrap=True)
    for environment, critic in dict.fromkeys((row.environment, row.critic) for row in rows):
        own = [row for row in rows if (row.environment, row.critic) == (environment, critic)]
        median = float(np.median(_waits(own)))
        out.add_row(
            environment.removeprefix("kova/"),
            critic,
            str(len(own)),
            f"{np.mean([row.before for row in own]):,.0f}",
            stats.with_interval([row.after for row in own], ",.0f").replace("[", "\\["),
            f"{np.mean([row.final for row in own]):,.0f}",
            f"{sum(row.recovered is not None for row in own)} of {len(own)}",
            f"{median:,.0f}" if np.isfinite(median) else "never",
        )
    return out


def compared(rows: Sequence[Recovery]) -> list[str]:
    """How probable it is that a run with Kova does better than one with Adam, a sentence a measure."""
    lines = []
    groups = {
        critic: {
            name: [row for row in rows if (row.environment, row.critic) == (name, critic)]
            for name in dict.fromkeys(row.environment for row in rows)
        }
        for critic in (NEW, OLD)
    }
    names = [name for name in groups[NEW] if groups[NEW][name] and groups[OLD][name]]
    if not names:
        return []
    for about, measure in (("has more return after the change", _after), ("recovers in fewer steps", _soon)):
        new, old = ([measure(groups[critic][name]) for name in names] for critic in (NEW, OLD))
        low, high = stats.improvement_interval(new, old)
        chance = stats.improvement(new, old)
        lines.append(f"P({NEW} {about} than {OLD}): {chance:.2f} [{low:.2f}, {high:.2f}]")
    return lines


def _waits(rows: Sequence[Recovery]) -> list[float]:
    return [float("inf") if row.recovered is None else float(row.recovered) for row in rows]


def _after(rows: Sequence[Recovery]) -> list[float]:
    return [row.after for row in rows]


def _soon(rows: Sequence[Recovery]) -> list[float]:
    """More is sooner; never is 0, and two of them are level."""
    return [1 / (1 + wait) for wait in _waits(rows)]


CHANGING = ChangingFigure(
    "changing", "PPO with Kova and Adam where the physics change halfway, ten seeds (not in the paper)"
)
