"""Nothing between two updates."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Unchanged
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Stationary(Evolution):
    """``P- = P``: exact Bayesian regression for a linear model. Stops learning as 1/t."""

    kind = Unchanged

    def change(self, memory: State) -> Unchanged:
        return Unchanged()
