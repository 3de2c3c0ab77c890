"""What a run is, and how one is made: from its folder to its summary, wherever it was interrupted."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kova_rl.lab import files
from kova_rl.lab.log import Log, read_log
from kova_rl.lab.store import Checkpoint, Store

__all__ = ["MEASURES", "Measure", "Refused", "Run", "Tell", "Work", "hashed", "make"]

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Measure:
    """What the runs of a kind are judged by."""

    key: str
    """In the records of the log; the summary has its last value as ``final_KEY``."""
    title: str
    """On an axis; with an s, in a heading."""
    about: str
    """In a sentence."""
    lower: bool = False
    """Whether less is better."""
    form: str = ".3f"
    """Of a number of it."""

    @property
    def better(self) -> tuple[str, str]:
        """Where what is better lies, and what is worse."""
        return ("below", "above") if self.lower else ("above", "below")


MEASURES = {
    "training": Measure("return", "return", "Return over the last 100 episodes, unnormalised.", form=",.1f"),
    "maze": Measure("success", "success rate", "Success rate over the latest episodes."),
    "evaluation": Measure("error", "value error", "Root mean square error of the values.", lower=True),
    "stream": Measure(
        "noise", "noise", "Deviation of the advantages over that of the rewards, by rollout.", lower=True
    ),
}
"""By the kind of run."""


class Refused(ValueError):
    """Settings that a run does not take: trying again is of no use."""


class Run(Protocol):
    """Something that can be made, told from others by its settings, put on any backend, and reported."""

    @property
    def kind(self) -> str:
        """In :data:`MEASURES`."""

    @property
    def name(self) -> str:
        """Of its folder: what it is, and a hash of all its settings."""

    @property
    def steps(self) -> int:
        """How long it is."""

    @property
    def seed(self) -> int:
        """Of everything random in it."""

    def flat(self) -> dict[str, Any]:
        """All settings, for JSON; ``algorithm``, ``environment``, ``critic``, ``seed`` and ``steps`` among
        them."""

    def perform(self, work: Work) -> Mapping[str, Any]:
        """Make it, from where it stands; what the summary says."""


class Work:
    """A run that is being made: its folder, its log, and where it stands.

    Args:
        store: Its folder.
        log: Open.
        start: The checkpoint to go on from; None to begin.
        tell: Called with each record.
    """

    def __init__(self, store: Store, log: Log, start: Checkpoint | None, tell: Tell) -> None:
        self.path, self.start, self.last = store.path, start, dict[str, Any]()
        self._store, self._log, self._tell = store, log, tell

    def record(self, values: dict[str, Any]) -> None:
        """Add a record to the log: ``step``, ``seconds``, the measure, and whatever else is a number."""
        self.last.update(values)
        self._log.write(values)
        self._tell(values)

    def progress(self, values: dict[str, Any]) -> None:
        """Tell how far it is, without a record."""
        self._tell(values)

    def keep(self, segment: int, state: bytes) -> None:
        """Write a checkpoint from which the run goes on exactly as it would have."""
        self._log.sync()
        self._store.save(Checkpoint(segment, self._log.count.to_bytes(8, "big") + state))

    def restart(self) -> None:
        """Forget the records: the run is made again from its beginning."""
        self.start = None
        self._log.clear()

    def logged(self) -> list[dict[str, Any]]:
        """All records so far."""
        return read_log(self._store.log_path)


def make(run: Run, root: Path, tell: Tell = lambda record: None) -> dict[str, Any]:
    """Make a run to its end, from where it stands; its summary.

    Args:
        run: The run.
        root: Folder of the runs.
        tell: Called with each record of the log.

    Raises:
        Refused: Settings that it does not take.
        Busy: Another process works on it.
    """
    store = Store(root, run.name)
    with store.locked():
        done = store.summary()
        if done is not None:
            return done
        store.begin({"kind": run.kind, **run.flat()})
        start, records = _where(store)
        with Log(store.log_path, records) as log:
            work = Work(store, log, start, tell)
            found = run.perform(work)
            key = MEASURES[run.kind].key
            last = {f"final_{key}": work.last.get(key)}
            summary = {**last, **found, "records": log.count, "log_bytes": log.sync()}
            store.finish(summary)
            return {"status": "done", **summary}


def hashed(settings: Mapping[str, Any], *parts: str) -> str:
    """The name of a run's folder: these words, and a hash of all its settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return f"{files.named(*parts)}_{digest}"


def _where(store: Store) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    """The newest checkpoint that is whole and whose log is, and the records up to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = read_log(store.log_path)
    for warning in caught:
        print(warning.message, file=sys.stderr)
    for checkpoint in store.checkpoints():
        count = int.from_bytes(checkpoint.content[:8], "big")
        if count <= len(records):
            return Checkpoint(checkpoint.segment, checkpoint.content[8:]), records[:count]
        print(
            f"{store.log_path} has {len(records)} whole records of {count} up to segment "
            f"{checkpoint.segment}: going back to the checkpoint before it, or to the start",
            file=sys.stderr,
        )
    store.drop_checkpoints()
    return None, []
