"""Many runs: those that are not finished are made, and one that dies is tried again; the others go on."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kova_rl.lab.training.attempt import Outcome, end_of_log
from kova_rl.lab.training.backend import Backend, Event
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.store import Store

__all__ = ["Entry", "Status", "Sweep"]

Status = Literal["waiting", "running", "done", "failed", "busy"]


@dataclass
class Entry:
    """A run of a sweep, and what is known of it."""

    config: RunConfig
    status: Status = "waiting"
    before: bool = False
    """Whether it was finished before the sweep began."""
    attempts: int = 0
    step: int = 0
    begun: tuple[float, int] | None = None
    """When this try began, and, of its first record, the step."""
    last_return: float | None = None
    message: str = ""
    log: str = ""

    @property
    def left(self) -> float | None:
        """Seconds that the run still needs, by its present speed."""
        if self.begun is None or self.step <= self.begun[1]:
            return None
        speed = (self.step - self.begun[1]) / max(time.monotonic() - self.begun[0], 1e-9)
        return max(0.0, self.config.steps - self.step) / speed


@dataclass
class Sweep:
    """Runs and their supervisor.

    Args:
        runs: Each once.
        root: Folder of the runs.
        retries: How often a run that died is tried again.
    """

    runs: Sequence[RunConfig]
    root: Path
    retries: int = 2
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = [Entry(run) for run in self.runs]
        for entry in self.entries:
            summary = Store(self.root, entry.config).summary()
            if summary is not None:
                entry.status, entry.before = "done", True
                entry.step, entry.last_return = summary["steps"], summary["final_return"]

    def of(self, *statuses: Status) -> list[Entry]:
        """The runs of these statuses."""
        return [entry for entry in self.entries if entry.status in statuses]

    def supervise(self, backend: Backend, look: Callable[[], None] = lambda: None) -> None:
        """Make what is not finished.

        Args:
            backend: Where the runs are made.
            look: Called now and then, to show how it goes.
        """
        waiting = deque(number for number, entry in enumerate(self.entries) if entry.status == "waiting")
        try:
            while waiting or self.of("running"):
                while waiting and len(self.of("running")) < backend.slots:
                    number = waiting.popleft()
                    entry = self.entries[number]
                    entry.status, entry.begun = "running", None
                    entry.attempts += 1
                    backend.start(number, entry.config)
                for event in backend.events(timeout=0.5):
                    entry = self.entries[event.key]
                    self._note(entry, event)
                    if entry.status == "waiting":
                        waiting.append(event.key)
                look()
        finally:
            backend.close()

    def _note(self, entry: Entry, event: Event) -> None:
        if event.record is not None:
            self._progress(entry, event.record)
        if event.outcome is not None:
            self._ended(entry, event.outcome)

    def _progress(self, entry: Entry, record: dict[str, Any]) -> None:
        entry.step, entry.last_return = record["step"], record["return"]
        if entry.begun is None:
            entry.begun = (time.monotonic(), entry.step)

    def _ended(self, entry: Entry, outcome: Outcome) -> None:
        entry.message = outcome.message
        if outcome.status == "done":
            entry.status, entry.step, entry.last_return = "done", entry.config.steps, outcome.final_return
        elif outcome.status == "busy":
            entry.status = "busy"
        elif outcome.again and entry.attempts <= self.retries:
            entry.status = "waiting"
        else:
            entry.status = "failed"
            store = Store(self.root, entry.config)
            entry.log = end_of_log(store.path)
            with contextlib.suppress(OSError):  # no space for that either; the sweep's report has it
                store.fail(entry.message, entry.attempts, entry.log)
