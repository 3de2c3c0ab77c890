"""Leakage that opens on surprise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kova_rl.filter.change import Leak
from kova_rl.filter.checks import check_positive, check_real
from kova_rl.filter.evolution.leakage import Leakage
from kova_rl.filter.step import State


@dataclass(frozen=True)
class VariableLeakage(Leakage):
    r"""Leakage that forgets faster while the innovations are larger than they were.

    Keeps a quick and a slow running mean of the normalised innovation squared, and leaks

    .. math:: \eta_t = \min(\eta_{\max}, \eta \rho^{p}), \quad
        \rho = \max(1, \text{quick} / \text{slow}).

    A ratio of two means of the same quantity has no unit, so that it works with every observation
    noise. In a steady state it is ``Leakage(eta)``; after a change it opens up, then closes.

    Args:
        eta: What a step forgets in a steady state, in [0, 1).
        eta_max: What it forgets at most, in [eta, 1).
        power: p, how strongly a surprise counts.
    """

    eta: float = 0.001
    eta_max: float = 0.3
    power: float = 2.0

    QUICK = 0.9
    SLOW = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(
            "eta_max", self.eta_max, f"a number in [eta = {self.eta}, 1)", self.eta <= self.eta_max < 1
        )
        check_positive("power", self.power)

    def init(self, like: Tensor) -> State:
        return {"quick": 0.0, "slow": 0.0, "count": 0}

    def change(self, memory: State) -> Leak:
        if memory["slow"] <= 0.0:
            return Leak(self.eta)
        quick = memory["quick"] / (1 - self.QUICK ** memory["count"])
        slow = memory["slow"] / (1 - self.SLOW ** memory["count"])
        return Leak(float(min(self.eta_max, self.eta * max(1.0, quick / slow) ** self.power)))

    def observe(self, memory: State, nis: float) -> None:
        memory["quick"] = self.QUICK * memory["quick"] + (1 - self.QUICK) * nis
        memory["slow"] = self.SLOW * memory["slow"] + (1 - self.SLOW) * nis
        memory["count"] += 1
