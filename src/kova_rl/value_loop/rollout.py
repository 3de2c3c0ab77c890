"""One rollout of one or several environments, and what a critic makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kova_rl import targets

__all__ = ["Estimate", "Rollout", "in_chunks", "rows_of"]

CHUNK = 4096
"""Observations that a network is shown at once."""


class Estimate(NamedTuple):
    """What a critic makes of a rollout, T x environments each."""

    values: Tensor
    """V(s_t)."""
    returns: Tensor
    """The lambda-returns; less the values they are the generalised advantage estimates."""

    @property
    def advantages(self) -> Tensor:
        return self.returns - self.values


@dataclass(frozen=True)
class Rollout:
    """T steps of each environment, time-major; what is observed is flat, one environment after the other."""

    observations: Any
    """A tensor, or a dict of tensors, of T x environments rows."""
    rewards: Tensor
    """T x environments, of the environment alone: no value is added where a time limit cut an episode."""
    terminated: Tensor
    """Whether the episode ended with the step."""
    truncated: Tensor
    """Whether it was cut after the step."""
    last: Any
    """What was observed after the last step, a row for each environment."""
    cut: Any
    """What was observed after each step that was cut, in the order of the observations; None if none was."""

    @torch.no_grad()
    def estimate(self, predict: Callable[[Any], Tensor], gamma: float, lam: float) -> Estimate:
        """Values and lambda-returns of the critic as it is.

        Args:
            predict: Values of observations.
            gamma: Discount.
            lam: lambda.
        """
        steps, envs = self.rewards.shape
        values = in_chunks(predict, self.observations).to(self.rewards).reshape(envs, steps).T
        after = values.roll(-1, 0)
        after[-1] = in_chunks(predict, self.last).to(after)
        if self.cut is not None:
            env, step = self.truncated.T.nonzero(as_tuple=True)
            after[step, env] = in_chunks(predict, self.cut).to(after)
        arguments = (self.rewards, values, after, self.terminated, self.truncated)
        return Estimate(values, targets.gae(*arguments, gamma=gamma, lam=lam))


def rows_of(tree: Any, index: Tensor | slice) -> Any:
    """Some rows of a tensor, or of a dict of tensors."""
    if isinstance(tree, Mapping):
        return {name: value[index] for name, value in tree.items()}
    return tree[index]


def in_chunks(function: Callable[..., Tensor], *trees: Any) -> Tensor:
    """One number a row, of rows that may be too many for one call."""
    first = next(iter(trees[0].values())) if isinstance(trees[0], Mapping) else trees[0]
    if len(first) <= CHUNK:
        return function(*trees).flatten()
    parts = [slice(at, at + CHUNK) for at in range(0, len(first), CHUNK)]
    return torch.cat([function(*(rows_of(tree, part) for tree in trees)).flatten() for part in parts])
