"""A2C, which is A3C without its asynchrony, with a filtered critic."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import A2C
from torch import Tensor

from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["KovaA2C"]


class KovaA2C(FilteredValue, A2C):
    """Stable-Baselines3's ``A2C`` whose V(s) is tracked by a Kalman filter.

    Targets are the host's k-step returns. The policy makes one small step a rollout, so its ratio is taken
    for 1, and max-ratio noise, the default here, is batch-size noise.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.
        value: With ``kova=None``, the loop of a critic that keeps the host's optimizer, as for ``KovaPPO``.

    Example:
        >>> model = KovaA2C("MlpPolicy", "CartPole-v1", seed=0).learn(100)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """

    use = "steps"

    def _ratio(self, observations: Any) -> Tensor:
        size = self.rollout_buffer.buffer_size * self.rollout_buffer.n_envs
        return torch.ones(size, device=self.device)
