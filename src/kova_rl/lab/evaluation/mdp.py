r"""A finite MDP, a policy to evaluate in it, and one to walk with.

With :math:`P_\pi(s'|s) = \sum_a \pi(a|s) P(s'|s, a)` and :math:`r_\pi` likewise, the true values solve

.. math:: V = r_\pi + \gamma P_\pi V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kova_rl.lab.evaluation.transitions import Array

__all__ = ["Task", "bumps"]

CLIP = 10.0
"""The largest importance weight."""


@dataclass(frozen=True)
class Task:
    """A finite MDP of S states and A actions, a policy to evaluate, and one to walk with."""

    name: str
    moves: Array
    """P(s'|s, a), A x S x (S+1); the last column is the end of the episode."""
    rewards: Array
    """r(s, a, s'), A x S x (S+1)."""
    features: Array
    """What critics see of each state, S x k."""
    policy: Array
    """pi(a|s), S x A: whose values are asked for."""
    behaviour: Array
    """b(a|s), S x A: who walks."""
    start: Array
    """Where episodes begin, S probabilities."""
    gamma: float

    def values(self) -> Array:
        """The true values of ``policy``, by a linear solve."""
        states = len(self.features)
        step = np.einsum("sa,ast->st", self.policy, self.moves)
        reward = np.einsum("sa,ast,ast->s", self.policy, self.moves, self.rewards)
        solved: Array = np.linalg.solve(np.eye(states) - self.gamma * step[:, :states], reward)
        return solved

    def ratios(self) -> Array:
        """Importance weights pi/b, S x A, clipped."""
        safe = np.where(self.behaviour > 0, self.behaviour, 1.0)
        return np.clip(np.where(self.behaviour > 0, self.policy / safe, 0.0), 0.0, CLIP)

    def linear_floor(self) -> float:
        """RMS error of the best values that are linear in the features: no linear critic beats it."""
        truth = self.values()
        weights = np.linalg.lstsq(self.features, truth, rcond=None)[0]
        return float(np.sqrt(np.mean((self.features @ weights - truth) ** 2)))


def bumps(places: Array, centres: Array, width: float) -> Array:
    """Gaussian radial basis functions of places, S x k."""
    square = ((places[:, None] - centres[None]) ** 2).sum(-1)
    heights: Array = np.exp(-0.5 * square / width**2)
    return heights
