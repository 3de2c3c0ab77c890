"""Transitions and small networks for the tests of KTD."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def transitions(count: int, size: int, seed: int = 0, actions: int = 3) -> list[tuple[Any, ...]]:
    """State, reward, next state, terminated, action, next action; every seventh one ends an episode."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(size=size),
            rng.normal(),
            rng.normal(size=size),
            t % 7 == 6,
            *rng.integers(actions, size=2),
        )
        for t in range(count)
    ]


def q_network(activation: type[nn.Module] = nn.ReLU, seed: int = 0, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, outputs)).double()


class Wrapped(nn.Module):
    """The same network, hidden from the fast path."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out
