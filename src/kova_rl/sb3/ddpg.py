"""DDPG and TD3 with filtered critics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

from kova_rl.posterior import Belief
from kova_rl.sb3.guard import check_batch
from kova_rl.sb3.off_policy import FilteredQ, bootstrapped, step_actor

__all__ = ["KovaDDPG", "KovaTD3"]


class KovaTD3(FilteredQ, TD3):
    """Stable-Baselines3's ``TD3`` whose Q networks are tracked by one Kalman filter each.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    ``value_distribution(obs, actions)`` is of Q at these actions, or at the policy's own; with two networks,
    by the one that thinks less of the action.
    """

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.kova is not None:
            self._add_q_filters()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        actor_losses, critic_losses = [], []
        for _ in range(gradient_steps):
            self._n_updates += 1
            assert self.replay_buffer is not None
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            check_batch(data)
            critic_losses.append(self._learn_q(data, self._targets(data), factor=1.0))
            if self._n_updates % self.policy_delay == 0:
                actor_losses.append(self._learn_policy(data))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if actor_losses:
            self.logger.record("train/actor_loss", np.mean(actor_losses))
        self.logger.record("train/critic_loss", np.mean(critic_losses))

    @torch.no_grad()
    def _targets(self, data: Any) -> Tensor:
        """``r + gamma min_i Q_i(s', pi(s') + noise; theta')``, N x 1."""
        noise = data.actions.clone().data.normal_(0, self.target_policy_noise)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        next_actions = (self.actor_target(data.next_observations) + noise).clamp(-1, 1)
        next_q = torch.cat(self.critic_target(data.next_observations, next_actions), dim=1)
        next_values = next_q.min(dim=1, keepdim=True).values
        return bootstrapped(data, next_values, self.gamma)

    def _learn_policy(self, data: Any) -> float:
        """The host's step of the actor and of the targets."""
        actor_loss = -self.critic.q1_forward(data.observations, self.actor(data.observations)).mean()
        step_actor(actor_loss, self.actor.optimizer)
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        return actor_loss.item()

    def _belief(self, obs: Any, actions: Tensor | None) -> Belief:
        return self._q_belief(obs, self.actor(obs) if actions is None else self._scaled(actions))


class KovaDDPG(KovaTD3, DDPG):
    """Stable-Baselines3's ``DDPG`` whose Q(s, a) is tracked by a Kalman filter; as :class:`KovaTD3`.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    Example:
        >>> model = KovaDDPG("MlpPolicy", "Pendulum-v1", seed=0, buffer_size=1000, batch_size=32).learn(150)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """
