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

__all__ = ["DamagedRun", "RunRecord", "read"]

Array = NDArray[np.float64]
NEEDED = {"algorithm": str, "environment": str, "critic": str, "seed": int, "steps": int}


LOGGED: dict[str, tuple[tuple[str, int], ...]] = {
    "policy entropy": (("train/entropy", 1), ("train/entropy_loss", -1)),
    "policy loss": (
        ("train/policy_gradient_loss", 1),
        ("train/policy_objective", -1),
        ("train/actor_loss", 1),
    ),
    "explained variance": (("train/explained_variance", 1),),
    "value loss": (("train/value_loss", 1),),
}
"""Curves beside the return: the key that algorithms log them under, and its sign; the first found counts."""


class DamagedRun(UserWarning):
    """Something in a run's folder could not be read."""


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
    logged: dict[str, Array]
    """What the algorithm says of policy and critic at these steps, by its name in :data:`LOGGED`."""
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
    def reached(self) -> int:
        """The last step that is in the log."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def scored(self) -> bool:
        """Whether it is done and has a final return, so that statistics can use it."""
        return self.status == "done" and bool(np.isfinite(self.final_return))


def read(directory: Path, progress: Callable[[int, int], None] | None = None) -> list[RunRecord]:
    """All runs below a directory, by name. What is damaged is left out, with a :class:`DamagedRun` warning.

    Args:
        directory: Each folder in it that has a ``config.json`` is a run.
        progress: Called with how many are read and how many there are.

    Raises:
        ValueError: There is no such directory, or it holds no runs.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}: name the one that the runs were written to")
    paths = sorted(path.parent for path in directory.glob("*/config.json"))
    records = []
    for i, path in enumerate(paths):
        record = read_run(path)
        if record is not None:
            records.append(record)
        if progress:
            progress(i + 1, len(paths))
    if not records:
        raise ValueError(
            f"{directory} holds no runs: expected folders with a config.json in it; 'kova --help' names "
            "the commands that make them"
        )
    return records


def read_run(path: Path) -> RunRecord | None:
    """The run in one folder; None if its configuration cannot be read.

    A ``summary.json`` counts before a ``failure.json`` that an early try left. Without a whole log a run
    is not done.
    """
    config = _object(path / "config.json")
    for key, kind in NEEDED.items():
        if config is not None and not isinstance(config.get(key), kind):
            _warn(f"{path / 'config.json'} must have {key!r}, a {kind.__name__}, got {config.get(key)!r}")
            config = None
    if config is None:
        return None
    log, whole = _log(path / "log.jsonl")
    summary = _object(path / "summary.json") if whole else None
    if summary and "log_bytes" in summary and summary["log_bytes"] != (path / "log.jsonl").stat().st_size:
        _warn(f"{path / 'log.jsonl'} has changed since the run was finished; its summary")
        summary = None
    failure = _object(path / "failure.json")
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
        seconds=_number((summary or {}).get("seconds", last)),
        final_return=_number((summary or {}).get("final_return")),
        logged=_logged(log),
        failure={} if summary else failure or {},
    )


def _logged(log: list[dict[str, Any]]) -> dict[str, Array]:
    found = {}
    for name, sources in LOGGED.items():
        for key, sign in sources:
            if any(record.get(key) is not None for record in log):
                found[name] = sign * np.array([_number(record.get(key)) for record in log])
                break
    return found


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _warn(message: str) -> None:
    warnings.warn(f"{message}: left out", DamagedRun, stacklevel=4)


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file, or something else in it."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        _warn(f"{path} is damaged ({error})")
        return None
    if not isinstance(found, dict):
        _warn(f"{path} must be a JSON object, got {type(found).__name__}")
        return None
    return found


def _log(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The records up to the first line that is torn or damaged, and whether there is none such."""
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines() if path.exists() else []
    for i, line in enumerate(lines):
        try:
            record = json.loads(line)
            record["step"] + 0
        except (ValueError, TypeError, KeyError):
            _warn(f"{path}: line {i + 1} of {len(lines)} is torn; it and what follows")
            return records, False
        records.append(record)
    return records, bool(records)
