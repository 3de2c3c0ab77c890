"""Many runs: those that are not finished are made, on a backend, and shown while they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

from kova_rl.filter.checks import check_whole
from kova_rl.lab.backends import connect
from kova_rl.lab.imports import require_sb3
from kova_rl.lab.pack import Folder, found
from kova_rl.lab.run import Run
from kova_rl.lab.store import check_writable
from kova_rl.lab.sweep.live import Dashboard, report
from kova_rl.lab.sweep.noted import add_command
from kova_rl.lab.sweep.supervise import Sweep
from kova_rl.lab.terminal import NowAndThen, say

__all__ = ["Place", "made", "make_all", "supervise"]


@dataclass(frozen=True)
class Place:
    """Where runs are made, and how many at once.

    Args:
        root: Folder of the runs.
        jobs: Runs at once; None is one a core.
        on: ``processes``, ``ray``, or the address of a Ray cluster.
        retries: How often a run that died is tried again.
    """

    root: Path
    jobs: int | None = None
    on: str = "processes"
    retries: int = 2

    def __post_init__(self) -> None:
        check_whole("--retries", self.retries, least=0)
        if self.jobs is not None:
            check_whole("--jobs", self.jobs, least=1)


def make_all(runs: Sequence[Run], place: Place, console: Console, words: Sequence[object] = ()) -> Sweep:
    """Make what is not finished and report; after Ctrl-C some runs are waiting or running still.

    Args:
        runs: All of them.
        place: Where.
        console: Where it is shown.
        words: The command, for the page.
    """
    check_writable(place.root)
    sweep = Sweep(runs, place.root, place.retries)
    supervise(sweep, place, console, words)
    report(sweep, console)
    return sweep


def made(runs: Sequence[Run], place: Place, console: Console, words: Sequence[object] = ()) -> list[Folder]:
    """The folders of the runs, in their order, all of which are made now; ends the command if one is not."""
    sweep = make_all(runs, place, console, words)
    if len(sweep.of("done")) < len(runs):
        raise SystemExit(130 if sweep.of("waiting", "running") else 1)
    folders = {folder.name: folder for folder in found(place.root)}
    return [folders[run.name] for run in runs]


def supervise(sweep: Sweep, place: Place, console: Console, words: Sequence[object] = ()) -> bool:
    """Make what is waiting, with a live table. Whether Ctrl-C ended it."""
    waiting = sweep.of("waiting")
    if any(entry.run.kind == "training" for entry in waiting) and place.on in ("processes", "ray"):
        require_sb3("training")  # a cluster has libraries of its own
    backend = connect(place.on, place.root, place.jobs, len(waiting)) if waiting else None
    if words:
        add_command(place.root, words)
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
