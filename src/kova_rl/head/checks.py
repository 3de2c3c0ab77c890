"""Whether transitions are what a head expects."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch

__all__ = ["checked", "checked_actions", "named"]

ROWS = ("states", "next_states", "next_policy")
"""What may have more dimensions than one."""
NEEDED = ("states", "rewards", "next_states", "terminated")
MORE = ("truncated", "weights", "discounts", "actions", "next_policy")


def checked(given: dict[str, Tensor | None], several: int) -> dict[str, Tensor]:
    """The transitions that were passed, detached, if they go together; None is left out.

    Args:
        given: By the names of the arguments of ``Head.observe``.
        several: How many rows the head has.
    """
    rows = {name: values.detach() for name, values in given.items() if values is not None}
    n = len(rows["rewards"])
    for name, values in rows.items():
        if len(values) != n or (name not in ROWS and values.ndim != 1):
            expected = f"({n}, ...)" if name in ROWS else f"({n},)"
            raise InvalidBatch(f"{name} must have shape {expected}, got {tuple(values.shape)}")
    _check_finite(rows)
    if several == 1:
        if "actions" in rows or "next_policy" in rows:
            raise InvalidBatch("this head has one row, V(s), which has no actions: leave them out")
        return rows
    if "actions" not in rows or "next_policy" not in rows:
        raise InvalidBatch(
            f"this head has {several} rows, one an action: pass actions= (N,) and "
            f"next_policy= (N x {several})"
        )
    if rows["next_policy"].shape != (n, several):
        raise InvalidBatch(f"next_policy must be {n} x {several}, got {tuple(rows['next_policy'].shape)}")
    checked_actions(rows["actions"], n, several)
    return rows


def named(state: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Columns of transitions by their names, if all that are needed are there and no others."""
    if not (set(NEEDED) <= set(state) <= {*NEEDED, *MORE}):
        raise InvalidBatch(f"expected {', '.join(NEEDED)} and of {', '.join(MORE)}, got {', '.join(state)}")
    return dict(state)


def _check_finite(rows: dict[str, Tensor]) -> None:
    """The states that follow a termination are not looked at, and may be anything."""
    for name in ("rewards", "states", "weights", "discounts", "next_policy", "next_states"):
        values = rows.get(name)
        if values is None or math.isfinite(float(values.sum())):  # the quick way; a sum may overflow
            continue
        if name == "next_states":
            values = values[~rows["terminated"].bool()]
        if not bool(values.isfinite().all()):
            raise NonFiniteBatch(f"{name} must be finite, got NaN or infinity. Nothing was remembered.")
    for name in ("weights", "discounts", "next_policy"):
        if name in rows and rows[name].numel() and float(rows[name].min()) < 0:
            raise InvalidBatch(f"{name} must not be negative, got {float(rows[name].min())}")


def checked_actions(actions: Tensor, n: int, several: int) -> Tensor:
    """Actions as whole numbers, if they are rows of the head."""
    if actions.shape != (n,):
        raise InvalidBatch(f"actions must have shape ({n},), got {tuple(actions.shape)}")
    given = actions.long()
    if n and not 0 <= int(given.min()) <= int(given.max()) < several:
        raise InvalidBatch(f"actions must be whole numbers from 0 to {several - 1}, got {given.tolist()}")
    return given
