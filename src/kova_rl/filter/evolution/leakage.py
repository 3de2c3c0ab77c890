"""Leakage of the information, at one rate."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Leak
from kova_rl.filter.checks import check_eta
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Leakage(Evolution):
    r"""Fading memory in the information, held up by the prior:

    .. math:: (P^-)^{-1} = (1-\eta) P^{-1} + \eta P_0^{-1}.

    ``P <= P_0`` always. Costs nothing where the inverse is kept (LowRank) or diagonal; a batched
    solve for NeuronBlocks; an inversion for Full and LayerBlocks, so only small ones are allowed.

    Args:
        eta: Share of the information that a step forgets, in [0, 1).
    """

    eta: float = 0.01

    kind = Leak

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def change(self, memory: State) -> Leak:
        return Leak(self.eta)
