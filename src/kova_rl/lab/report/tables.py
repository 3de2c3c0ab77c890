"""The tables of the report: what stands in each column, for the page and the terminal alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kova_rl.lab.report.groups import Group
from kova_rl.lab.report.reading import RunRecord

__all__ = ["BEST", "FINALS", "IMPROVEMENTS", "OVERHEADS", "RUNS", "Cell", "Table", "number"]


class Cell(NamedTuple):
    """What is shown, and what it is sorted by."""

    shown: str
    value: str
    kind: str = ""
    """Its class on the page."""
    key: tuple[str, str] | None = None
    """Algorithm and label, for a dot in their colour before it."""


def text(value: object, kind: str = "") -> Cell:
    """Words."""
    return Cell(str(value), str(value), kind)


def number(value: float | None, form: str = ",.1f", after: str = "") -> Cell:
    """A number and what is said after it; empty if there is none.

    Example:
        >>> number(1234.56)[:2], number(None)[:2]
        (('1,234.6', '1234.56'), ('', ''))
    """
    if value is None or not math.isfinite(value):
        return Cell("", "", "number")
    return Cell(f"{value:{form}}{after}", f"{value:.6g}", "number")


def label(g: Group) -> Cell:
    """A group beside its colour."""
    return Cell(g.label, g.label, "wide" if len(g.label) > 40 else "", (g.algorithm, g.label))


def failed(count: int) -> Cell:
    """How many runs; nothing if none."""
    return Cell(str(count or ""), str(count), "number")


def spread(value: float, low: float, high: float, g: Group) -> Cell:
    """A mark of a group and its interval, if it has one."""
    form = g.form(value)
    return number(value, form, f" [{low:{form}}, {high:{form}}]" if math.isfinite(low) else "")


def around(mean: float, std: float, g: Group) -> Cell:
    """A mean and the deviation, if it has one."""
    form = g.form(mean)
    return number(mean, form, f" ± {std:{form}}" if math.isfinite(std) else "")


class Column(NamedTuple):
    """A heading, and the cell of each row."""

    heading: str
    cell: Callable[[Any], Cell]
    page: bool = False
    """Whether only the page has it: a terminal is narrow."""


@dataclass(frozen=True)
class Table:
    """Columns of rows of one kind."""

    name: str
    title: str
    rows: str
    """What its rows are."""
    columns: tuple[Column, ...]

    def cells(self, rows: Sequence[Any], page: bool) -> tuple[list[str], list[list[Cell]]]:
        """Headings and cells; a column that is empty in every row is left out."""
        found = [(c.heading, [c.cell(row) for row in rows]) for c in self.columns if page or not c.page]
        full = [(heading, cells) for heading, cells in found if any(cell.shown for cell in cells)]
        columns = [cells for _, cells in full]
        return [heading for heading, _ in full], [list(row) for row in zip(*columns, strict=True)]


FINALS = Table(
    "finals",
    "final {}s",
    "settings",
    (
        Column("environment", lambda r: text(r.group.environment)),
        Column("algorithm", lambda r: text(r.group.algorithm), page=True),
        Column("critic", lambda r: label(r.group)),
        Column("mean ± std", lambda r: around(r.mean, r.std, r.group)),
        Column("IQM [95%]", lambda r: spread(r.iqm, r.low, r.high, r.group)),
        Column("seeds", lambda r: number(len(r.group.final), "d")),
        Column("steps", lambda r: number(r.group.steps, ",d"), page=True),
        Column("seconds", lambda r: number(r.group.seconds), page=True),
        Column("failed", lambda r: failed(r.group.count("failed"))),
    ),
)
BEST = Table(
    "best",
    "best settings",
    "choices",
    (
        Column("environment", lambda r: text(r.first.group.environment)),
        Column("algorithm", lambda r: text(r.first.group.algorithm), page=True),
        Column("best setting", lambda r: label(r.first.group)),
        Column("IQM [95%]", lambda r: spread(r.first.iqm, r.first.low, r.first.high, r.first.group)),
        Column("second best", lambda r: text(r.second.group.label), page=True),
        Column("its IQM", lambda r: number(r.second.iqm, r.first.group.form(r.second.iqm))),
        Column("seeds", lambda r: number(len(r.first.group.final), "d"), page=True),
        Column("settings", lambda r: number(r.tried, "d")),
    ),
)
IMPROVEMENTS = Table(
    "improvements",
    "probability of improvement on Adam",
    "comparisons",
    (
        Column("environment", lambda r: text(r.where)),
        Column("algorithm", lambda r: text(r.algorithm), page=True),
        Column("critic", lambda r: Cell(r.label, r.label, "", (r.algorithm, r.label))),
        Column("P(better than Adam) [95%]", lambda r: number(r.probability, ".2f", r.span)),
        Column("seeds", lambda r: number(r.seeds, "d")),
        Column("failed", lambda r: failed(r.failed)),
    ),
)
OVERHEADS = Table(
    "overheads",
    "running times, of the processor",
    "comparisons",
    (
        Column("environment", lambda r: text(r.group.environment)),
        Column("algorithm", lambda r: text(r.group.algorithm), page=True),
        Column("critic", lambda r: label(r.group)),
        Column("ms a step", lambda r: number(r.milliseconds, ",.3f")),
        Column("Adam's", lambda r: number(r.adam, ",.3f")),
        Column("over Adam", lambda r: number(r.percent, "+,.0f", "%")),
        Column("KOVA in the paper", lambda r: number(r.paper, "+d", "%")),
    ),
)


def _status(run: RunRecord) -> Cell:
    return text(run.status, "failed" if run.status == "failed" else "")


RUNS = Table(
    "runs",
    "all runs",
    "runs",
    (
        Column("run", lambda r: text(r.name)),
        Column("status", _status),
        Column("environment", lambda r: text(r.environment)),
        Column("algorithm", lambda r: text(r.algorithm)),
        Column("critic", lambda r: text(r.critic)),
        Column("seed", lambda r: number(r.seed, "d")),
        Column("final", lambda r: number(r.final, r.measure.form)),
        Column("seconds", lambda r: number(r.seconds)),
    ),
)
