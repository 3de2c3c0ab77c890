"""Stored runs, read into arrays. Knows nothing of statistics or plots."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.lab.log import TornLog, read_log
from kova_rl.lab.pack import Folder, found
from kova_rl.lab.run import MEASURES, Measure

__all__ = ["DamagedRun", "RunRecord", "read"]

Array = NDArray[np.float64]
NEEDED = {"algorithm": str, "environment": str, "critic": str, "seed": int, "steps": int}
OPTIONS = "environment_options."
ENDS = ("steps", "seconds", "processor")


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
    scores: Array
    """The measure at these steps; NaN before the first."""
    reached: int
    """Steps that were made, which may be more than the configuration has."""
    seconds: float
    """Of training, in all; NaN if the log does not say."""
    processor: float
    """The same of the processor."""
    final: float
    """The measure at the end; NaN unless the run is done."""
    logged: dict[str, Array]
    """What the algorithm says of policy and critic at these steps, by its name in :data:`LOGGED`."""
    failure: dict[str, Any]
    """What ``failure.json`` says, if the run failed."""

    @property
    def measure(self) -> Measure:
        """What it is judged by."""
        return MEASURES[self.config.get("kind", "training")]

    @property
    def label(self) -> str:
        """What its maker called it; often empty."""
        return str(self.config.get("label", ""))

    @property
    def algorithm(self) -> str:
        return str(self.config["algorithm"])

    @property
    def environment(self) -> str:
        """With its options, which make another task of it."""
        options = sorted(key for key in self.config if key.startswith(OPTIONS))
        shown = (f"{key.removeprefix(OPTIONS)}={self.config[key]}" for key in options)
        return " ".join((str(self.config["environment"]), *shown))

    @property
    def critic(self) -> str:
        return str(self.config["critic"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scored(self) -> bool:
        """Whether it is done and has a final score, so that statistics can use it."""
        return self.status == "done" and bool(np.isfinite(self.final))


def read(
    directory: Path,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[RunRecord]:
    """All runs below a directory, by name. What is damaged is left out, with a :class:`DamagedRun` warning.

    Args:
        directory: Each folder in it that has a ``config.json`` is a run; or a packed file of such folders.
        progress: Called with how many are read and how many there are.
        tell: Called with each line that says what is damaged, in place of the warnings.

    Raises:
        ValueError: There is no such directory, or it holds no runs.
    """
    folders, records, problems = found(Path(directory)), list[RunRecord](), list[str]()
    for i, folder in enumerate(folders):
        record = read_run(folder, problems)
        if record is not None and not record.config.get("tuning"):
            records.append(record)
        if progress:
            progress(i + 1, len(folders))
    for problem in problems:
        if tell:
            tell(problem)
        else:
            warnings.warn(problem, DamagedRun, stacklevel=2)
    if not records:
        old = any(Path(directory).glob("*/*.npz"))
        raise ValueError(
            f"{directory} holds runs as an earlier version wrote them, files of numpy: give the command that "
            "made them again"
            if old
            else f"{directory} holds no runs: expected folders with a config.json in it, or a packed file; "
            "'kova --help' names the commands that make them"
        )
    return records


def read_run(folder: Folder, problems: list[str]) -> RunRecord | None:
    """The run in one folder; None if its configuration or a number in it cannot be read.

    A ``summary.json`` counts before a ``failure.json`` that an early try left. Without a whole log a run
    is not done. What is damaged is added to ``problems``.
    """
    path = folder.path
    config = _object(folder, "config.json", problems)
    for key, kind in NEEDED.items():
        if config is not None and not isinstance(config.get(key), kind):
            got = f"a {kind.__name__}, got {config.get(key)!r}"
            problems.append(f"{path / 'config.json'} must have {key!r}, {got}: left out")
            config = None
    if config is None:
        return None
    if config.get("kind", "training") not in MEASURES:
        problems.append(f"{path / 'config.json'} is a run of another kind, {config['kind']!r}: left out")
        return None
    score = MEASURES[config.get("kind", "training")].key
    log_path, content = path / "log.jsonl", folder.read("log.jsonl") or b""
    log, whole = _log(log_path, content, problems)
    summary = _object(folder, "summary.json", problems) if whole else None
    if summary and "log_bytes" in summary and summary["log_bytes"] != len(content):
        problems.append(f"{log_path} has changed since the run was finished; its summary: left out")
        summary = None
    failure = _object(folder, "failure.json", problems)
    try:
        steps, scores, seconds = (_column(log_path, log, key) for key in ("step", score, "seconds"))
        last = {"steps": steps[-1], "seconds": seconds[-1]} if log else {"steps": 0}
        known = last | (summary or {})
        ends = {key: _number(path / "summary.json", known, key) for key in (*ENDS, f"final_{score}")}
        if not np.isfinite([*steps, ends["steps"]]).all():
            raise ValueError(f"{path}: a record has no 'step', or the summary no 'steps'")
        logged = _logged(log_path, log)
    except ValueError as error:
        problems.append(f"{error}: the run is left out")
        return None
    return RunRecord(
        name=path.name,
        config=config,
        status="done" if summary else "failed" if failure else "unfinished",
        steps=steps,
        scores=scores,
        reached=int(ends["steps"]),
        seconds=ends["seconds"],
        processor=ends["processor"],
        final=ends[f"final_{score}"],
        logged=logged,
        failure={} if summary else failure or {},
    )


def _logged(path: Path, log: list[dict[str, Any]]) -> dict[str, Array]:
    found = {}
    for name, sources in LOGGED.items():
        for key, sign in sources:
            if any(record.get(key) is not None for record in log):
                found[name] = sign * _column(path, log, key)
                break
    return found


def _column(path: Path, log: list[dict[str, Any]], key: str) -> Array:
    return np.array([_number(path, record, key) for record in log])


def _number(path: Path, values: Mapping[str, Any], key: str) -> float:
    """NaN if it is missing."""
    value = values.get(key)
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{path}: {key!r} must be a number, got {value!r}") from None


def _object(folder: Folder, name: str, problems: list[str]) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file, or something else in it."""
    content, path = folder.read(name), folder.path / name
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError as error:
        problems.append(f"{path} is damaged ({error}): left out")
        return None
    if not isinstance(found, dict):
        problems.append(f"{path} must be a JSON object, got {type(found).__name__}: left out")
        return None
    return found


def _log(path: Path, content: bytes, problems: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """The records up to the first line that is torn or damaged, and whether there is none such."""
    with warnings.catch_warnings(record=True) as torn:
        warnings.simplefilter("always", TornLog)
        records = read_log(path, content)
    problems += [str(warning.message) for warning in torn]
    return records, bool(records) and not torn
