"""Files that are there whole or not at all."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kova_rl.atomic import write

__all__ = ["Job", "finished", "load", "missing", "named", "save", "write"]

META = "meta"


class Job(Protocol):
    """A run whose result goes to a file."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


AnyJob = TypeVar("AnyJob", bound=Job)


def named(*parts: str) -> str:
    """A file name of these parts, without what file systems or shells stumble over."""
    return "_".join(re.sub(r"[^a-z0-9.-]+", "-", part.lower()).strip("-") for part in parts)


def save(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """One run: arrays, and what they are as JSON, in an ``.npz`` that ``numpy.load`` reads without pickle."""
    buffer = io.BytesIO()
    described = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
    np.savez_compressed(buffer, **{**arrays, META: described})  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What :func:`save` wrote.

    Raises:
        ValueError: The file is not one of ours, or is damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        meta = json.loads(bytes(arrays.pop(META)).decode())
    except (
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} is not the data of a run, or is damaged ({error}): delete it and run again"
        ) from None
    return arrays, meta


def finished(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether the file holds a run of this configuration, ``meta["config"]``."""
    if not path.exists():
        return False
    try:
        _, meta = load(path)
    except ValueError:
        return False
    return bool(meta.get("config") == json.loads(json.dumps(config)))


def missing(jobs: Iterable[AnyJob]) -> list[AnyJob]:
    """Those that are not finished."""
    return [job for job in jobs if not finished(job.path, job.config)]
