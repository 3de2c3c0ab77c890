"""How a sweep goes: a live table, and the report at its end."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kova_rl.lab.sweep.labels import labels
from kova_rl.lab.sweep.supervise import Sweep
from kova_rl.lab.terminal import say

__all__ = ["Dashboard", "report"]

ROWS = 20
"""Running runs that are shown."""


class Dashboard:
    """The live table of a sweep: what runs now, and how many are done, failed and waiting."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._labels = labels(sweep.runs)
        self._began = time.monotonic()
        self._steps = sum(entry.step for entry in sweep.entries)

    def __rich__(self) -> Group:
        table = Table(expand=False)
        for heading in ("running", "step", "time left", "reached"):
            table.add_column(heading, justify="left" if heading == "running" else "right")
        running = self._sweep.of("running")
        for entry in running[:ROWS]:
            share = f"{entry.step:,} of {entry.run.steps:,}"
            table.add_row(
                Text(self._labels[entry.run.name]), share, duration(entry.left), number(entry.score)
            )
        if len(running) > ROWS:
            table.add_row(f"and {len(running) - ROWS} more")
        return Group(table, Text(self.line()))

    def line(self) -> str:
        """The numbers of runs, and the time that all of them still need."""
        counts = ", ".join(
            f"{len(self._sweep.of(status))} {status}" for status in ("running", "done", "failed")
        )
        return f"{counts}, {len(self._sweep.of('waiting'))} waiting; time left {duration(self.left())}"

    def left(self) -> float | None:
        """Seconds, by the steps that were made since the sweep began."""
        made = sum(entry.step for entry in self._sweep.entries) - self._steps
        if made <= 0:
            return None
        open_runs = self._sweep.of("waiting", "running")
        steps = sum(max(0, entry.run.steps - entry.step) for entry in open_runs)
        return steps * (time.monotonic() - self._began) / made


def duration(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def report(sweep: Sweep, console: Console) -> None:
    """Say what became of the runs, and of each that failed why, with the end of its log."""
    done = sweep.of("done")
    before = sum(entry.before for entry in done)
    known = f" ({before} of them before)" if before else ""
    failed, busy = sweep.of("failed"), sweep.of("busy")
    say(console, f"{len(done)} of {len(sweep.entries)} runs done{known}, {len(failed)} failed: {sweep.root}")
    for entry in busy:
        console.print(f"[yellow]busy[/] {escape(entry.message)}", soft_wrap=True)
    for entry in failed:
        tries = "1 try" if entry.attempts == 1 else f"{entry.attempts} tries"
        console.print(
            f"[red]failed[/] after {tries}: {entry.run.name}\n  {escape(entry.message)}", soft_wrap=True
        )
        if entry.log:
            indented = "\n".join(f"  | {line}" for line in entry.log.splitlines()[-8:])
            console.print(Text(f"  the end of its log:\n{indented}"), soft_wrap=True)
    if failed or busy or sweep.of("waiting", "running"):
        say(console, "The same command again makes what is missing, and only that.")
