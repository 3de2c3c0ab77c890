"""Runs in processes of their own on this machine, one thread each, which end when their supervisor does."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from kova_rl.lab.attempt import Outcome, attempt
from kova_rl.lab.backends.base import Event
from kova_rl.lab.run import Run

__all__ = ["Processes", "cores"]

SERVED = 32
"""Runs that a process makes before a new one takes its place."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Processes:
    """A warm pool: a process makes one run after another; one that dies is replaced.

    Args:
        root: Folder of the runs.
        slots: How many at once.
    """

    def __init__(self, root: Path, slots: int) -> None:
        self.slots, self._root = slots, root
        self._workers: list[_Worker] = []

    def start(self, key: int, run: Run) -> None:
        """Give a run to a free process, or to a new one."""
        for worker in self._workers:
            if worker.key is None and worker.give(key, run):
                return
        worker = _Worker(self._root)
        self._workers.append(worker)
        if not worker.give(key, run):
            worker.key = key  # dead already: the end of its pipe will tell

    def events(self, timeout: float) -> list[Event]:
        """What the processes have told; waits for the first."""
        found = []
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in connection.wait(list(by_pipe), timeout):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                found.extend(self._died(worker))
                continue
            assert worker.key is not None
            if isinstance(message, Outcome):
                found.append(Event(worker.key, outcome=message))
                worker.key, worker.served = None, worker.served + 1
                if worker.served >= SERVED or message.status == "failed":  # it may have left a mess
                    self._workers.remove(worker)
                    worker.end()
            else:
                found.append(Event(worker.key, record=message))
        return found

    def _died(self, worker: _Worker) -> list[Event]:
        self._workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if worker.key is None:
            return []
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return [Event(worker.key, outcome=Outcome("failed", f"its process {how}", again=True))]

    def close(self) -> None:
        """End all processes; a run in mid-way goes on from its checkpoint another time."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    """A process, the pipe to it, and the run that it makes."""

    def __init__(self, root: Path) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, root), daemon=True)
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))  # read when the process loads its libraries
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()  # so that the end of the process is the end of the pipe
        self.key: int | None = None
        self.served = 0

    def give(self, key: int, run: Run) -> bool:
        """False if the process is no longer there."""
        try:
            self.pipe.send(run)
        except OSError:
            return False
        self.key = key
        return True

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with_parent() -> None:
    """In a thread of a worker, which would go on for hours, unseen, if its parent were killed."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _serve(pipe: Any, root: Path) -> None:
    """In the process: make the runs that come through the pipe."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the supervisor decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return

        pipe.send(attempt(run, root, pipe.send))
