"""A callback that tells what a run's log records, and ends a segment between two rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

__all__ = ["Captured", "Record", "Recorder", "SegmentOver"]

Record = dict[str, Any]


class SegmentOver(Exception):
    """Ends ``learn`` between two rollouts: a callback's False would end it within one, and lose that."""


class Recorder(BaseCallback):
    """Calls ``tell`` every so many steps and at the end of the run, after the updates of a rollout.

    Args:
        until: The step that ends the segment.
        every: Steps between two records.
        tell: Writes a record.
    """

    def __init__(self, until: int, every: int, tell: Callable[[], None]) -> None:
        super().__init__()
        self._until, self._every, self._tell = until, every, tell
        self._due: int | None = None
        self._told = -1

    def _on_rollout_start(self) -> None:
        steps = self.model.num_timesteps
        if self._due is None:
            self._due = (steps // self._every + 1) * self._every
        if steps >= self._due:
            self._record(steps)
        if steps >= self._until:
            raise SegmentOver

    def _record(self, steps: int) -> None:
        self._tell()
        self._told, self._due = steps, (steps // self._every + 1) * self._every

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self._told != self.model.num_timesteps:
            self._record(self.model.num_timesteps)


class Captured(KVWriter):
    """Takes what the algorithm gives its logger: finite numbers, without those about time."""

    def __init__(self) -> None:
        self._values: Record = {}

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        for key in sorted(key_values):
            try:
                value = float(key_values[key])
            except (TypeError, ValueError):
                continue
            if not key.startswith("time/") and key != "rollout/ep_rew_mean":
                self._values[key] = value if math.isfinite(value) else None

    def take(self) -> Record:
        """What was written since the last time."""
        values, self._values = self._values, {}
        return values

    def close(self) -> None:
        pass
