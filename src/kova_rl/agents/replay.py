"""A replay buffer: a ring of transitions in preallocated tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kova_rl.filter.checks import check_whole

__all__ = ["Replay", "Transition", "Transitions"]


class Transition(NamedTuple):
    """One step in an environment."""

    observation: Tensor
    action: int
    reward: float
    next_observation: Tensor
    terminated: bool


class Transitions(NamedTuple):
    """A batch: N x observation, (N, 1) actions, (N,) rewards, N x observation, (N,) booleans."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor


class Replay:
    """The last ``capacity`` transitions, drawn from uniformly, with replacement.

    Args:
        capacity: How many are kept.
        shape: Of an observation.
        seed: Of the draws.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], seed: int) -> None:
        check_whole("capacity", capacity, least=1)
        self._kept = Transitions(
            torch.zeros(capacity, *shape),
            torch.zeros(capacity, 1, dtype=torch.int64),
            torch.zeros(capacity),
            torch.zeros(capacity, *shape),
            torch.zeros(capacity, dtype=torch.bool),
        )
        self._added = 0
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return min(self._added, len(self._kept.rewards))

    def add(self, transition: Transition) -> None:
        """Keep one transition, in the place of the oldest if the buffer is full."""
        at = self._added % len(self._kept.rewards)
        kept = self._kept
        kept.observations[at] = transition.observation
        kept.actions[at] = transition.action
        kept.rewards[at] = transition.reward
        kept.next_observations[at] = transition.next_observation
        kept.terminated[at] = transition.terminated
        self._added += 1

    def sample(self, size: int) -> Transitions:
        """Draw a batch."""
        at = torch.randint(len(self), (size,), generator=self._generator)
        return Transitions(*(column.index_select(0, at) for column in self._kept))

    def state_dict(self) -> dict[str, Any]:
        """What is kept, and where the draws stand."""
        return {
            "kept": [column.clone() for column in self._kept],
            "added": self._added,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        for mine, theirs in zip(self._kept, state["kept"], strict=True):
            mine.copy_(theirs)
        self._added = state["added"]
        self._generator.set_state(state["generator"])
