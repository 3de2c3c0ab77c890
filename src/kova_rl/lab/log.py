"""A run's log: one JSON object a line, flushed a record at a time."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kova_rl.lab import files

__all__ = ["Log", "TornLog", "last_record", "read_log"]


class TornLog(UserWarning):
    """The end of a log is not whole: its process died while it wrote, or the file was damaged."""


def read_log(path: Path, content: bytes | None = None) -> list[dict[str, Any]]:
    """The records of a log; what follows the first damaged line is left out, with a warning.

    Args:
        path: The file.
        content: Of it, if it was read already.
    """
    records: list[dict[str, Any]] = []
    if content is None:
        content = path.read_bytes() if path.exists() else b""
    lines = content.split(b"\n") if content else []
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            break
        try:
            record = json.loads(line)
            whole = isinstance(record, dict) and number < len(lines)  # a whole line ends with a newline
        except ValueError:
            whole = False
        if not whole:
            left = len(lines) - number + bool(lines[-1])
            warnings.warn(
                f"{path}: line {number} is torn; it and what follows ({left} in all) are left out",
                TornLog,
                stacklevel=2,
            )
            break
        records.append(record)
    return records


def last_record(path: Path) -> dict[str, Any] | None:
    """The newest whole record of a log that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            lines = file.read().split(b"\n")
        return dict(json.loads(lines[-2])) if len(lines) > 1 else None
    except (OSError, ValueError):
        return None


class Log:
    """Appends records to a log, after it was cut back to those that a checkpoint knows of.

    Args:
        path: The file; made if it is not there.
        keep: The records to keep.
    """

    def __init__(self, path: Path, keep: list[dict[str, Any]]) -> None:
        text = b"".join(_line(record) for record in keep)
        if not path.exists() or path.read_bytes() != text:
            files.write(path, text)
        self.path, self.count = path, len(keep)
        self._file = path.open("ab", buffering=0)  # a write is a record, and nothing waits in a buffer

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record."""
        line = _line(record)
        while line:
            line = line[self._file.write(line) or 0 :]
        self.count += 1

    def clear(self) -> None:
        """Forget all records."""
        self._file.truncate(0)
        self.count = 0

    def sync(self) -> int:
        """Put all on the disk; the size of the file in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=True).encode() + b"\n"
