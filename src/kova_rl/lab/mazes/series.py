"""The runs of one critic, over its seeds, as the tables and figures want them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.markup import escape
from rich.table import Table

from kova_rl.agents import History
from kova_rl.lab.pack import Folder
from kova_rl.lab.stats import with_deviation, with_interval

__all__ = ["Series", "gather", "history", "markdown", "table"]

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


def gather(folders: Sequence[Folder]) -> list[Series]:
    """Read the data of these runs; one series a label, in their order."""
    labelled: dict[str, list[Folder]] = {}
    for folder in folders:
        labelled.setdefault(folder.json("config.json")["label"], []).append(folder)
    return [_series(label, found) for label, found in labelled.items()]


def history(folder: Folder) -> History:
    """The episodes of a finished run."""
    arrays, window = folder.arrays(), int(folder.json("summary.json")["window"])
    return History(window, *(arrays[name].tolist() for name in ("ends", "successes", "returns")))


def _series(label: str, folders: Sequence[Folder]) -> Series:
    summaries = [folder.json("summary.json") for folder in folders]
    steps = np.linspace(0, summaries[0]["steps"], POINTS + 1).round().astype(np.int64)[1:]
    broken = [summary["broken"] for summary in summaries if summary["broken"]]
    learned = [max(1, summary["learned"]) for summary in summaries]
    return Series(
        label,
        steps,
        np.stack([history(folder).curve(steps) for folder in folders]),
        np.array([1e3 * s["processor"] / n for s, n in zip(summaries, learned, strict=True)]),
        np.array([s["evaluations"] / n for s, n in zip(summaries, learned, strict=True)]),
        tuple(b["error"].split(":")[0] for b in broken),
        tuple(b["step"] for b in broken),
    )


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
