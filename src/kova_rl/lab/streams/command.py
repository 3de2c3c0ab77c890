"""The command ``kova stream``."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.table import Table

from kova_rl import atomic
from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import NoPath, Whole
from kova_rl.lab.imports import require_sb3
from kova_rl.lab.streams.store import Stream, read

__all__ = ["COLUMNS", "Streams", "shipped"]

COLUMNS = ("stream", "critic", "seed", "noise_first", "noise_second", "error", "bias", "coverage", "seconds")


def shipped() -> dict[str, Path]:
    """The streams that come with the package, by environment."""
    folder = Path(str(resources.files("kova_rl.lab.streams"))) / "data"
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


@dataclass
class Streams:
    """Compare critics on recorded rollouts: the noise that each brings into the advantages, and its time.

    Each critic is examined on every rollout before it learns it. noise: deviation of the advantages over the
    rewards', first and second half. error, bias: against returns that contain no critic, over their own.
    coverage: of the 95% intervals, where noise is learned. A file that is there is gone on with.

    examples:
      kova stream Hopper-v5 Reacher-v5
      kova stream mine.npz --critics adam:1e-3:p10 kronecker:0.01:fan-in:p3 --out table.csv
    """

    streams: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STREAM")] = ()
    """Files of kova record, or names of those that come with the package; all of these if none is given."""
    critics: tuple[str, ...] = ()
    """Such as adam:RATE:pPASSES or low-rank:ETA:fan-in:adaptive:pPASSES; a few if none is given."""
    seeds: Whole = 1
    """Of each critic."""
    rollouts: Whole = 1000
    """Of each stream, at most."""
    out: NoPath = None
    """A CSV file for the table, and a picture beside it."""

    def run(self) -> None:
        require_sb3("kova stream")
        check_whole("--seeds", self.seeds, least=1)
        check_whole("--rollouts", self.rollouts, least=3)
        from kova_rl.lab.streams.critics import SHORT, critic_named
        from kova_rl.lab.streams.examine import examine

        torch.set_num_threads(1)
        named = {name: critic_named(name) for name in self.critics or SHORT}
        rows = _before(self.out)
        done = {(row["stream"], row["critic"], row["seed"]) for row in rows}
        for name in self.streams or tuple(shipped()):
            stream = _cut(read(shipped().get(name, Path(name))), self.rollouts)
            label = f"{stream.meta.environment}-seed{stream.meta.seed}-{len(stream.rollouts)}"
            for critic, settings in named.items():
                for seed in range(self.seeds):
                    if (label, critic, str(seed)) in done:
                        continue
                    found = examine(stream, settings, seed)
                    means = [found.error.nanmean(), found.bias.nanmean(), found.coverage.nanmean()]
                    numbers = [*found.halves, *map(float, means), found.seconds]
                    values = [label, critic, str(seed), *(f"{number:.4g}" for number in numbers)]
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
                    _write(self.out, rows)
        _print(rows, Console())
        if self.out is not None:
            from kova_rl.lab.streams.picture import picture

            print(f"Table: {self.out}, picture: {picture(rows, self.out.with_suffix('.png'))}")


def _cut(stream: Stream, rollouts: int) -> Stream:
    return Stream(stream.meta, stream.rollouts[:rollouts], stream.ratios[:rollouts])


def _before(out: Path | None) -> list[dict[str, str]]:
    if out is None or not out.exists():
        return []
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if rows and tuple(rows[0]) != COLUMNS:
        raise ValueError(f"{out} is another table than kova stream writes: give another --out")
    return rows


def _write(out: Path | None, rows: list[dict[str, str]]) -> None:
    if out is None:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic.write(out, text.getvalue().encode())


def _print(rows: list[dict[str, str]], console: Console) -> None:
    table = Table(caption="noise: deviation of the advantages over the rewards'; lower is better")
    for name in COLUMNS:
        table.add_column(name.replace("_", " "), justify="left" if name in COLUMNS[:2] else "right")
    for row in rows:
        table.add_row(*("" if _blank(row[name]) else row[name] for name in COLUMNS))
    console.print(table)


def _blank(text: str) -> bool:
    try:
        return math.isnan(float(text))
    except ValueError:
        return False
