"""Weights that drift."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Shifted
from kova_rl.filter.checks import check_choice, check_real
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State
from kova_rl.filter.windup import ON_WINDUP, OnWindup


@dataclass(frozen=True)
class RandomWalk(Evolution):
    """``P- = P + q P_0``: weights that drift. Not bounded; the same guard as ``FadingMemory``.

    Args:
        q: Variance added at each step, in units of the prior's, at least 0.
        on_windup: ``"raise"``, ``"reset"`` or ``"ignore"``, as for ``FadingMemory``.
    """

    q: float = 1e-4
    on_windup: OnWindup = "raise"

    kind = Shifted

    def __post_init__(self) -> None:
        check_real("q", self.q, "a number, at least 0", isinstance(self.q, int | float) and self.q >= 0)
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    @property
    def windup(self) -> OnWindup:
        return self.on_windup

    def change(self, memory: State) -> Shifted:
        return Shifted(1.0, self.q)
