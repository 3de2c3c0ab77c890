"""The table of the study: one row a setting, one column a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kova_rl.lab.stats import with_interval
from kova_rl.lab.tables import Sheet

__all__ = ["Entry", "table"]

Columns = Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True)
class Entry:
    """One setting: its marks by column, one for each seed, and its mean rank over the columns."""

    name: str
    marks: dict[str, list[float]]
    rank: float
    milliseconds: list[float]

    @classmethod
    def ranked(cls, columns: Columns, cost: Mapping[str, list[float]]) -> list[Entry]:
        """Best mean rank first. Ties share their rank. In a maze larger is better, elsewhere smaller."""
        if not columns:
            return []
        names = list(next(iter(columns.values())))
        ranks = np.zeros(len(names))
        for column, by_name in columns.items():
            sign = -1 if column.startswith("maze") else 1
            means = np.array([sign * np.mean(by_name[name]) for name in names])
            better = (means[None, :] < means[:, None]).sum(1)
            level = (means[None, :] == means[:, None]).sum(1)
            ranks += (better + (level + 1) / 2) / len(columns)
        entries = [
            cls(name, {column: columns[column][name] for column in columns}, rank, cost[name])
            for name, rank in zip(names, ranks.tolist(), strict=True)
        ]
        return sorted(entries, key=lambda entry: entry.rank)

    def cells(self) -> list[str]:
        """Its row."""
        shown = [with_interval(values) for values in self.marks.values()]
        return [self.name, f"{self.rank:.1f}", *shown, f"{np.median(self.milliseconds):.2f}"]


CAPTION = (
    "Mazes: mean success rate over the run, larger is better. Tasks: geometric mean of the value error over "
    "the run, smaller is better. In brackets: 95% bootstrap interval over the seeds."
)


def table(title: str, entries: Sequence[Entry], intervals: bool = True) -> Sheet:
    """A row a setting; the terminal has no room for the intervals."""
    headings = ["setting", "mean rank", *entries[0].marks, "ms a step (mazes)"]
    rows = [entry.cells() for entry in entries]
    shown = rows if intervals else [[cell.split(" [")[0] for cell in row] for row in rows]
    return Sheet(title, headings, shown, CAPTION)
