"""Forgetting towards the prior."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Shifted
from kova_rl.filter.checks import check_eta
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State


@dataclass(frozen=True)
class PriorAnchored(Evolution):
    r"""``P- = (1-eta) P + eta P_0``: forgets towards the prior. ``eta P_0 <= P- <= P_0`` always.

    Args:
        eta: Share of the way to the prior, in [0, 1).
    """

    eta: float = 0.01

    kind = Shifted

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def change(self, memory: State) -> Shifted:
        return Shifted(1 - self.eta, self.eta)
