"""The runs of one critic, over its seeds, as the tables and figures want them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.markup import escape
from rich.table import Table

from kova_rl.lab.maze import Run, run_file
from kova_rl.lab.stats import with_deviation, with_interval

__all__ = ["Series", "gather", "markdown", "table"]

POINTS = 200


@dataclass(frozen=True)
class Series:
    """One critic: a row of ``rates`` for each seed."""

    name: str
    steps: NDArray[np.int64]
    rates: NDArray[np.float64]
    """Success rate, seeds x steps."""
    milliseconds: NDArray[np.float64]
    """Of processor time a step, while it learned, for each run."""
    passes: NDArray[np.float64]
    """Forward passes a step, while it learned: inputs that the network was evaluated at."""
    broken: tuple[str, ...]
    """What stopped the learning of each run that broke down."""
    broken_at: tuple[int, ...]

    @property
    def areas(self) -> NDArray[np.float64]:
        """Mean success rate over the whole run, for each seed."""
        out: NDArray[np.float64] = self.rates.mean(1)
        return out

    @property
    def final(self) -> NDArray[np.float64]:
        """Success rate at the end, for each seed."""
        out: NDArray[np.float64] = self.rates[:, -1]
        return out


def gather(jobs: Sequence[Run]) -> list[Series]:
    """Read the files of these runs; one series a name, in their order."""
    names = list(dict.fromkeys(job.name for job in jobs))
    return [_series(name, [job for job in jobs if job.name == name]) for name in names]


def _series(name: str, jobs: Sequence[Run]) -> Series:
    steps = np.linspace(0, jobs[0].steps, POINTS + 1).round().astype(np.int64)[1:]
    read = [run_file(job.path) for job in jobs]
    metas = [meta for _, _, meta in read]
    broken = [meta["broken"] for meta in metas if meta["broken"]]
    return Series(
        name,
        steps,
        np.stack([history.curve(steps) for history, _, _ in read]),
        np.array([1e3 * meta["cpu_seconds"] / learned(meta) for meta in metas]),
        np.array([meta["evaluations"] / learned(meta) for meta in metas]),
        tuple(b["error"].split(":")[0] for b in broken),
        tuple(b["step"] for b in broken),
    )


def learned(meta: Mapping[str, Any]) -> int:
    """The steps in which the run learned."""
    return max(1, int(meta.get("learned", meta["config"]["steps"])))


HEADINGS = (
    "critic",
    "success at the end",
    "mean over the run [95%]",
    "ms a step",
    "passes a step",
    "broke down",
)


def cells(series: Series) -> tuple[str, ...]:
    """A row of the table."""
    count = len(series.rates)
    broke = ""
    if series.broken:
        broke = f"{len(series.broken)} of {count}, step {min(series.broken_at):,} on ({series.broken[0]})"
    return (
        series.name,
        with_deviation(series.final),
        with_interval(series.areas),
        f"{np.median(series.milliseconds):.2f}",
        f"{series.passes.mean():,.0f}",
        broke,
    )


def table(title: str, all_series: Sequence[Series]) -> Table:
    """For the terminal: numbers stay on one line at 80 columns, and what broke down is told below."""
    rows = [cells(series) for series in all_series]
    broke = "\n".join(f"{row[0]} broke down: {row[-1]}" for row in rows if row[-1])
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
    out = Table(title=title, caption=broke or None, caption_style="", caption_justify="left", **look)
    for i, heading in enumerate(HEADINGS[:-1]):
        width = max(len(row[i]) for row in rows)
        shown = textwrap.fill(heading, max(6, width), break_long_words=False)
        out.add_column(shown, justify="left" if i == 0 else "right", overflow="fold", no_wrap=i > 0)
    for row in rows:
        out.add_row(*map(escape, row[:-1]))
    return out


def markdown(title: str, all_series: Sequence[Series]) -> str:
    """The same for a file."""
    rows = [HEADINGS, ("---", *["---:"] * 4, "---"), *(cells(series) for series in all_series)]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
