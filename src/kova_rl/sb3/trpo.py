"""TRPO with a filtered critic."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import Tensor
from torch.nn.functional import mse_loss

from kova_rl.sb3.guard import check_rollout
from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["KovaTRPO"]


class KovaTRPO(FilteredValue, TRPO):
    """sb3-contrib's ``TRPO`` whose V(s) is tracked by a Kalman filter.

    The host's policy step comes first, then ``n_critic_updates`` passes of the filter over the rollout, with
    max-ratio noise from the ratio of the new policy to the old one.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    Example:
        >>> model = KovaTRPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, seed=0).learn(128)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """

    def train(self) -> None:
        check_rollout(self.rollout_buffer)
        if self.kova is None:
            TRPO.train(self)
        else:
            self._train_filtered()
        self.logger.record("train/entropy", self._entropy())

    def _train_filtered(self) -> None:
        passes, self.n_critic_updates = self.n_critic_updates, 0
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Mean of empty slice")  # no critic's losses
                warnings.filterwarnings("ignore", "invalid value encountered")
                TRPO.train(self)
        finally:
            self.n_critic_updates = passes
        for _ in range(passes):
            for minibatch in self.rollout_buffer.get(self.batch_size):
                self._learn_values(minibatch)
        self._note_loss()

    def _learn_values(self, minibatch: RolloutBufferSamples) -> None:
        """The critic's step on one minibatch."""
        log_prob, _ = self._judge(minibatch)
        assert self.kova is not None
        if self.kova.layers == "last":
            self._learn_features(minibatch)
        self._filter_values(minibatch, log_prob)

    @torch.no_grad()
    def _judge(self, minibatch: RolloutBufferSamples) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the actions, and the entropies in their states (or guesses of them)."""
        actions = minibatch.actions
        if isinstance(self.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        distribution = self.policy.get_distribution(minibatch.observations)
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        return log_prob, -log_prob if entropy is None else entropy

    def _entropy(self) -> float:
        """The new policy's mean entropy over the rollout, which the host does not log."""
        buffer = self.rollout_buffer
        size = buffer.buffer_size * buffer.n_envs
        parts = np.array_split(np.arange(size), -(-size // self.batch_size))
        # not buffer.get, whose permutation would move the host's random numbers
        entropies = [self._judge(buffer._get_samples(part))[1] for part in parts]
        return float(torch.cat(entropies).mean())

    def _learn_features(self, minibatch: RolloutBufferSamples) -> None:
        """The host's step for the layers of the critic that are not filtered."""
        if not self._unfiltered:  # the features are the policy's, and the host lets no value loss move those
            return
        values = self.policy.predict_values(minibatch.observations).flatten()
        self.policy.optimizer.zero_grad()
        mse_loss(minibatch.returns, values).backward(inputs=self._unfiltered)
        self.policy.optimizer.step()
