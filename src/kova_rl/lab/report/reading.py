"""Stored runs, read into arrays. Knows nothing of statistics or plots."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RunRecord", "read"]

Array = NDArray[np.float64]
NEEDED = {"algorithm": str, "environment": str, "critic": str, "seed": int, "steps": int}


@dataclass(frozen=True)
class RunRecord:
    """One run, finished or not."""

    name: str
    """Of its folder."""
    config: dict[str, Any]
    status: str
    """``done``, ``failed`` or ``unfinished``."""
    steps: Array
    """At which the log has a record, rising."""
    returns: Array
    """Mean over the last 100 episodes at these steps; NaN before the first."""
    seconds: float
    """Of training, in all; NaN if the log does not say."""
    final_return: float
    """NaN unless the run is done."""
    failure: dict[str, Any]
    """What ``failure.json`` says, if the run failed."""

    @property
    def algorithm(self) -> str:
        return str(self.config["algorithm"])

    @property
    def environment(self) -> str:
        return str(self.config["environment"])

    @property
    def critic(self) -> str:
        return str(self.config["critic"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scored(self) -> bool:
        """Whether it is done and has a final return, so that statistics can use it."""
        return self.status == "done" and bool(np.isfinite(self.final_return))


def read(directory: Path, progress: Callable[[int, int], None] | None = None) -> list[RunRecord]:
    """All runs below a directory, by name.

    Args:
        directory: Each folder in it that has a ``config.json`` is a run.
        progress: Called with how many are read and how many there are.

    Raises:
        ValueError: There is no such directory, it holds no runs, or a file in it is damaged.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}: name the one that the runs were written to")
    paths = sorted(path.parent for path in directory.glob("*/config.json"))
    if not paths:
        raise ValueError(
            f"{directory} holds no runs: expected folders with a config.json in it; 'kova --help' names "
            "the commands that make them"
        )
    records = []
    for i, path in enumerate(paths):
        records.append(read_run(path))
        if progress:
            progress(i + 1, len(paths))
    return records


def read_run(path: Path) -> RunRecord:
    """The run in one folder. ``summary.json`` counts before a ``failure.json`` that an early try left."""
    config = _object(path / "config.json")
    for key, kind in NEEDED.items():
        if not isinstance(config.get(key), kind):
            raise ValueError(
                f"{path / 'config.json'} must have {key!r}, a {kind.__name__}, got {config.get(key)!r}: "
                "mend it or move the folder away"
            )
    log = _log(path / "log.jsonl")
    summary, failure = (
        _object(path / name) if (path / name).exists() else {} for name in ("summary.json", "failure.json")
    )
    steps, returns, seconds = (
        np.array([_number(record.get(key)) for record in log]) for key in ("step", "return", "seconds")
    )
    last = float(seconds[-1]) if len(seconds) else float("nan")
    return RunRecord(
        name=path.name,
        config=config,
        status="done" if summary else "failed" if failure else "unfinished",
        steps=steps,
        returns=returns,
        seconds=_number(summary["seconds"]) if "seconds" in summary else last,
        final_return=_number(summary.get("final_return")),
        failure={} if summary else failure,
    )


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): mend it or move the folder away") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}: move the folder away")
    return found


def _log(path: Path) -> list[dict[str, Any]]:
    """The records; a last line that was torn, while it was written, is dropped."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    records = []
    for i, line in enumerate(lines):
        try:
            record = json.loads(line)
            record["step"] + 0
        except (ValueError, TypeError, KeyError) as error:
            if i == len(lines) - 1:
                warnings.warn(f"{path}: the last line is torn and was dropped", stacklevel=2)
                break
            raise ValueError(
                f"{path}, line {i + 1} is damaged ({error}): delete the line or the run's folder"
            ) from None
        records.append(record)
    return records
