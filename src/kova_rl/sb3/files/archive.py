"""The file: a zip of one JSON document and one ``.npy`` an array, that no code is run from."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from stable_baselines3.common.save_util import open_path

from kova_rl.atomic import opened
from kova_rl.sb3.files.codec import Array, Encoder, decode

__all__ = ["Target", "decoded", "hosts_file", "is_hosts", "is_ours", "read", "write"]

Target = str | Path | io.BufferedIOBase
DOCUMENT = "model.json"
FORMAT = 1
LIBRARIES = ("kova-rl", "stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium")
TRUST = "a file of Stable-Baselines3's own can run code: if you trust who wrote it, load it with trust=True"


def write(
    target: Target, kind: str, parts: Mapping[str, Mapping[str, Any]], may_lack: str | None = None
) -> dict[str, str]:
    """Write named parts, each a dict of values. A path gets the suffix ``.zip`` if it has none.

    Args:
        target: The file.
        kind: What it holds.
        parts: By name.
        may_lack: The part whose values are left out if a file without code can't hold them.

    Returns:
        What was left out, and why; the file has it as the part ``omitted``.

    Raises:
        TypeError: Such values in another part, all of them named.
    """
    encoder = Encoder()
    coded: dict[str, Any] = {"omitted": {}}
    refused = []
    for part, values in parts.items():
        coded[part] = {}
        for name, value in values.items():
            try:
                coded[part][name] = encoder(value, name)
            except TypeError as error:
                if part == may_lack:
                    coded["omitted"][name] = str(error)
                else:
                    refused.append(str(error))
    if refused:
        raise TypeError("\n".join(refused))
    libraries = {name: version(name) for name in LIBRARIES}
    document = {"kova_rl": kind, "format": FORMAT, "libraries": libraries, "parts": coded}
    with _writable(target) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(DOCUMENT, json.dumps(document, allow_nan=False))
        for i, array in enumerate(encoder.arrays):
            with archive.open(_member(i), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    omitted: dict[str, str] = coded["omitted"]
    return omitted


def read(
    target: Target, kind: str, *needed: str
) -> tuple[dict[str, dict[str, Any]], list[Array], dict[str, str]]:
    """The parts as they were coded, the arrays, and the versions of the libraries that wrote them.

    Args:
        target: The file.
        kind: What it must hold.
        *needed: The parts that it must have.

    Raises:
        ValueError: The file is damaged, of another kind, of a later format, or not of ours.
    """
    with _readable(target) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if DOCUMENT not in archive.namelist():
                    raise ValueError(
                        TRUST if _foreign(archive) else f"a zip without {DOCUMENT} is not a file of ours"
                    )
                document = json.loads(archive.read(DOCUMENT))
                count = sum(name.endswith(".npy") for name in archive.namelist())
                arrays = [_array(archive, i) for i in range(count)]
            found, number, parts = document["kova_rl"], document["format"], dict(document["parts"])
        except zipfile.BadZipFile as error:
            hint = TRUST if _is_pickle(file) else "it is damaged, truncated, or not a model's file"
            raise ValueError(f"{_name(target)}: {hint} ({error})") from None
        except ValueError as error:
            raise ValueError(f"{_name(target)}: {error}") from None
        except (KeyError, TypeError, EOFError, RuntimeError, MemoryError, zlib.error) as error:
            raise ValueError(f"{_name(target)} is damaged ({type(error).__name__}: {error})") from None
    if number != FORMAT:
        raise ValueError(f"{_name(target)} has the format {number}, this version of kova-rl reads {FORMAT}")
    if found != kind:
        raise ValueError(f"{_name(target)} holds a {found}, expected a {kind}")
    if not all(isinstance(parts.get(part), dict) for part in needed):
        raise ValueError(
            f"{_name(target)} is damaged: it has the parts {', '.join(parts)}, not {', '.join(needed)}"
        )
    return parts, arrays, document["libraries"]


def decoded(
    coded: Mapping[str, Any], arrays: list[Array], skip: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of one part, without those in ``skip``."""
    found = {}
    for name, value in coded.items():
        if name in (skip or {}):
            continue
        try:
            found[name] = decode(value, arrays)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def hosts_file(
    data: Mapping[str, Any],
    params: Mapping[str, Any],
    variables: Mapping[str, Any],
    libraries: Mapping[str, str],
) -> io.BytesIO:
    """A file of the host's format in memory, so that its own ``load`` does the rest.

    It holds the names of ``data`` alone, whose values ``custom_objects`` carries, and tensors, which the host
    reads with ``weights_only=True`` and puts on the device.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archived:
        archived.writestr("data", json.dumps(dict.fromkeys(data)))
        archived.writestr("system_info.txt", "\n".join(f"- {name}: {at}" for name, at in libraries.items()))
        for name, state in {**params, "pytorch_variables": dict(variables)}.items():
            with archived.open(f"{name}.pth", "w", force_zip64=True) as member:
                torch.save(state, member)
    return file


def is_ours(target: Target) -> bool:
    """Whether the file has our document; does not look into it."""
    with _readable(target) as file:
        return zipfile.is_zipfile(file) and DOCUMENT in zipfile.ZipFile(file).namelist()


def is_hosts(target: Target) -> bool:
    """Whether the file looks like one of Stable-Baselines3's own; does not look into it."""
    with _readable(target) as file:
        return zipfile.is_zipfile(file) and _foreign(zipfile.ZipFile(file))


def _foreign(archive: zipfile.ZipFile) -> bool:
    return not {"data", "policy.pth"}.isdisjoint(archive.namelist())


def _member(i: int) -> str:
    return f"arrays/{i}.npy"


def _array(archive: zipfile.ZipFile, i: int) -> Array:
    with archive.open(_member(i)) as member:
        found: Array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{_member(i)} is longer than its array")
    return found


def _is_pickle(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(1) == b"\x80"


def _name(target: Target) -> str:
    return str(target) if isinstance(target, str | Path) else "the file"


@contextmanager
def _writable(target: Target) -> Iterator[BinaryIO]:
    if isinstance(target, str | Path):
        path = Path(target)
        with opened(path if path.suffix else Path(f"{path}.zip")) as file:
            yield file
    else:
        yield open_path(target, "w")


@contextmanager
def _readable(target: Target) -> Iterator[BinaryIO]:
    file = open_path(target, "r", suffix="zip")
    try:
        yield file
    finally:
        if isinstance(target, str | Path):
            file.close()
