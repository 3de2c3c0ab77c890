"""The units in which critics see an environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kova_rl.lab.evaluation.protocol import Exam
from kova_rl.lab.evaluation.rollouts import Truth
from kova_rl.lab.evaluation.transitions import Array, Transitions

FIRST = 1_000
"""Samples that the inputs' mean and spread, and the unit of the rewards, are taken from."""


@dataclass(frozen=True)
class Units:
    """Inputs of mean 0 and spread 1, a constant beside them, and rewards that make values of order 1.

    They are fixed by the first samples: inputs that drift would make the truth drift for the network.
    """

    mean: Array
    std: Array
    reward: float

    @classmethod
    def of(cls, seen: Transitions, gamma: float, plain: bool) -> Units:
        """From the first samples; ``plain`` inputs, such as one-hot ones, are left as they are."""
        first = seen.states[:FIRST]
        k = first.shape[1]
        std = np.ones(k) if plain else first.std(0)
        total, totals = 0.0, []
        for reward, over in zip(
            seen.rewards[:FIRST], (seen.terminated | seen.truncated)[:FIRST], strict=True
        ):
            total = reward + gamma * total
            totals.append(total)
            total *= not over
        scale = float(np.sqrt(np.mean(np.square(totals))))
        mean = np.zeros(k) if plain else first.mean(0)
        return cls(mean, np.where(std > 1e-8, std, 1.0), scale if scale > 0 else 1.0)

    def inputs(self, states: Array) -> Array:
        """What the critics see, n x (k + 1)."""
        scaled = np.clip((states - self.mean) / self.std, -10.0, 10.0)
        return np.hstack([scaled, np.ones((len(states), 1))])

    def transitions(self, seen: Transitions) -> Transitions:
        """The same in these units."""
        after = np.where(seen.terminated[:, None], 0.0, self.inputs(seen.next_states))
        return Transitions(
            self.inputs(seen.states),
            seen.rewards / self.reward,
            after,
            seen.terminated,
            seen.truncated,
            seen.weights,
        )

    def exam(self, known: Truth) -> Exam:
        """The truth in these units."""
        return Exam(self.inputs(known.states), known.values / self.reward, known.doubt / self.reward)
