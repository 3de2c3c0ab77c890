"""Make the report: read, summarise, draw, write."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from kova_rl.lab import files
from kova_rl.lab.report.groups import group
from kova_rl.lab.report.page import page
from kova_rl.lab.report.reading import read
from kova_rl.lab.report.summary import improvements, overheads
from kova_rl.lab.sweep.noted import read_commands
from kova_rl.lab.terminal import say

__all__ = ["report"]


def report(directory: Path, out: Path | None = None) -> Path:
    """Write ``report.html`` into the directory, and every figure as PNG and PDF into ``figures/``.

    Args:
        directory: Where the runs are, or a packed file of them.
        out: Where the page goes; None is beside the runs.

    Returns:
        The path of the page.

    Raises:
        ValueError: There are no runs, a file is damaged, or matplotlib is not installed.
    """
    try:
        from kova_rl.lab.report import aggregates, curves, overall, policy, style
    except ImportError:
        raise ValueError("the report needs matplotlib: pip install 'kova-rl[plots]'") from None
    directory = Path(directory)
    beside = directory.parent if directory.is_file() else directory
    out = beside if out is None else out
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading")
        runs = read(
            directory,
            lambda done, total: progress.update(task, completed=done, total=total),
            lambda line: say(console, line),
        )
        groups = group(runs)
        figures = {
            "curves": curves.curves(groups),
            "policy": policy.policy(groups),
            "improvement": aggregates.improvement(improvements(groups), groups),
            "environments": [
                *overall.overall(groups),
                *aggregates.aggregate(groups),
                *aggregates.profiles(groups),
            ],
            "times": aggregates.times(overheads(groups)),
        }
        task = progress.add_task("drawing", total=sum(map(len, figures.values())))

        def draw(figure: style.Figure) -> tuple[style.Figure, list[str]]:
            style.grid_files(figure, out / "figures" / figure.name)
            progress.advance(task)
            return figure, [
                style.inline(panel, f"{figure.name}-{i}") for i, panel in enumerate(figure.panels)
            ]

        drawn = {  # figures of a single panel that follow each other stand side by side
            section: [list(map(draw, row)) for _, row in groupby(found, lambda figure: figure.across == 1)]
            for section, found in figures.items()
        }
    path, title = out / "report.html", f"Report on {beside.resolve().name}"
    commands = (shlex.join(["kova", "report", str(directory)]), *read_commands(beside))
    files.write(path, page(title, runs, groups, drawn, commands).encode())
    return path
