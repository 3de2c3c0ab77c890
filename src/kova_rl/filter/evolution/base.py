"""What every evolution can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from kova_rl.filter.change import Change, Restart
from kova_rl.filter.step import State
from kova_rl.filter.windup import OnWindup


class Evolution(ABC):
    """How the covariance grows between two updates. A setting without state, as structures are."""

    kind: ClassVar[type[Change]]
    """What :meth:`change` returns. A structure that can't make it is refused when the optimizer is built."""

    @property
    def tracked(self) -> bool:
        """Whether P is carried from one update to the next."""
        return self.kind is not Restart

    @property
    def windup(self) -> OnWindup:
        """What happens when P has wound up. Nothing looks for it where P is bounded."""
        return "ignore"

    def init(self, like: Tensor) -> State:
        """What the evolution itself remembers; most remember nothing."""
        return {}

    @abstractmethod
    def change(self, memory: State) -> Change:
        """What is done to P before the next update."""

    def observe(self, memory: State, nis: float) -> None:  # noqa: B027 - most learn nothing
        """Learn from the normalised innovation squared of the update just made."""
