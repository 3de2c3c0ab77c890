"""The report in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kova_rl.lab import coverage
from kova_rl.lab.report.groups import Group, group
from kova_rl.lab.report.groups import title as named
from kova_rl.lab.report.reading import RunRecord, read
from kova_rl.lab.report.summary import (
    CHOSEN,
    Best,
    Final,
    Improvement,
    Overhead,
    best,
    finals,
    improvements,
    overheads,
)

__all__ = ["table"]


def table(directory: Path, console: Console) -> None:
    """Print final returns, improvement on Adam, running times, and what failed.

    Args:
        directory: Where the runs are.
        console: To print on.

    Raises:
        ValueError: There are no runs, or a file is damaged.
    """
    runs = read(
        directory, tell=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
    )
    groups = group(runs)
    compared, timed = improvements(groups), overheads(groups)
    for algorithm in dict.fromkeys(g.algorithm for g in groups):
        own = [g for g in groups if g.algorithm == algorithm]
        ends = finals(own)
        console.print(_finals(algorithm, ends))
        _note(console, [len(g.final) for g in own], "iqm")
        if chosen := best(ends):
            console.print(_best(algorithm, chosen))
            console.print(CHOSEN)
        if better := [row for row in compared if row.algorithm == algorithm]:
            console.print(_improvements(algorithm, better))
            _note(console, [row.seeds for row in better], "improvement")
        if slower := [row for row in timed if row.group.algorithm == algorithm]:
            console.print(_overheads(algorithm, slower))
    for line in _left_out(runs):
        console.print(line)


def _note(console: Console, seeds: Sequence[int], kind: str) -> None:
    if note := coverage.note(seeds, kind):
        console.print(note)


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else ""


def _form(g: Group, value: float) -> str:
    return ",.0f" if abs(value) >= 1000 else g.measure.form


def _span(low: float, high: float, form: str) -> str:
    return f" [{low:{form}}, {high:{form}}]" if math.isfinite(low) else ""


def _headed(algorithm: str, title: str, *numbers: str) -> Table:
    out = Table(
        title=f"{named(algorithm)}: {title}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    out.add_column("environment", no_wrap=True)
    out.add_column("critic", overflow="fold")
    for heading in numbers:
        out.add_column(heading, justify="right", no_wrap=True)
    return out


def _finals(algorithm: str, rows: Sequence[Final]) -> Table:
    failures = any(row.group.count("failed") for row in rows)
    numbers = ("seeds", "mean ± std", "IQM \\[95%]", *["failed"] * failures)
    out = _headed(algorithm, f"final {rows[0].group.measure.title}s", *numbers)
    for row in rows:
        g = row.group
        form = _form(g, row.mean)
        middle = _number(row.mean, form) + (f" ± {row.std:{form}}" if math.isfinite(row.std) else "")
        iqm = _number(row.iqm, form) + _span(row.low, row.high, form)
        cells = (g.environment, g.label, str(len(g.final)), middle, iqm)
        out.add_row(*map(escape, cells), *[f"[red]{g.count('failed') or ''}[/red]"] * failures)
    return out


def _best(algorithm: str, rows: Sequence[Best]) -> Table:
    out = _headed(algorithm, "best settings", "of", "IQM", "second best")
    for row in rows:
        g, first, second = row.first.group, row.first.iqm, row.second.iqm
        form = _form(g, first)
        out.add_row(
            *map(escape, (g.environment, g.label, str(row.tried), f"{first:{form}}", f"{second:{form}}"))
        )
    return out


def _improvements(algorithm: str, rows: Sequence[Improvement]) -> Table:
    failures = any(row.failed for row in rows)
    numbers = ("seeds", "P \\[95%]", *["failed"] * failures)
    out = _headed(algorithm, "probability of improvement on Adam", *numbers)
    for row in rows:
        cells = (row.where, row.label, str(row.seeds), f"{row.probability:.2f}{row.span}")
        out.add_row(*map(escape, cells), *[f"[red]{row.failed or ''}[/red]"] * failures)
    return out


def _overheads(algorithm: str, rows: Sequence[Overhead]) -> Table:
    out = _headed(
        algorithm, "running times, of the processor", "ms a step", "Adam's", "over Adam", "in the paper"
    )
    for row in rows:
        g = row.group
        times = (_number(row.milliseconds, ",.3f"), _number(row.adam, ",.3f"))
        over = (f"{row.percent:+,.0f}%", f"{row.paper:+d}%" if row.paper is not None else "")
        out.add_row(*map(escape, (g.environment, g.label)), *times, *over)
    return out


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
