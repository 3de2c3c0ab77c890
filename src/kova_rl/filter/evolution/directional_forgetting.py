"""Forgetting where the batch looks."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Directional
from kova_rl.filter.checks import check_choice, check_eta
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State
from kova_rl.filter.windup import ON_WINDUP, OnWindup


@dataclass(frozen=True)
class DirectionalForgetting(Evolution):
    r"""Inflates only the directions that the batch observes, and leaves the others alone.

    With eigenpairs ``(l_i, v_i)`` of ``L_n^-1 H'P H L_n^-T`` (``P_n = L_n L_n'``), direction i is
    inflated by ``1/(1 - eta_i)``.

    ``bounded=True``: ``eta_i = min(eta, alpha l_i/(1 + l_i))``, so that no direction ends larger than
    it began, and ``P <= P_0`` for any noise and step size. The price: P never grows again, and in a
    direction that is observed at every step its variance falls as ``t^-1/2``, where ``Stationary``
    falls as ``1/t``. It follows changes for a long time, not forever.

    ``bounded=False``: ``eta_i = eta``, which has FadingMemory's gain exactly, but a faintly excited
    direction grows until ``h'P h = eta r`` however small h is, so it carries the same guard.

    Args:
        eta: Share of the past that a step forgets in observed directions, in [0, 1).
        bounded: See above.
        on_windup: ``"raise"``, ``"reset"`` or ``"ignore"``, for ``bounded=False``, as for ``FadingMemory``.
    """

    eta: float = 0.01
    bounded: bool = True
    on_windup: OnWindup = "raise"

    kind = Directional

    def __post_init__(self) -> None:
        check_eta(self.eta)
        check_choice("bounded", self.bounded, (True, False))
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    @property
    def windup(self) -> OnWindup:
        return "ignore" if self.bounded else self.on_windup

    def change(self, memory: State) -> Directional:
        return Directional(self.eta, self.bounded)
