"""Many runs: those that are not finished are made, and one that dies is tried again; the others go on."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kova_rl.lab.attempt import Outcome, end_of_log
from kova_rl.lab.backends import Backend, Event
from kova_rl.lab.pack import FILE, found
from kova_rl.lab.run import MEASURES, Measure, Run
from kova_rl.lab.store import Store

__all__ = ["Entry", "Status", "Sweep"]

Status = Literal["waiting", "running", "done", "failed", "busy"]


@dataclass
class Entry:
    """A run of a sweep, and what is known of it."""

    run: Run
    status: Status = "waiting"
    before: bool = False
    """Whether it was finished before the sweep began."""
    attempts: int = 0
    step: int = 0
    begun: tuple[float, int] | None = None
    """When this try began, and, of its first record, the step."""
    score: float | None = None
    """The last value of the run's measure."""
    message: str = ""
    log: str = ""

    @property
    def measure(self) -> Measure:
        """What it is judged by."""
        return MEASURES[self.run.kind]

    @property
    def left(self) -> float | None:
        """Seconds that the run still needs, by its present speed."""
        if self.begun is None or self.step <= self.begun[1]:
            return None
        speed = (self.step - self.begun[1]) / max(time.monotonic() - self.begun[0], 1e-9)
        return max(0.0, self.run.steps - self.step) / speed


@dataclass
class Sweep:
    """Runs and their supervisor.

    Args:
        runs: Each once.
        root: Folder of the runs.
        retries: How often a run that died is tried again.
    """

    runs: Sequence[Run]
    root: Path
    retries: int = 2
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = [Entry(run) for run in self.runs]
        packed = {folder.name: folder for folder in found(self.root / FILE)} if self._packed else {}
        for entry in self.entries:
            folder = packed.get(entry.run.name)
            summary = Store(self.root, entry.run.name).summary() or (folder and folder.json("summary.json"))
            if summary:
                entry.status, entry.before = "done", True
                entry.step, entry.score = entry.run.steps, summary[f"final_{entry.measure.key}"]

    @property
    def _packed(self) -> bool:
        return (self.root / FILE).exists()

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
                    backend.start(number, entry.run)
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
        entry.step, entry.score = record["step"], record[entry.measure.key]
        if entry.begun is None:
            entry.begun = (time.monotonic(), entry.step)

    def _ended(self, entry: Entry, outcome: Outcome) -> None:
        entry.message = outcome.message
        if outcome.status == "done":
            entry.status, entry.step, entry.score = "done", entry.run.steps, outcome.final
        elif outcome.status == "busy":
            entry.status = "busy"
        elif outcome.again and entry.attempts <= self.retries:
            entry.status = "waiting"
        else:
            entry.status = "failed"
            store = Store(self.root, entry.run.name)
            entry.log = end_of_log(store.path)
            with contextlib.suppress(OSError):  # no space for that either; the sweep's report has it
                store.fail(entry.message, entry.attempts, entry.log)
