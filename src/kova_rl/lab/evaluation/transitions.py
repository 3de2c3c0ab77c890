"""What a critic is shown: transitions in the order in which they were made."""

from __future__ import annotations

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

    def __len__(self) -> int:
        return len(self.rewards)
