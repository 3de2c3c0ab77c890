"""The command ``kova stream``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from kova_rl.filter.checks import check_whole
from kova_rl.lab import files
from kova_rl.lab.arguments import Count, Whole
from kova_rl.lab.imports import require_sb3
from kova_rl.lab.streams.run import COLUMNS, StreamRun, csv_text, opened, rows, shipped
from kova_rl.lab.sweep.make import Place, made
from kova_rl.lab.tables import Sheet
from kova_rl.lab.terminal import NO_FIGURE, say

__all__ = ["Streams"]


@dataclass
class Streams:
    """Compare critics on recorded rollouts: the noise that each brings into the advantages, and its time.

    Each critic is examined on every rollout before it learns it. noise: deviation of the advantages over the
    rewards', first and second half. error, bias: against returns that contain no critic, over their own.
    coverage: of the 95% intervals, where noise is learned. Runs that are in --out already are not made again.

    examples:
      kova stream Hopper-v5 Reacher-v5
      kova stream mine.npz --critics adam:1e-3:p10 kronecker:0.01:fan-in:p3 --out mine
    """

    streams: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STREAM")] = ()
    """Files of kova record, or names of those that come with the package; all of these if none is given."""
    critics: tuple[str, ...] = ()
    """Such as adam:RATE:pPASSES or low-rank:ETA:fan-in:adaptive:pPASSES; a few if none is given."""
    seeds: Whole = 1
    """Of each critic."""
    rollouts: Whole = 1000
    """Of each stream, at most."""
    out: Path = Path("streams")
    """Folder for the runs, the table and its picture."""
    jobs: Count = None
    """Runs at once; one a core. Times of runs side by side do not compare."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster, as in kova sweep."""

    def run(self) -> None:
        """Make what is missing, print the table, and draw it."""
        require_sb3("kova stream")
        check_whole("--seeds", self.seeds, least=1)
        check_whole("--rollouts", self.rollouts, least=3)
        from kova_rl.lab.streams.critics import SHORT, critic_named

        names, runs, console = self.critics or SHORT, [], Console()
        for name in names:
            critic_named(name)  # a misspelt one before anything is begun
        for name in self.streams or tuple(shipped()):
            stream = opened(name, self.rollouts)
            where = name if name in shipped() else str(Path(name).resolve())
            led = "" if stream.meta.critic == "adam" else f"-{stream.meta.critic}"
            recorded = f"{stream.meta.environment}-seed{stream.meta.seed}{led}"
            runs += [
                StreamRun(where, recorded, critic, seed, len(stream.rollouts))
                for critic in names
                for seed in range(self.seeds)
            ]
        words = ("kova", "stream", *self.streams, "--critics", *names, "--out", self.out)
        self._show(rows(made(runs, Place(self.out, self.jobs, self.on), console, words)), console)

    def _show(self, table: list[dict[str, str]], console: Console) -> None:
        cells = [["" if row[name] == "nan" else row[name] for name in COLUMNS] for row in table]
        headings = [name.replace("_", " ") for name in COLUMNS]
        caption = "noise: deviation of the advantages over the rewards'; lower is better"
        console.print(Sheet("Critics on recorded rollouts", headings, cells, caption, words=(0, 1)).rich())
        files.write(self.out / "table.csv", csv_text(table).encode())
        try:
            from kova_rl.lab.streams.picture import picture
        except ImportError:
            say(console, f"Table: {self.out / 'table.csv'}. {NO_FIGURE}")
            return
        picture(table, self.out / "table")
        say(console, f"Table: {self.out / 'table.csv'}, picture: {self.out / 'table.png'}")
