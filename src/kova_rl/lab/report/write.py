"""Make the report: read, summarise, draw, write."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from kova_rl.lab import files
from kova_rl.lab.report import html
from kova_rl.lab.report.groups import group
from kova_rl.lab.report.page import page
from kova_rl.lab.report.reading import read
from kova_rl.lab.report.summary import finals, improvements, overheads
from kova_rl.lab.sweep.noted import read_commands

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
        from kova_rl.lab.report import aggregates, curves, policy, style
    except ImportError:
        raise ValueError("the report needs matplotlib: pip install 'kova-rl[plots]'") from None
    directory = Path(directory)
    beside = directory.parent if directory.is_file() else directory
    out = beside if out is None else out
    command = shlex.join(["kova", "report", str(directory)])
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading")
        runs = read(
            directory,
            lambda done, total: progress.update(task, completed=done, total=total),
            lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
        )
        groups = group(runs)
        tables = finals(groups), improvements(groups), overheads(groups)
        figures = {
            "curves": curves.curves(groups),
            "policy": policy.policy(groups),
            "improvement": aggregates.improvement(tables[1], groups),
            "environments": [*aggregates.aggregate(groups), *aggregates.profiles(groups)],
            "times": aggregates.times(tables[2]),
        }
        task = progress.add_task("drawing", total=sum(map(len, figures.values())))
        drawn = {}
        for section, found in figures.items():
            parts = []
            for f in found:
                style.grid_files(f, out / "figures" / f.name)
                drawings = (("", k.mark) if f.dots else (k.dashes or "none", k.marker) for k in f.keys)
                named = ((k.label, html.variable(k.critic, k.index)) for k in f.keys)
                legend = html.legend((*n, *d) for n, d in zip(named, drawings, strict=True))
                panels = [style.inline(panel, f"{f.name}-{i}") for i, panel in enumerate(f.panels)]
                parts.append(html.figure(f.name, f.title, legend, panels, f.across, f.caption, command))
                progress.advance(task)
            drawn[section] = html.flow(parts) or "<p>Nothing to draw yet.</p>"
    path = out / "report.html"
    title = f"Report on {beside.resolve().name}"
    files.write(path, page(title, runs, groups, tables, drawn, (command, *read_commands(beside))).encode())
    return path
