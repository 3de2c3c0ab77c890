"""The command ``kova sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.live import Live

from kova_rl.filter.checks import check_whole
from kova_rl.lab.pool import cores
from kova_rl.lab.training.backend import Backend
from kova_rl.lab.training.config import check_fields, unflatten
from kova_rl.lab.training.grid import expand, read_sweep
from kova_rl.lab.training.live import Dashboard, report
from kova_rl.lab.training.names import assignment
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

    examples:
      kova sweep mine.toml --jobs 4 --out runs
      kova sweep fig3 --set seed=[0,1] steps=1e5       a sweep of the package: fig3, ablation or grid
      kova sweep mine.toml --on ray                    on this machine, by Ray
      kova sweep mine.toml --on ray://HOST:10001       on a cluster; --out must be a shared folder
    """

    file: tyro.conf.Positional[str]
    """A TOML file, or fig3, ablation or grid."""
    out: Path = Path("runs")
    """Folder of the runs; made if it is not there."""
    jobs: int | None = None
    """Runs at once; one a core."""
    retries: int = 2
    """How often a run that died is tried again."""
    set: tuple[str, ...] = ()
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
        runs = expand(read_sweep(self.file), self.file, chosen)
        console = Console()
        if self.list:
            listed(Sweep(runs, self.out), console)
            return
        check_writable(self.out)
        sweep = Sweep(runs, self.out, self.retries)
        if sweep.of("waiting"):
            board = Dashboard(sweep)
            try:
                with Live(board, console=console, transient=True, refresh_per_second=2):
                    sweep.supervise(self._backend(len(sweep.of("waiting"))))
            except KeyboardInterrupt:
                console.print("Stopped. Runs that were under way go on from their last checkpoint.")
        report(sweep, console)
        if len(sweep.of("done")) < len(runs):
            raise SystemExit(1)

    def _backend(self, waiting: int) -> Backend:
        if self.on == "processes":
            from kova_rl.lab.training.processes import Processes

            return Processes(self.out, min(self.jobs or cores(), waiting))
        try:
            from kova_rl.lab.training.on_ray import RayTasks
        except ImportError:
            raise ValueError("--on ray needs Ray: pip install 'kova-rl[ray]'") from None
        return RayTasks(self.out, None if self.on == "ray" else self.on, self.jobs)


def listed(sweep: Sweep, console: Console) -> None:
    """Print the runs of a sweep and their statuses."""
    for entry in sweep.entries:
        failed = Store(sweep.root, entry.config).failure() if entry.status == "waiting" else None
        status = "failed" if failed else "missing" if entry.status == "waiting" else entry.status
        console.print(f"{status:8} {entry.config.name}", soft_wrap=True, highlight=False)
    console.print(f"{len(sweep.of('done'))} of {len(sweep.entries)} done")
