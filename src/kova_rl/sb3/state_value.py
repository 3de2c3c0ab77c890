"""The V network of the first soft actor-critic, which Stable-Baselines3's does without."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor, nn

__all__ = ["StateValue"]


class StateValue(BaseModel):
    """V(s), of the architecture of the critic."""

    def __init__(self, policy: SACPolicy) -> None:
        own = policy._update_features_extractor(policy.critic_kwargs)
        super().__init__(
            policy.observation_space,
            policy.action_space,
            features_extractor=own["features_extractor"],
            normalize_images=policy.normalize_images,
        )
        layers = create_mlp(own["features_dim"], 1, own["net_arch"], own["activation_fn"])
        self.network = nn.Sequential(*layers)

    def forward(self, obs: Any) -> Tensor:
        """One value an observation, of shape (n,)."""
        assert self.features_extractor is not None
        values: Tensor = self.network(self.extract_features(obs, self.features_extractor))
        return values.flatten()
