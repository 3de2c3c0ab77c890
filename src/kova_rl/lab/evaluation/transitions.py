"""What a critic is shown: transitions in the order in which they were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Transitions:
    """n consecutive steps ``(s, r, s')`` of one walk through episodes."""

    states: Array
    """Features of s, n x k."""
    rewards: Array
    """r, of shape (n,)."""
    next_states: Array
    """Features of s', n x k; zeros where the episode terminated."""
    terminated: Flags
    """Whether nothing follows s'."""
    truncated: Flags
    """Whether the walk was cut at s' and goes on elsewhere: s' has a value, but the next row is not of it."""
    weights: Array
    """Importance weights pi(a|s)/b(a|s); ones on-policy."""

    @property
    def begins(self) -> Array:
        """The states in which an episode began, the first one included."""
        over = self.terminated | self.truncated
        found: Array = self.states[np.concatenate([[True], over[:-1]])]
        return found

    def pieces(self, length: int) -> Iterator[Transitions]:
        """As they come, so many at a time; the last may be shorter."""
        for t in range(0, len(self), length):
            yield Transitions(**{name: x[t : t + length] for name, x in vars(self).items()})

    def __len__(self) -> int:
        return len(self.rewards)
