"""The folders of runs: as they are on the disk, or many of finished ones in a single file."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kova_rl.lab import files
from kova_rl.lab.store import DATA

__all__ = ["FILE", "Folder", "found", "one", "pack"]

FILE = "runs.tar.xz"
"""In the place of the folders it holds."""
LOG, SUMMARY = "log.jsonl", "summary.json"
KEPT = ("config.json", "versions.json", LOG, DATA, SUMMARY, "failure.json")
"""Of a folder; models, checkpoints and event files are left out."""
DIGITS = 4
"""Of a number in a packed log, which are most of what a packed file takes: a curve needs no more."""


class Folder:
    """The files of one run, in a directory or out of a packed file.

    Args:
        path: The directory, or where it would be.
        packed: The contents of its files, if it is packed.
    """

    def __init__(self, path: Path, packed: Mapping[str, bytes] | None = None) -> None:
        self.path, self._packed = path, packed

    @property
    def name(self) -> str:
        """Of the run."""
        return self.path.name

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        if self._packed is not None:
            return self._packed.get(name)
        path = self.path / name
        return path.read_bytes() if path.exists() else None

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file of a finished run.

        Raises:
            ValueError: It is not there, or is damaged.
        """
        try:
            read: dict[str, Any] = json.loads(self.read(name) or b"")
        except ValueError:
            raise ValueError(f"{self.path / name} is missing or damaged: make the run again") from None
        return read

    def arrays(self) -> dict[str, Any]:
        """What the run left beside its log.

        Raises:
            ValueError: There are none, or they are damaged.
        """
        return files.load(self.read(DATA) or b"", self.path / DATA)


def found(where: Path) -> list[Folder]:
    """The runs in a folder, its packed file included, or in a packed file alone, by name.

    Raises:
        ValueError: There is no such folder or file.
    """
    if where.is_file():
        return sorted(_packed(where), key=lambda folder: folder.name)
    if not where.is_dir():
        raise ValueError(f"there is no directory {where}: name the one that the runs were written to")
    folders = {folder.name: folder for folder in _packed(where / FILE)} if (where / FILE).exists() else {}
    folders |= {path.parent.name: Folder(path.parent) for path in where.glob("*/config.json")}
    return [folders[name] for name in sorted(folders)]


def one(path: Path) -> Folder:
    """The run of this folder, or whose name in the folder above begins so: the hash may be left out.

    Raises:
        ValueError: There is none, or several.
    """
    if path.suffix == ".npz":  # as it was before: FOLDER/data/NAME.npz
        path = path.parent.parent / path.stem
    if (path / "config.json").exists():
        return Folder(path)
    inside = found(path.parent) if path.parent.exists() else []
    begun = [folder for folder in inside if folder.name.startswith(path.name)]
    if len(begun) == 1:
        return begun[0]
    if path.is_dir() or (begun and path.name):
        names = "\n  ".join(str(folder.path) for folder in (begun or found(path))[:12])
        raise ValueError(f"{path} is no single run; name one of these:\n  {names or 'none'}")
    raise ValueError(f"there is no run {path}: 'kova reproduce fig2 --scale smoke' makes some")


def pack(root: Path) -> Path:
    """Put all finished runs of a folder into one file, in place of their folders.

    The same runs make the same bytes. Of the numbers in a log four digits are kept, of those in the summary,
    which has what was reached in the end, all.

    Raises:
        ValueError: A run is not finished.
    """
    folders = found(root)
    open_ = [folder.name for folder in folders if folder.read(SUMMARY) is None]
    if open_ or not folders:
        said = f"{open_[0]} is not finished: give the command that makes it again" if open_ else "no runs"
        raise ValueError(f"only finished runs are packed, {root} has {said}")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        contents = {folder.name: _contents(folder) for folder in folders}
        for name in KEPT:  # like beside like, which packs best
            for run, kept in contents.items():
                if name in kept:
                    member = tarfile.TarInfo(f"{run}/{name}")
                    member.size = len(kept[name])
                    archive.addfile(member, io.BytesIO(kept[name]))
    files.write(root / FILE, lzma.compress(raw.getvalue(), preset=9))
    for folder in folders:
        if folder.path.is_dir():
            shutil.rmtree(folder.path)
    return root / FILE


def _contents(folder: Folder) -> dict[str, bytes]:
    """The files of a run, as they are packed."""
    kept = {name: content for name in KEPT if (content := folder.read(name)) is not None}
    if DATA in kept:
        kept[DATA] = files.content(folder.arrays(), compressed=False)
    summary = folder.json(SUMMARY)
    if LOG in kept and summary.get("log_bytes") == len(kept[LOG]):  # else it is damaged, and stays so
        lines = (json.loads(line, parse_float=_rounded) for line in kept[LOG].splitlines())
        kept[LOG] = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        kept[SUMMARY] = json.dumps({**summary, "log_bytes": len(kept[LOG])}, indent=1).encode()
    return kept


def _rounded(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def _packed(path: Path) -> Iterator[Folder]:
    """The runs of a packed file. Nothing is written: names in it can't lead anywhere."""
    contents: dict[str, dict[str, bytes]] = {}
    try:
        whole = io.BytesIO(lzma.decompress(path.read_bytes()))  # to its last byte, which tarfile alone leaves
        with tarfile.open(fileobj=whole, mode="r:") as archive:
            for member in archive:
                run, _, name = member.name.partition("/")
                file = archive.extractfile(member)
                if file is None or name not in KEPT or run in ("", ".", ".."):
                    raise ValueError(f"it holds {member.name!r}, which is no file of a run")
                contents.setdefault(run, {})[name] = file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is damaged, or holds no runs ({error})") from None
    for run, packed in contents.items():
        yield Folder(path.parent / run, packed)
