"""Files that are there whole or not at all."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.atomic import write

__all__ = ["content", "load", "named", "save", "write"]


def named(*parts: str) -> str:
    """A file name of these parts, without what file systems or shells stumble over."""
    return "_".join(re.sub(r"[^a-z0-9.-]+", "-", part.lower()).strip("-") for part in parts)


def save(path: Path, arrays: Mapping[str, NDArray[Any]], compressed: bool = True) -> None:
    """Arrays in an ``.npz`` that ``numpy.load`` reads without pickle."""
    write(path, content(arrays, compressed))


def content(arrays: Mapping[str, NDArray[Any]], compressed: bool = True) -> bytes:
    """The bytes of such a file."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def load(content: bytes, where: object) -> dict[str, NDArray[Any]]:
    """What :func:`save` wrote.

    Args:
        content: Of the file.
        where: It is from, for the error.

    Raises:
        ValueError: The file is not one of ours, or is damaged.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
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
            f"{where} is not the data of a run, or is damaged ({error}): delete it and run again"
        ) from None
