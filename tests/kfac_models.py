"""Policies and dense Fisher matrices for the tests of K-FAC."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal


def network(seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2)).double()


class Gaussian(nn.Module):
    """A policy as Stable-Baselines3's: a mean and a free ``log_std``."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        self.mean = nn.Linear(3, actions)
        self.log_std = nn.Parameter(torch.linspace(-1, 0.5, actions))
        self.double()

    def forward(self, x: Tensor) -> Normal:
        return Normal(self.mean(x), self.log_std.exp())


def draw(outputs: Tensor | Normal, kind: str = "softmax") -> Tensor:
    """Log-likelihoods of samples from the model's own distribution."""
    if isinstance(outputs, Normal):
        return outputs.log_prob(outputs.sample()).sum(1)
    if kind == "softmax":
        found = Categorical(logits=outputs)
        return found.log_prob(found.sample())
    return Normal(outputs, 1.0).log_prob(Normal(outputs, 1.0).sample()).sum(1)


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])
