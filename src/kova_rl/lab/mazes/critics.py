"""The critics that the experiments compare, as small settings that can be compared, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from kova_rl.agents import FromReplay, Learner, OneTransition
from kova_rl.baselines import KTD, Optimality
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.evolution import DirectionalForgetting, Evolution, FadingMemory, Memoryless
from kova_rl.filter.observation import Observation
from kova_rl.lab import spec
from kova_rl.optimizer import Kova

__all__ = ["BOUNDED", "Adam", "Critic", "Filtered", "Temporal", "tracked"]


AS_PRINTED = FadingMemory(0.01 / 1.01, on_windup="ignore")
"""P_v = 0.01 P, so that P- = 1.01 P."""


class Critic(Protocol):
    """Makes what improves a Q-network."""

    @property
    def kind(self) -> str:
        """What it is called in records and colours."""

    def table(self) -> dict[str, Any]:
        """All its settings, defaults written out."""

    def learner(self, network: nn.Module, steps: int, gamma: float) -> Learner: ...


@dataclass(frozen=True)
class Adam:
    """Adam on the mean squared Bellman error, with a constant rate or one that falls to 0 linearly."""

    kind: ClassVar[str] = "adam"
    lr: float = 1e-3
    decaying: bool = False

    def learner(self, network: nn.Module, steps: int, gamma: float) -> Learner:
        optimizer = self.optimizer(network)
        schedule = (lambda update: self.lr * max(0.0, 1 - update / steps)) if self.decaying else None
        return FromReplay(network, optimizer, schedule)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """With a constant rate."""
        return torch.optim.Adam(network.parameters(), self.lr)

    def table(self) -> dict[str, Any]:
        return {"lr": self.lr, "decaying": self.decaying}


@dataclass(frozen=True)
class Filtered:
    """Kova; what is None is Kova's default."""

    covariance: Covariance | None = None
    evolution: Evolution | None = None
    observation: Observation | None = None

    @property
    def kind(self) -> str:
        return "memoryless" if isinstance(self.evolution, Memoryless) else "kova"

    def optimizer(self, network: nn.Module) -> Kova:
        chosen: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        return Kova(network, **chosen)

    def learner(self, network: nn.Module, steps: int, gamma: float) -> Learner:
        return FromReplay(network, self.optimizer(network))

    def complete(self) -> Filtered:
        """The same with Kova's defaults filled in."""
        kova = self.optimizer(nn.Linear(1, 1))
        return Filtered(kova.covariance, kova.evolution, kova.observation)

    def table(self) -> dict[str, Any]:
        """With the defaults filled in, so that a run stored under another default is not taken for this."""
        return {name: spec.table(value) for name, value in vars(self.complete()).items()}


@dataclass(frozen=True)
class Temporal:
    """KTD, the unscented filter on single transitions; by default as the paper has it, P_v = 0.01 P."""

    kind: ClassVar[str] = "ktd"
    evolution: Evolution = AS_PRINTED
    prior: float = 10.0
    noise: float = 1.0
    start: str = "network"
    double: bool = False

    def learner(self, network: nn.Module, steps: int, gamma: float) -> Learner:
        ktd = KTD(
            network,
            equation=Optimality(),
            gamma=gamma,
            prior=self.prior,
            noise=self.noise,
            evolution=self.evolution,
            start=self.start,  # type: ignore[arg-type]
            dtype=torch.float64 if self.double else None,
        )
        return OneTransition(ktd)

    def table(self) -> dict[str, Any]:
        return {name: spec.table(value) for name, value in vars(self).items()}


def tracked(eta: float) -> Filtered:
    """Kova's default with another eta."""
    default = Filtered().complete().evolution
    return Filtered(evolution=replace(default, eta=eta))  # type: ignore[type-var]


BOUNDED = DirectionalForgetting(0.01)
"""Of KTD's evolutions, the one that solved the maze in trials."""
