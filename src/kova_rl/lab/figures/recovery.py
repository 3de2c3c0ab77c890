"""What a change of the world cost a run, and how long it took to make up for it: from the run's records."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import gymnasium
import numpy as np

import kova_rl.envs  # noqa: F401 - registers them
from kova_rl.lab.log import read_log
from kova_rl.lab.pack import Folder

__all__ = ["SHARE", "Recovery", "change_of", "recovery", "written"]

SHARE = 0.9
"""Of the return before the change: who has it again has recovered."""
WINDOW = 100
"""Episodes that the return of a record is the mean of, if ``host.stats_window_size`` does not say."""


@dataclass(frozen=True)
class Recovery:
    """One run. Returns are means over the run's window of episodes, as in its records."""

    environment: str
    critic: str
    seed: int
    change: int
    """The step, of all copies together, at which the change begins."""
    before: float
    """The return at the last record before it."""
    after: float
    """The mean of the returns whose window has only episodes that ended after it, to the run's end."""
    lowest: float
    """The least of these."""
    final: float
    """The last of them."""
    recovered: int | None
    """Steps from the change to the first of them with 90% of the return before; None if there is none."""


def change_of(config: dict[str, Any]) -> int:
    """The step, of all copies together, at which the world of a run changes.

    Raises:
        ValueError: It is none that changes.
    """
    at = config.get("environment_options.at")
    if at is None:
        spec = gymnasium.registry.get(config["environment"])
        at = spec.kwargs.get("at") if spec else None
    if at is None:
        raise ValueError(
            f"{config['environment']} does not say at which step it changes: expected one of "
            "kova/ChangingHopper-v0 and kova/ChangingHalfCheetah-v0, or environment_options with at"
        )
    return int(at) * int(config["n_envs"])


def recovery(folder: Folder) -> Recovery | None:
    """Of a finished run; None if too few episodes ended before or after the change.

    The mean over a window lags behind: right after the change it is still that of the old world. So only
    records count whose whole window came after it.
    """
    config = folder.json("config.json")
    change, window = change_of(config), config.get("host.stats_window_size", WINDOW)
    log = read_log(folder.path / "log.jsonl", folder.read("log.jsonl"))
    log = [one for one in log if one["return"] is not None]
    old = [one for one in log if one["step"] <= change]
    ended = min((one["episodes"] for one in log if one["step"] >= change), default=0)
    new = [one for one in log if one["step"] >= change and one["episodes"] >= ended + window]
    if not old or not new:
        return None
    before, returns = old[-1]["return"], [one["return"] for one in new]
    enough = before - (1 - SHARE) * abs(before)
    again = [one["step"] - change for one in new if one["return"] >= enough]
    return Recovery(
        environment=config["environment"],
        critic=config["critic"],
        seed=config["seed"],
        change=change,
        before=before,
        after=float(np.mean(returns)),
        lowest=min(returns),
        final=returns[-1],
        recovered=again[0] if again else None,
    )


def written(rows: Sequence[Recovery]) -> bytes:
    """As a csv, a line a run; what is None is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [each.name for each in fields(Recovery)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return buffer.getvalue().encode()
