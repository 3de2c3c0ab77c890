"""The runs of one critic, over its seeds, as the tables and figures want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from kova_rl.agents import History
from kova_rl.lab.pack import Folder
from kova_rl.lab.stats import with_deviation, with_interval
from kova_rl.lab.tables import Sheet

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
    """For the terminal: what broke down is told below."""
    rows = [cells(series) for series in all_series]
    broke = "\n".join(f"{row[0]} broke down: {row[-1]}" for row in rows if row[-1])
    return Sheet(title, HEADINGS[:-1], [row[:-1] for row in rows], broke).rich()


def markdown(title: str, all_series: Sequence[Series]) -> str:
    """The same for a file."""
    return Sheet(title, HEADINGS, [cells(series) for series in all_series], words=(0, 5)).markdown()
