"""A run's directory: configuration, versions, log, checkpoints, summary, and the lock that guards them."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from kova_rl.lab import files
from kova_rl.lab.log import read_log
from kova_rl.lab.versions import versions

__all__ = ["Busy", "Checkpoint", "Store", "check_writable", "explained"]

KEPT = 2
"""Checkpoints that are kept: if the newest is damaged, the one before it serves."""
DATA = "data.npz"
"""Arrays that a run leaves beside its log."""
NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Busy(RuntimeError):
    """Another process works on this run."""


class Checkpoint(NamedTuple):
    """Where a run stood at the start of a segment."""

    segment: int
    content: bytes


class Store:
    """The directory of one run, ``root/<name>``.

    Args:
        root: Folder of the runs.
        name: Of the run.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        self.log_path = self.path / "log.jsonl"
        self._checkpoints = self.path / "checkpoints"

    # ------------------------------------------------------------------ what became of the run

    def summary(self) -> dict[str, Any] | None:
        """What a finished run left; None if it is not finished, or its log is no longer what it was."""
        found = read_json(self.path / "summary.json")
        if found is None or found.get("status") != "done":
            return None
        whole = self.log_path.exists() and self.log_path.stat().st_size == found.get("log_bytes")
        return found if whole else None

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any(self._checkpoints.glob("*.ckpt"))

    def failure(self) -> dict[str, Any] | None:
        """Why a run was given up; None if it was not."""
        return read_json(self.path / "failure.json")

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down what the run is and what it runs with; forget how it failed before."""
        write_json(self.path / "config.json", settings)
        for stale in ("failure.json", "summary.json"):
            (self.path / stale).unlink(missing_ok=True)
        now, before = versions(), read_json(self.path / "versions.json") or {}
        earlier = before.pop("resumed_from", None)
        if before not in ({}, now) and self.started:
            changed = sorted(key for key in now | before if now.get(key) != before.get(key))
            print(
                f"{self.path}: resumed with another {', '.join(changed)}, so it may differ from an "
                "undisturbed run",
                file=sys.stderr,
            )
            earlier = before
        if earlier is not None:
            now["resumed_from"] = earlier
        write_json(self.path / "versions.json", now)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, the last file of a run, and remove what only a resume would need."""
        write_json(self.path / "summary.json", {"status": "done", **summary})
        self.drop_checkpoints()

    def forget(self) -> None:
        """Remove the folder of a run that was refused before its first step."""
        if not self.started and not read_log(self.log_path):
            shutil.rmtree(self.path, ignore_errors=True)

    def fail(self, message: str, attempts: int, log: str) -> None:
        """Write down why the run was given up."""
        write_json(
            self.path / "failure.json",
            {"status": "failed", "attempts": attempts, "message": message, "log": log},
        )

    # ------------------------------------------------------------------ checkpoints

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint under a name that has its checksum, and the one before it."""
        digest = hashlib.sha256(checkpoint.content).hexdigest()[:32]
        path = self._checkpoints / f"{checkpoint.segment:04d}-{digest}.ckpt"
        files.write(path, checkpoint.content)
        for old in sorted(self._checkpoints.iterdir())[
            :-KEPT
        ]:  # and what a killed write left, which begins with .
            old.unlink()

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Those that are whole, the newest first; a message for each that is not."""
        for path in sorted(self._checkpoints.glob("[0-9]*.ckpt"), reverse=True):
            segment, _, digest = path.stem.partition("-")
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest()[:32] == digest:
                yield Checkpoint(int(segment), content)
            else:
                print(f"{path} is damaged: going back to the one before it, or to the start", file=sys.stderr)

    def drop_checkpoints(self) -> None:
        """Remove all of them."""
        if self._checkpoints.exists():
            for path in self._checkpoints.iterdir():
                path.unlink()
            self._checkpoints.rmdir()

    # ------------------------------------------------------------------ one process at a time

    @contextmanager
    def locked(self, patience: float = 5.0) -> Iterator[None]:
        """Hold the run's lock, which vanishes with this process, and its file when it is let go.

        Args:
            patience: Seconds to wait for a process that is just ending.

        Raises:
            Busy: Another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "lock"
        held = FileLock(path)
        try:
            held.acquire(timeout=patience)
        except Timeout:
            raise Busy(f"another process works on {self.path}: wait until it has ended") from None
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()  # while it is held: who waits for it looks again
            held.release()


def check_writable(root: Path) -> None:
    """Raise ``ValueError`` unless files can be made in this folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ValueError(explained(error, root)) from None


def explained(error: Exception, where: Path) -> str:
    """What an error means for a run that writes in this folder."""
    if isinstance(error, OSError) and _concerns(error, where.resolve()):
        if error.errno in NO_SPACE:
            return f"no space left in {where} ({error.strerror}): free some, then give the same command again"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"may not write in {where} ({error.strerror}): choose another --out, or mend its rights"
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            return f"{where} can't be a folder ({error.strerror}): choose another --out"
    return f"{type(error).__name__}: {error}"


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether it is about this folder, and not about a file of the environment's."""
    if not isinstance(error.filename, str | Path):
        return error.errno in NO_SPACE  # of a write, which names no file
    path = Path(error.filename).resolve()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    files.write(path, json.dumps(values, indent=1).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in this file; None if there is none, or the file is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
