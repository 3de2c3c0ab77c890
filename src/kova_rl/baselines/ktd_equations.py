"""What the reward observes: the three Bellman equations that KTD learns from."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import SupportsIndex, cast

from torch import Tensor

from kova_rl.errors import InvalidBatch

__all__ = ["Action", "Equation", "Evaluation", "Optimality", "Sarsa"]

Action = SupportsIndex | None


class Equation(ABC):
    """Which reward the weights predict. ``here`` and ``there`` are the network's outputs at s and s'.

    Both are (sigma points) x (actions); ``there`` is None where the episode ended, and drops out.
    """

    @abstractmethod
    def __call__(
        self, here: Tensor, there: Tensor | None, gamma: float, action: Action, next_action: Action
    ) -> Tensor:
        """The predicted reward, one for each sigma point."""


@dataclass(frozen=True)
class Evaluation(Equation):
    """``r = V(s) - gamma V(s')``: the value of the policy that acts. The network has one output."""

    def __call__(
        self, here: Tensor, there: Tensor | None, gamma: float, action: Action, next_action: Action
    ) -> Tensor:
        if here.shape[1] != 1:
            raise InvalidBatch(
                f"Evaluation needs a network with one output, V(s), got {here.shape[1]}: use Sarsa or "
                "Optimality"
            )
        return here[:, 0] if there is None else here[:, 0] - gamma * there[:, 0]


@dataclass(frozen=True)
class Sarsa(Equation):
    """``r = Q(s, a) - gamma Q(s', a')``: the policy's Q. The network has one output an action."""

    def __call__(
        self, here: Tensor, there: Tensor | None, gamma: float, action: Action, next_action: Action
    ) -> Tensor:
        now = _column(here, action, "action")
        return now if there is None else now - gamma * _column(there, next_action, "next_action")


@dataclass(frozen=True)
class Optimality(Equation):
    """``r = Q(s, a) - gamma max_b Q(s', b)``: the best policy's Q. The network has one output an action."""

    def __call__(
        self, here: Tensor, there: Tensor | None, gamma: float, action: Action, next_action: Action
    ) -> Tensor:
        now = _column(here, action, "action")
        return now if there is None else now - gamma * there.amax(1)


def _column(values: Tensor, action: Action, name: str) -> Tensor:
    """The outputs for one action."""
    try:
        index = operator.index(cast(SupportsIndex, action))
    except TypeError:
        index = -1
    if not 0 <= index < values.shape[1]:
        raise InvalidBatch(f"{name} must be a whole number in [0, {values.shape[1]}), got {action!r}")
    return values[:, index]
