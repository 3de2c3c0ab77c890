"""The report in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from kova_rl.lab import coverage
from kova_rl.lab.report.groups import group
from kova_rl.lab.report.groups import title as named
from kova_rl.lab.report.reading import RunRecord, read
from kova_rl.lab.report.summary import CHOSEN, best, finals, improvements, overheads
from kova_rl.lab.report.tables import BEST, FINALS, IMPROVEMENTS, OVERHEADS, Table
from kova_rl.lab.tables import Sheet
from kova_rl.lab.terminal import say

__all__ = ["table"]


def table(directory: Path, console: Console) -> None:
    """Print final returns, improvement on Adam, running times, and what failed.

    Args:
        directory: Where the runs are.
        console: To print on.

    Raises:
        ValueError: There are no runs, or a file is damaged.
    """
    runs = read(directory, tell=lambda line: say(console, line))
    groups = group(runs)
    compared, timed = improvements(groups), overheads(groups)
    for algorithm in dict.fromkeys(g.algorithm for g in groups):
        own = [g for g in groups if g.algorithm == algorithm]
        ends = finals(own)
        better = [row for row in compared if row.algorithm == algorithm]
        slower = [row for row in timed if row.group.algorithm == algorithm]
        measured = FINALS.title.format(own[0].measure.title)
        _print(console, algorithm, FINALS, ends, measured, coverage.note([len(g.final) for g in own]))
        _print(console, algorithm, BEST, best(ends), said=CHOSEN)
        doubt = coverage.note([row.seeds for row in better], "improvement")
        _print(console, algorithm, IMPROVEMENTS, better, said=doubt)
        _print(console, algorithm, OVERHEADS, slower)
    for line in _left_out(runs):
        console.print(line)


def _print(
    console: Console, algorithm: str, of: Table, rows: Sequence[Any], title: str = "", said: str = ""
) -> None:
    """A table, if it has rows, and a sentence below it."""
    if rows:
        heads, cells = of.cells(rows, page=False)
        shown = [[cell.shown for cell in row] for row in cells]
        console.print(Sheet(f"{named(algorithm)}: {title or of.title}", heads, shown, words=(0, 1)).rich())
        console.print(f"{said}\n" if said else "")


def _left_out(runs: Sequence[RunRecord]) -> list[str]:
    lines = [
        f"[red]failed[/red] {escape(run.name)}: {escape(str(run.failure.get('message', '')))}"
        for run in runs
        if run.status == "failed"
    ]
    return lines + [
        f"unfinished {escape(run.name)}: step {run.reached:,} of {run.config['steps']:,}"
        for run in runs
        if run.status == "unfinished"
    ]
