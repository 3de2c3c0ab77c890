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

__all__ = ["Panel", "final_error", "panels"]


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
    tasks, out = [*TASKS, *ROLLED], dict[tuple[str, str], Panel]()

    def place(each: tuple[dict[str, Any], Folder]) -> tuple[int, int, int, int]:
        c = each[0]
        return tasks.index(c["task"]), CONDITIONS.index(c["condition"]), order.index(c["critic"]), c["seed"]

    for config, folder in sorted((each for each in kept if each[0]["critic"] in order), key=place):
        pair, name, arrays = (config["task"], config["condition"]), config["critic"], folder.arrays()
        if pair not in out:
            parts = () if pair[0] in ROLLED else phases(*pair)
            at = arrays["samples"]
            switch = int(at[len(at) // 2 - 1]) if len(parts) > 1 else None
            floor, note = (parts[-1].linear_floor(), "") if parts else (None, control.note(pair[0]))
            out[pair] = Panel(*pair, floor, switch, note=note)
        out[pair].curves.setdefault(name, []).append(arrays)
        if len(CRITICS[name].choices) > 1:
            out[pair].settings[name] = config["setting"]
    if not out:
        raise ValueError(f"no runs of policy evaluation of the critics {', '.join(order)} are there")
    return list(out.values())
