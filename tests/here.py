"""A backend without processes, for tests of commands: a process loads its libraries for seconds."""

from __future__ import annotations

from pathlib import Path

from kova_rl.lab.attempt import attempt
from kova_rl.lab.backends.base import Event
from kova_rl.lab.run import Run


class Here:
    """Makes runs in this process, one after the other.

    Args:
        root: Folder of the runs.
        slots: Of no use here.
    """

    def __init__(self, root: Path, slots: int) -> None:
        self.slots, self._root = 1, root
        self._waiting: list[tuple[int, Run]] = []

    def start(self, key: int, run: Run) -> None:
        self._waiting.append((key, run))

    def events(self, timeout: float) -> list[Event]:
        found: list[Event] = []
        for key, run in self._waiting:
            outcome = attempt(run, self._root, lambda record, key=key: found.append(Event(key, record)))
            found.append(Event(key, outcome=outcome))
        self._waiting.clear()
        return found

    def close(self) -> None:
        self._waiting.clear()
