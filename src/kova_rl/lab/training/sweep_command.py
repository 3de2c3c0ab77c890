"""The command ``kova sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.live import Live

from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import Count, Whole
from kova_rl.lab.imports import require_sb3
from kova_rl.lab.pool import cores
from kova_rl.lab.terminal import NowAndThen, say
from kova_rl.lab.training.backend import Backend
from kova_rl.lab.training.commands import add_command
from kova_rl.lab.training.config import RunConfig, check_fields, unflatten
from kova_rl.lab.training.grid import expand, read_sweep
from kova_rl.lab.training.labels import differences
from kova_rl.lab.training.live import Dashboard, report
from kova_rl.lab.training.names import assignment
from kova_rl.lab.training.search import Search, ranking, score
from kova_rl.lab.training.store import Store, check_writable
from kova_rl.lab.training.sweep import Sweep

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
    """A TOML file, or one of the package: fig3, ablation, times or grid, and each with -desk and -smoke."""
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
        check_whole("--retries", self.retries, least=0)
        if self.jobs is not None:
            check_whole("--jobs", self.jobs, least=1)
        chosen = dict(assignment("--set", each) for each in self.set)
        check_fields(unflatten(chosen), "--set")
        values, console = read_sweep(self.file), Console()
        if "search" in values:
            self._search(values, chosen, console)
            return
        runs = expand(values, self.file, chosen)
        if self.list:
            listed(Sweep(runs, self.out), console)
            return
        sweep = self.make(runs, console, self._words())
        if len(sweep.of("done")) < len(runs):
            raise SystemExit(130 if sweep.of("waiting", "running") else 1)

    def make(self, runs: Sequence[RunConfig], console: Console, words: Sequence[object]) -> Sweep:
        """Make what is not finished and report; after Ctrl-C some runs are waiting or running still.

        Args:
            runs: All of the sweep.
            console: Where it is shown.
            words: The command, for the page.
        """
        check_writable(self.out)
        sweep = Sweep(runs, self.out, self.retries)
        self._supervise(sweep, console, words)
        report(sweep, console)
        return sweep

    def _words(self) -> tuple[object, ...]:
        chosen = ("--set", *self.set) if self.set else ()
        return ("kova", "sweep", self.file, *chosen, "--out", self.out)

    def _supervise(self, sweep: Sweep, console: Console, words: Sequence[object]) -> bool:
        """Whether Ctrl-C ended it."""
        waiting = len(sweep.of("waiting"))
        backend = self._backend(waiting) if waiting else None
        add_command(self.out, words)
        if backend is None:
            return False
        try:
            board, now = Dashboard(sweep), NowAndThen(console)
            with Live(board, console=console, transient=True, refresh_per_second=2):
                sweep.supervise(backend, lambda: now(board.line))
        except KeyboardInterrupt:
            say(console, "Stopped. The same command goes on from the last checkpoint of each run.")
            return True
        return False

    def _search(self, values: dict[str, Any], chosen: dict[str, Any], console: Console) -> None:
        """Batch by batch; then the proposals, the best first."""
        search, tried = Search.of(values.pop("search"), self.file), []
        search.check(values, self.file, chosen)
        if self.list:
            raise ValueError(f"{self.file} is a search, whose runs are not known beforehand: see kova table")
        check_writable(self.out)
        for batch in search.proposals(values, self.file, chosen):
            runs = {run.name: run for proposal in batch for run in proposal.runs}
            sweep = Sweep(list(runs.values()), self.out, self.retries)
            if self._supervise(sweep, console, self._words()):
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

    def _backend(self, waiting: int) -> Backend:
        if self.on in ("processes", "ray"):  # a cluster has libraries of its own
            require_sb3("training")
        if self.on == "processes":
            from kova_rl.lab.training.processes import Processes

            return Processes(self.out, min(self.jobs or cores(), waiting))
        from kova_rl.lab.training.on_ray import RayTasks

        return RayTasks(self.out, None if self.on == "ray" else self.on, self.jobs)


def listed(sweep: Sweep, console: Console) -> None:
    """Print the runs of a sweep and their statuses."""
    told = differences(sweep.runs)
    for entry in sweep.entries:
        store, status = Store(sweep.root, entry.config), str(entry.status)
        if status == "waiting":
            status = "failed" if store.failure() else "started" if store.started else "missing"
        say(console, f"{status:8} {entry.config.name}  {told[entry.config.name]}".rstrip())
    say(console, f"{len(sweep.of('done'))} of {len(sweep.entries)} done")
