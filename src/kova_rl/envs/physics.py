"""How the physics of a MuJoCo task change with the steps, as factors of what the task itself has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.filter.checks import check_real, check_whole

__all__ = ["ARRAYS", "Change", "Factor", "Schedule"]

ARRAYS = {
    "friction": ("geom_friction", "pair_friction"),
    "gravity": ("opt.gravity",),
    "motors": ("actuator_gear",),
}
"""What can change, and which arrays of MuJoCo's model a factor of it multiplies."""

Factor = float | tuple[float, float]
"""A number, or the ends of a range that one is drawn from, evenly."""


@dataclass(frozen=True)
class Change:
    """What is different from a step on, as factors of what the task itself has.

    What is None stays as it was before; 1.0 is the task's own again.

    Args:
        at: How many steps are made before it.
        over: How many steps it takes: 1 is at once, more moves the factors evenly with each of them.
        friction: Of contacts.
        gravity: The force.
        motors: Their strength: the force or torque for the same action.

    Raises:
        ValueError: Steps that are no whole numbers, a factor below 0, or nothing that changes.

    Example:
        >>> Change(at=150_000, friction=0.4)
        Change(at=150000, over=1, friction=0.4, gravity=None, motors=None)
    """

    at: int
    over: int = 1
    friction: Factor | None = None
    gravity: Factor | None = None
    motors: Factor | None = None

    def __post_init__(self) -> None:
        check_whole("at", self.at, least=0)
        check_whole("over", self.over, least=1)
        for name, value in self.factors.items():
            object.__setattr__(self, name, _factor(name, value))
        if not self.factors:
            raise ValueError(f"a change must say what changes: {', '.join(ARRAYS)}; got none of them")

    @classmethod
    def of(cls, given: Change | Mapping[str, Any]) -> Change:
        """From a mapping of its arguments."""
        if isinstance(given, Change):
            return given
        names = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping) or "at" not in given or not set(given) <= set(names):
            raise ValueError(
                f"a change must be a Change, or a mapping with at and some of {', '.join(names[1:])}; "
                f"got {given!r}"
            )
        return cls(**given)

    @property
    def factors(self) -> dict[str, Factor]:
        """What it changes."""
        return {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}


class Schedule:
    """The factors at each step. What is drawn is drawn here, once.

    Args:
        changes: In the order of their steps; each begins when the one before it is over.
        seed: Of the factors that are drawn.

    Raises:
        ValueError: No change, changes that overlap, or a seed that is none.

    Example:
        >>> schedule = Schedule([Change(at=10, over=4, gravity=2.0)], seed=0)
        >>> [schedule.at(step)["gravity"] for step in (9, 10, 11, 12, 13, 14)]
        [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]
    """

    def __init__(self, changes: Sequence[Change], seed: int) -> None:
        check_whole("seed", seed, least=0)
        if not changes:
            raise ValueError("changes must be at least one Change, got none: without it use the task itself")
        rng, now = np.random.default_rng(seed), dict.fromkeys(ARRAYS, 1.0)
        steps, rows = [-1], [now]
        for change in changes:
            if change.at - 1 < steps[-1]:
                raise ValueError(
                    f"changes must follow each other: one begins at step {change.at}, and the one before it "
                    f"is over at step {steps[-1] + 1}"
                )
            after = {**now, **{name: _drawn(value, rng) for name, value in change.factors.items()}}
            steps += [change.at - 1, change.at - 1 + change.over]
            rows += [now, after]
            now = after
        self._steps: NDArray[np.int64] = np.array(steps)
        self._rows = {name: np.array([row[name] for row in rows]) for name in ARRAYS}

    def at(self, step: int) -> dict[str, float]:
        """The factors of the step with this number; the first is 0."""
        return {name: float(np.interp(step, self._steps, rows)) for name, rows in self._rows.items()}

    @property
    def names(self) -> list[str]:
        """What is ever different from the task itself."""
        return [name for name, rows in self._rows.items() if (rows != 1).any()]


def _factor(name: str, value: Any) -> Factor:
    """Checked, and a range as a pair."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        check_real(
            name, value, "a factor from 0, or a range of them", isinstance(value, int | float) and value >= 0
        )
        return float(value)
    if len(value) != 2:
        raise ValueError(f"{name} must be a factor, or (lowest, highest), got {value!r}")
    low, high = (_factor(name, end) for end in value)
    if not (isinstance(low, float) and isinstance(high, float) and low <= high):
        raise ValueError(f"{name} must be a factor, or (lowest, highest), got {value!r}")
    return low, high


def _drawn(value: Factor, rng: np.random.Generator) -> float:
    return float(rng.uniform(*value)) if isinstance(value, tuple) else value
