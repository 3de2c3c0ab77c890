"""The authors' released code."""

from __future__ import annotations

from dataclasses import dataclass

from kova_rl.filter.change import Restart
from kova_rl.filter.checks import check_eta
from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Memoryless(Evolution):
    r"""``P- = P_0/(1-eta)`` at every step: the authors' released code, which never carries P.

    A damped Gauss-Newton step, ``K = c H (c H'H + P_n)^-1`` with ``c = p_0/(1-eta)``. Works with
    every structure and allocates no covariance, so that it costs about as much as Adam; but it has
    no posterior, and so no error bars beyond the prior's.

    Args:
        eta: Only scales the prior, by 1/(1-eta); in [0, 1).
    """

    eta: float = 0.01

    kind = Restart

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def change(self, memory: State) -> Restart:
        return Restart(1 / (1 - self.eta))
