"""The chain of ``kova evaluate`` as batches of states and targets for a critic in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from kova_rl.lab.evaluation.network import BATCH, Replay
from kova_rl.lab.evaluation.tasks import phases
from kova_rl.lab.evaluation.walk import Walker
from kova_rl.targets import one_step

INPUTS = 12


def values(critic: nn.Module, features: Tensor) -> Tensor:
    """V of each state, of shape (N,)."""
    out: Tensor = critic(features).squeeze(-1)
    return out


class Chain:
    """A walk on the chain, replayed at random."""

    def __init__(self, seed: int) -> None:
        (task,) = phases("chain", "on-policy")
        self._walker, self._gamma = Walker(task, np.random.default_rng(seed)), task.gamma
        self._replay = Replay(INPUTS, None, seed)

    def walk(self, steps: int) -> None:
        """Go on walking, and remember what was seen."""
        self._replay.add(self._walker.walk(steps))

    def batch(self, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """States that were seen, drawn at random, and their one-step targets."""
        states, after, rewards, over, _ = self._replay.draw(BATCH)
        with torch.no_grad():
            following = values(critic, after.double())
        return states.double(), one_step(rewards.double(), following, over, self._gamma)
