"""The command ``kova sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from kova_rl.lab.arguments import Count, Whole
from kova_rl.lab.names import assignment
from kova_rl.lab.store import Store, check_writable
from kova_rl.lab.sweep.grid import expand, read_sweep
from kova_rl.lab.sweep.labels import differences
from kova_rl.lab.sweep.live import report
from kova_rl.lab.sweep.make import Place, made, supervise
from kova_rl.lab.sweep.search import Search, ranking, score
from kova_rl.lab.sweep.supervise import Sweep
from kova_rl.lab.terminal import say
from kova_rl.lab.training.config import check_fields, unflatten

__all__ = ["SweepRuns"]


@dataclass
class SweepRuns:
    """Train many runs: lists in a TOML file multiply out.

    The same command again makes what is missing, and only that. A file has the settings of kova train,
    [[grid]] tables for several products, and preset = "ppo" for one of the paper's tables:

      preset = "ppo"
      environment = ["Swimmer-v5", "Hopper-v5"]
      critic = ["adam", "kova"]
      seed = [0, 1, 2]

    With a table [search] Optuna proposes settings in place of a grid, and hears the mean final return:

      search.trials = 20
      search.space.eta = { low = 1e-3, high = 0.3, log = true }

    examples:
      kova sweep mine.toml --jobs 4 --out runs
      kova sweep fig3 --set seed=[0,1] steps=1e5       a sweep of the package, see below
      kova sweep mine.toml --on ray                    on this machine, by Ray
      kova sweep mine.toml --on ray://HOST:10001       on a cluster; --out must be a shared folder
    """

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A TOML file, or one of the package: fig3, control, sac, ablation, times or grid, each also with
    -desk and -smoke."""
    out: Path = Path("runs")
    """Folder of the runs; made if it is not there."""
    jobs: Count = None
    """Runs at once; one a core."""
    retries: Whole = 2
    """How often a run that died is tried again."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Settings that win over the file's, as name=value; a list multiplies out."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster."""
    list: bool = False
    """Only list the runs, and what became of them."""

    def run(self) -> None:
        """Make what is not finished, with a live table, and report."""
        place = Place(self.out, self.jobs, self.on, self.retries)
        chosen = dict(assignment("--set", each) for each in self.set)
        check_fields(unflatten(chosen), "--set")
        values, console = read_sweep(self.file), Console()
        if "search" in values:
            self._search(values, chosen, place, console)
            return
        runs = expand(values, self.file, chosen)
        if self.list:
            listed(Sweep(runs, self.out), console)
            return
        made(runs, place, console, self._words())

    def _words(self) -> tuple[object, ...]:
        chosen = ("--set", *self.set) if self.set else ()
        return ("kova", "sweep", self.file, *chosen, "--out", self.out)

    def _search(self, values: dict[str, Any], chosen: dict[str, Any], place: Place, console: Console) -> None:
        """Batch by batch; then the proposals, the best first."""
        search, tried = Search.of(values.pop("search"), self.file), []
        search.check(values, self.file, chosen)
        if self.list:
            raise ValueError(f"{self.file} is a search, whose runs are not known beforehand: see kova table")
        check_writable(self.out)
        for batch in search.proposals(values, self.file, chosen):
            runs = {run.name: run for proposal in batch for run in proposal.runs}
            sweep = Sweep(list(runs.values()), self.out, self.retries)
            if supervise(sweep, place, console, self._words()):
                raise SystemExit(130)
            for proposal in batch:
                score(proposal, sweep.entries)
            if sweep.of("failed", "busy"):
                report(sweep, console)
            tried += batch
            say(console, f"{len(tried)} of {search.trials} proposals tried")
        console.print(ranking(tried))
        if any(proposal.score is None for proposal in tried):
            raise SystemExit(1)


def listed(sweep: Sweep, console: Console) -> None:
    """Print the runs of a sweep and their statuses."""
    told = differences(sweep.runs)
    for entry in sweep.entries:
        store, status = Store(sweep.root, entry.run.name), str(entry.status)
        if status == "waiting":
            status = "failed" if store.failure() else "started" if store.started else "missing"
        say(console, f"{status:8} {entry.run.name}  {told[entry.run.name]}".rstrip())
    say(console, f"{len(sweep.of('done'))} of {len(sweep.entries)} done")
