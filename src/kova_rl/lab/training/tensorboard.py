"""A run's log as an event file of TensorBoard, beside it. Nothing without the package tensorboard."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kova_rl.lab import files

__all__ = ["write_events"]

PREFIX, SUFFIX = "events.out.tfevents.", ".kova"
NO_CURVES = ("step", "seconds", "processor")


def write_events(folder: Path, records: Sequence[Mapping[str, Any]]) -> Path | None:
    """Let the folder's event file hold these records, each once; its path, None without tensorboard.

    The bytes follow from the records and from when the run began, which is in the file's name. So what a
    longer log adds is appended, which a TensorBoard that is looking notices; a file that is torn, or that
    is from a log that was cut back, is replaced.

    Args:
        folder: Of the run. No other process may write there.
        records: Of the log, from its beginning.
    """
    for left in folder.glob(f".{PREFIX}*"):  # by a write that was killed; TensorBoard would read it
        left.unlink()
    found = sorted(folder.glob(f"{PREFIX}*{SUFFIX}"))
    if found:
        path = found[0]
        began = int(path.name[len(PREFIX) : -len(SUFFIX)])
    else:
        began = int(time.time() - (records[-1]["seconds"] if records else 0))
        path = folder / f"{PREFIX}{began}{SUFFIX}"
    content = _encoded(records, began)
    if content is None:
        return None
    old = path.read_bytes() if found else b""
    if old and content.startswith(old):
        with path.open("ab") as file:
            file.write(content[len(old) :])
    else:
        files.write(path, content)
    return path


def _encoded(records: Sequence[Mapping[str, Any]], began: int) -> bytes | None:
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
    except ImportError:
        return None
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
    for record in records:
        curves = {key: value for key, value in record.items() if key not in NO_CURVES and value is not None}
        values = [Summary.Value(tag=key, simple_value=value) for key, value in curves.items()]
        event = Event(wall_time=began + record["seconds"], step=record["step"], summary=Summary(value=values))
        writer.write(event.SerializeToString())
    return buffer.getvalue()
