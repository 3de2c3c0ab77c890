"""The paper's figures that are sweeps, one file each and scale, and what every figure takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kova_rl.filter.checks import check_whole
from kova_rl.lab.reproduce import EXPERIMENTS
from kova_rl.lab.reproduce import reproduce as mazes
from kova_rl.lab.terminal import say
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.grid import expand
from kova_rl.lab.training.names import check_name
from kova_rl.lab.training.presets import shipped_sweep
from kova_rl.lab.training.store import check_writable

__all__ = ["FIGURES", "MAKES", "SCALES", "Figure", "core_hours", "folder", "listing", "planned", "reproduce"]

SCALES = ("smoke", "desk", "paper")


@dataclass(frozen=True)
class Figure:
    """A figure that is a sweep: presets/sweeps/NAME.toml, and NAME-desk and NAME-smoke."""

    makes: str
    alone: bool = False
    """Whether its runs are made one at a time."""


FIGURES = {
    "fig3": Figure("learning curves on MuJoCo: PPO, TRPO and SAC with three critics, and ACKTR"),
    "control": Figure("PPO and TRPO with Kova, Adam and memoryless critics, ten seeds (not in the paper)"),
    "ablation": Figure("PPO: eta by noise, with the policy's entropy and loss beside the return"),
    "times": Figure("running times of the critics, made one run at a time", alone=True),
    "grid": Figure("the grid search for PPO, and the best settings of each environment"),
}
MAKES = {
    "fig1": "4x4 maze: success, time and forward passes of Kova, KTD and Adam",
    "fig2": "10x10 maze: three etas, three rates of Adam",
    "why": "what decides the 10x10 maze (not in the paper)",
    **{name: figure.makes for name, figure in FIGURES.items()},
}

MILLISECONDS = {
    "ppo": {"adam": 0.9, "memoryless": 1.0, "kova": 1.3},
    "trpo": {"adam": 0.65, "memoryless": 0.75, "kova": 0.75},
    "sac": {"adam": 5.6, "memoryless": 5.6, "kova": 8.0},
    "acktr": {"kfac": 0.7},
}
"""Of a step on Hopper-v5 with the paper's networks, on one quiet core: ``python -m benchmarks.sb3``."""
MAZES = {"maze4": 2.5, "maze10": 1.5}
"""The same of a step in a maze, the mean over a figure's critics."""


def planned(name: str, scale: str, seeds: int | None = None, steps: int | None = None) -> list[RunConfig]:
    """The runs of a figure that is a sweep, in the order in which they are made.

    Args:
        name: In :data:`FIGURES`.
        scale: In :data:`SCALES`.
        seeds: How many, if not those of the scale.
        steps: Of every run, if not those of the scale.
    """
    changes: dict[str, Any] = {}
    if seeds is not None:
        check_whole("--seeds", seeds, least=1)
        changes["seed"] = list(range(seeds))
    if steps is not None:
        check_whole("--steps", steps, least=1)
        changes["steps"] = steps
    sweep = name if scale == "paper" else f"{name}-{scale}"
    return expand(shipped_sweep(sweep), sweep, changes)


def core_hours(runs: Sequence[RunConfig]) -> float:
    """About what these runs take, by :data:`MILLISECONDS`."""
    return sum(run.steps * MILLISECONDS[run.algorithm][run.critic] for run in runs) / 3.6e6


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
    """Make the runs of a figure that are not finished, then its table, pictures and, of a sweep, page.

    Returns:
        Whether all runs are done.

    Raises:
        ValueError: A name, scale or number that is not known; nothing runs then.
    """
    check_name("figure", name, MAKES)
    check_name("--scale", scale, SCALES)
    if jobs is not None:
        check_whole("--jobs", jobs, least=1)
    root = folder(name, scale) if out is None else out
    if name in EXPERIMENTS:
        if jobs is not None or on != "processes":
            raise ValueError(f"{name} is a maze, which runs in a process a core: leave --jobs and --on out")
        mazes(name, scale, seeds, steps, root, console)
        return True
    runs = planned(name, scale, seeds, steps)
    if FIGURES[name].alone:
        if jobs not in (None, 1) or on != "processes":
            raise ValueError(f"{name}: times measured side by side do not compare: leave --jobs and --on out")
        jobs = 1
    from kova_rl.lab.training.sweep_command import SweepRuns

    check_writable(root)
    given = {"seeds": seeds, "steps": steps, "out": out}
    options = [part for key, value in given.items() if value is not None for part in (f"--{key}", value)]
    words = ("kova", "reproduce", name, "--scale", scale, *options)
    say(console, f"{name}, {scale}: {len(runs)} runs, about {_hours(core_hours(runs))} core-hours in all")
    sweep = SweepRuns(name, out=root, jobs=jobs, on=on).make(runs, console, words)
    if not sweep.of("waiting", "running"):  # not stopped by Ctrl-C
        _show(root, console)
    return len(sweep.of("done")) == len(runs)


def _show(root: Path, console: Console) -> None:
    from kova_rl.lab.report import report, table

    table(root, console)
    if importlib.util.find_spec("matplotlib") is None:
        say(console, "No page without matplotlib: pip install 'kova-rl[plots]'")
        return
    say(console, f"Page: {report(root)}, figures: {root / 'figures'}/")


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
    for name, makes in MAKES.items():
        needs = [_needs(name, scale) for scale in SCALES]
        columns = ("\n".join(column) for column in (SCALES, *zip(*needs, strict=True)))
        out.add_row(name, makes, *columns, end_section=True)
    return out


def _needs(name: str, scale: str) -> tuple[str, str, str, str]:
    """Runs, seeds, steps and core-hours."""
    if name in EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        steps, seeds = experiment.scales[scale]
        count = len(experiment.critics) * seeds
        hours = count * steps * MAZES[experiment.maze] / 3.6e6
        return f"{count:,}", str(seeds), _short(steps), _hours(hours)
    runs = planned(name, scale)
    lengths = [run.steps for run in runs]
    span = " to ".join(dict.fromkeys((_short(min(lengths)), _short(max(lengths)))))
    return f"{len(runs):,}", str(len({run.seed for run in runs})), span, _hours(core_hours(runs))


def _short(steps: int) -> str:
    if steps < 10_000:
        return f"{steps:,}"
    return f"{steps / 1e6:g}M" if steps >= 1_000_000 else f"{steps / 1e3:g}k"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}" if hours >= 0.095 else f"{hours:.2f}"
