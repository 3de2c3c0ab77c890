"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["opened", "write"]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Write beside the file, then put it in its place: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write(path: Path, content: bytes) -> None:
    """The same, of content that is there already."""
    with opened(path) as file:
        file.write(content)
