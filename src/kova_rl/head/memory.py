"""The latest transitions, in the order of time."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch

__all__ = ["Memory"]


class Memory:
    """Rows of named tensors: all of them, or as many as ``size``. Old ones make way for new ones.

    Batches are kept as they come, and put together when they are asked for or when there are many: adding a
    small batch is cheap.
    """

    MANY = 256

    def __init__(self, size: int | None) -> None:
        self.size, self._count = size, 0
        self._batches: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return self._count if self.size is None else min(self._count, self.size)

    def add(self, rows: dict[str, Tensor]) -> None:
        """Remember a copy of these rows.

        Raises:
            InvalidBatch: Other columns, or columns of other shapes, than those that are remembered.
        """
        if self._batches:
            _check_alike(self._batches[0], rows)
        count = len(rows["rewards"])
        if not count:
            return
        self._batches.append({name: column.clone() for name, column in rows.items()})
        self._count += count
        if len(self._batches) > self.MANY and self._count > 2 * len(self._batches[0]["rewards"]):
            self.rows()

    def rows(self) -> dict[str, Tensor]:
        """All that is remembered, the oldest first."""
        last = slice(None) if self.size is None else slice(-self.size, None)
        whole = {name: torch.cat([batch[name] for batch in self._batches])[last] for name in self._batches[0]}
        self._batches, self._count = [whole], len(whole["rewards"])
        return whole


def _check_alike(before: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    if before.keys() != now.keys():
        raise InvalidBatch(f"transitions must have {', '.join(before)} as before, got {', '.join(now)}")
    for name, column in now.items():
        if column.shape[1:] != before[name].shape[1:]:
            shapes = f"{tuple(before[name].shape[1:])} as before, got {tuple(column.shape[1:])}"
            raise InvalidBatch(f"a row of {name} must have shape {shapes}")
