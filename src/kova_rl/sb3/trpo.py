"""TRPO with a filtered critic."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import TRPO
from torch import Tensor

from kova_rl.filter.checks import check_whole
from kova_rl.sb3.collected import actions_of, observations_of
from kova_rl.sb3.on_policy import FilteredValue
from kova_rl.value_loop import Learner, in_chunks

__all__ = ["KovaTRPO"]


class KovaTRPO(FilteredValue, TRPO):
    """sb3-contrib's ``TRPO`` whose V(s) is tracked by a Kalman filter.

    The host's policy step comes first, then the filter goes through the rollout once. The noise is learned;
    the paper's is ``kova=dict(observation=MaxRatio())``, from the ratio of the new policy to the old one.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's; ``n_critic_updates`` is ``value_passes`` where those are None
            and the host's optimizer has a part of the critic.
        value: With ``kova=None``, the loop of a critic that keeps the host's optimizer, as for ``KovaPPO``.

    Example:
        >>> model = KovaTRPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, seed=0).learn(128)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """

    def _setup_model(self) -> None:
        if self.kova is not None or self.value is not None:
            check_whole("n_critic_updates", self.n_critic_updates, least=0)
        super()._setup_model()

    def train(self) -> None:
        super().train()
        self.logger.record("train/entropy", self._entropy())

    def _learn_policy(self, epochs: int) -> bool:
        """The host's policy step, without its critic's."""
        passes, self.n_critic_updates = self.n_critic_updates, 0
        try:
            with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
                warnings.filterwarnings("ignore", "Mean of empty slice")  # no critic's losses
                warnings.filterwarnings("ignore", "invalid value encountered")
                TRPO.train(self)
        finally:
            self.n_critic_updates = passes
        return True

    def _learner(self) -> Learner:
        return replace(super()._learner(), factor=1.0, max_norm=None)  # its host has neither

    def _permute(self) -> Callable[[int], NDArray[Any]]:
        return np.random.permutation  # as the host, which draws for its critic after the policy's step

    def _hosts_passes(self) -> int:
        return self.n_critic_updates

    def _hosts_batch(self) -> int | None:
        return self.batch_size

    @torch.no_grad()
    def _entropy(self) -> float:
        """The new policy's mean entropy over the rollout, which the host does not log."""

        def entropies(obs: Any, actions: Tensor) -> Tensor:
            distribution = self.policy.get_distribution(obs)
            found: Tensor | None = distribution.entropy()
            return -distribution.log_prob(actions) if found is None else found

        return float(in_chunks(entropies, observations_of(self), actions_of(self)).mean())
