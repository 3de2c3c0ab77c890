"""Exploring by what the critic does not know, in place of by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from kova_rl.filter.checks import check_positive, check_whole
from kova_rl.jacobian import Predict
from kova_rl.optimizer import Kova

__all__ = ["Draws", "Exploration", "Optimism", "Thompson", "check_exploration", "check_posterior"]


@dataclass(frozen=True)
class Exploration(ABC):
    """How actions are scored while exploring.

    Args:
        candidates: For continuous actions: how many of the policy's own draws are compared.
    """

    candidates: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        check_whole("candidates", self.candidates, 2)

    @abstractmethod
    def scores(self, kova: Kova, predict: Predict, seed: int) -> Tensor:
        """A score for each prediction; the action with the best one is taken.

        Args:
            kova: The filter of the critic.
            predict: Gives the value of each action.
            seed: The same for all steps of an episode.
        """


@dataclass(frozen=True)
class Thompson(Exploration):
    """Act on weights drawn from the posterior. The draw's noise stays the same during an episode.

    With several environments a new draw comes whenever one of their episodes ends.
    """

    def scores(self, kova: Kova, predict: Predict, seed: int) -> Tensor:
        with kova.sampled(torch.Generator().manual_seed(seed)), torch.no_grad():
            return predict()


@dataclass(frozen=True)
class Optimism(Exploration):
    """Act on mean + c std.

    Args:
        c: How many standard deviations; 1 by default.
    """

    c: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("c", self.c)

    def scores(self, kova: Kova, predict: Predict, seed: int) -> Tensor:
        belief = kova.posterior(predict)
        return belief.mean + self.c * belief.std


class Draws:
    """Which draw an episode acts on: a seed that stays the same until an episode ends."""

    def __init__(self) -> None:
        self._generator: np.random.Generator | None = None
        self._episode: tuple[int, int] | None = None
        self._seed = 0

    def seed(self, model: OffPolicyAlgorithm) -> int:
        """The seed of the model's present episode. Models without a seed have draws of their own."""
        if self._generator is None:
            self._generator = np.random.default_rng(model.seed)
        episode = (model._num_timesteps_at_start, model._episode_num)
        if episode != self._episode:
            self._episode, self._seed = episode, int(self._generator.integers(2**32))
        return self._seed


def check_posterior(exploration: Exploration | None, kova: Kova) -> None:
    """Refuse to explore by a filter that keeps no posterior."""
    if exploration is not None and not kova.tracked:
        raise ValueError(
            f"exploration={exploration!r} needs a posterior, and {type(kova.evolution).__name__} keeps none: "
            "use a tracked evolution, such as Leakage"
        )


def check_exploration(value: Any, filtered: bool) -> Exploration | None:
    """Refuse what can't explore, when the model is built."""
    if value is None:
        return None
    if not isinstance(value, Exploration):
        raise ValueError(f"exploration must be Thompson(), Optimism(c) or None, got {value!r}")
    if not filtered:
        raise ValueError(
            f"exploration={value!r} needs the error bars of a filtered Q: pass kova={{}}, and for SAC "
            "filtered='q' or 'both'"
        )
    return value
