"""The paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Scaled
from kova_rl.filter.checks import check_choice, check_eta
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State
from kova_rl.filter.windup import ON_WINDUP, OnWindup


@dataclass(frozen=True)
class FadingMemory(Evolution):
    r"""``P- = P/(1-eta)``: the paper's Algorithm 1, with a guard, because it diverges.

    P grows without bound in every direction that the batches do not excite (walls, dead units). When
    the largest variance exceeds 1e6 times the prior's (1e12 in float64), it raises
    :class:`~kova_rl.CovarianceWindup` or goes back to the prior.

    Args:
        eta: Share of the past that a step forgets, in [0, 1).
        on_windup: ``"raise"``; ``"reset"``; or ``"ignore"``, the algorithm as printed, without the guard:
            P then grows until it overflows.
    """

    eta: float = 0.01
    on_windup: OnWindup = "raise"

    kind = Scaled

    def __post_init__(self) -> None:
        check_eta(self.eta)
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    @property
    def windup(self) -> OnWindup:
        return self.on_windup

    def change(self, memory: State) -> Scaled:
        return Scaled(1 / (1 - self.eta))
