"""All runs of one task under one condition, as the tables and pictures want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kova_rl.lab.evaluation.critics import CRITICS
from kova_rl.lab.evaluation.protocol import Curves
from kova_rl.lab.evaluation.tasks import CONDITIONS, ROLLED, TASKS, phases
from kova_rl.lab.pack import Folder

__all__ = ["OWN", "Panel", "final_error", "panels"]

OWN = "own"
"""The condition of runs in an environment of one's own."""


@dataclass
class Panel:
    """All runs of one task under one condition."""

    task: str
    condition: str
    floor: float | None
    """The least error that values linear in the features can have, in the last phase, if it is known."""
    switch: int | None
    """After how many samples the truth changes."""
    curves: dict[str, list[Curves]] = field(default_factory=dict)
    """By critic, one a seed."""
    settings: dict[str, float] = field(default_factory=dict)
    """What was chosen, of the critics that are tuned."""
    note: str = ""
    """How the truth was found, where it is not solved for."""

    def stack(self, critic: str, name: str) -> np.ndarray[Any, Any]:
        """One array of all seeds, seeds x ..."""
        return np.stack([curves[name] for curves in self.curves[critic]])


def final_error(curves: Curves) -> float:
    """Mean over the last three points; infinite if the critic broke down."""
    error = float(np.mean(curves["error"][-3:]))
    return error if np.isfinite(error) else float("inf")


def panels(folders: Sequence[Folder], critics: Sequence[str] = ()) -> list[Panel]:
    """The panels of these runs, those that only tuned left out.

    Args:
        folders: Of the runs.
        critics: Those that are shown, in this order; all if none is named.
    """
    from kova_rl.lab.evaluation import control

    known = [(folder.json("config.json"), folder) for folder in folders]
    kept = [(c, f) for c, f in known if c.get("kind") == "evaluation" and "tuning" not in c]
    order = list(critics or CRITICS)
    tasks, out = [*TASKS, *ROLLED], dict[tuple[str, str, str], Panel]()

    def place(each: tuple[dict[str, Any], Folder]) -> tuple[int, int, int, int]:
        c, conditions = each[0], [*CONDITIONS, OWN]
        at = tasks.index(c["task"]) if c["task"] in tasks else len(tasks)
        return at, conditions.index(c["condition"]), order.index(c["critic"]), c["seed"]

    for config, folder in sorted((each for each in kept if each[0]["critic"] in order), key=place):
        (task, condition), name = (config["task"], config["condition"]), config["critic"]
        arrays, which = folder.arrays(), (task, condition, config.get("identity", ""))
        if which not in out:
            parts = () if condition == OWN or task in ROLLED else phases(task, condition)
            at = arrays["samples"]
            switch = int(at[len(at) // 2 - 1]) if len(parts) > 1 else None
            floor, note = (parts[-1].linear_floor(), "") if parts else (None, "")
            if task in ROLLED:
                note = control.note(task)
            out[which] = Panel(
                task, "your policy" if condition == OWN else condition, floor, switch, note=note
            )
        if condition == OWN:
            out[which].note = folder.json("summary.json")["note"]
        out[which].curves.setdefault(name, []).append(arrays)
        if len(CRITICS[name].choices) > 1:
            out[which].settings[name] = config["setting"]
    if not out:
        raise ValueError(f"no runs of policy evaluation of the critics {', '.join(order)} are there")
    return list(out.values())
