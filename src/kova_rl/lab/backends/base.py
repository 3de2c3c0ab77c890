"""What a sweep needs of the place where its runs are made."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kova_rl.lab.attempt import Outcome
from kova_rl.lab.run import Run

__all__ = ["Backend", "Event"]


class Event(NamedTuple):
    """Something that happened to the run of this key: a record of its log, or its end."""

    key: int
    record: dict[str, Any] | None = None
    outcome: Outcome | None = None


class Backend(Protocol):
    """Makes runs, each on its own."""

    slots: int
    """How many at once."""

    def start(self, key: int, run: Run) -> None:
        """Begin a try at a run."""

    def events(self, timeout: float) -> list[Event]:
        """What has happened; waits so many seconds for the first."""

    def close(self) -> None:
        """End all that is under way."""
