"""Many runs at once: one process a core, one thread a process, and a progress bar."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kova_rl.lab.terminal import NowAndThen

__all__ = ["cores", "end_with_parent", "run_all"]

Job = TypeVar("Job")
Result = TypeVar("Result")
Tick = Callable[[int], None]

_ticks: Any = None
"""In a worker: a number that all workers share and add to."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(ticks: Any) -> None:
    global _ticks
    _ticks = ticks
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """In a thread of a worker, which would go on for hours, unseen, if its parent were killed."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _tick(n: int) -> None:
    with _ticks.get_lock():
        _ticks.value += n


def _work(function: Callable[[Job, Tick], Result], job: Job) -> Result:
    return function(job, _tick)


def run_all(
    function: Callable[[Job, Tick], Result],
    jobs: Sequence[Job],
    *,
    title: str,
    ticks: int,
    workers: int | None = None,
    console: Console | None = None,
) -> list[Result]:
    """Call ``function(job, tick)`` for each job, in processes of their own; results in the order of the jobs.

    The processes are spawned, so a script that calls this needs ``if __name__ == "__main__"``.

    Args:
        function: At the top level of a module. It calls ``tick(n)`` when n more ticks are done.
        jobs: What it is called with; must pickle.
        title: Beside the progress bar.
        ticks: How many ticks all jobs make together.
        workers: How many processes; None is one a core.
        console: Where the bar goes, or a line now and then if it is no terminal; None is standard output.
    """
    if not jobs:
        return []
    context = get_context("spawn")
    shared = context.Value("q", 0)
    workers = min(workers or cores(), len(jobs))
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")),
        *(
            TextColumn("{task.fields[done]} of {task.fields[all]} runs"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        ),
    )
    with (
        Progress(*columns, console=console, transient=True) as progress,
        ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(shared,)) as pool,
    ):
        bar, now = progress.add_task(title, total=ticks, done=0, all=len(jobs)), NowAndThen(progress.console)

        def line() -> str:
            share = 100 * shared.value / max(1, ticks)
            return f"{title}: {share:.0f}%, {len(jobs) - len(waiting)} of {len(jobs)} runs"

        futures: list[Future[Result]] = [pool.submit(_work, function, job) for job in jobs]
        waiting = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                progress.update(bar, completed=shared.value, done=len(jobs) - len(waiting))
                now(line)
                for future in done:
                    future.result()  # raise the first error as soon as it comes
        except BaseException:
            workers_alive = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers_alive:  # their work would be thrown away
                process.terminate()
            raise
    return [future.result() for future in futures]
