"""A critic that goes through a rollout in minibatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from kova_rl.info import StepInfo
from kova_rl.optimizer import Kova
from kova_rl.value_loop.rollout import rows_of

__all__ = ["Learner", "Passes"]

Look = tuple[int, int]
Noted = Callable[[Tensor, Tensor, StepInfo | None], None]


@dataclass(frozen=True)
class Learner:
    """What moves a critic's weights: a filter, a gradient optimizer, or each of them a part."""

    predict: Callable[[Any], Tensor]
    """Values of observations."""
    kova: Kova | None = None
    optimizer: torch.optim.Optimizer | None = None
    weights: Sequence[nn.Parameter] = ()
    """Those that the optimizer has; what its user has frozen stays."""
    factor: float = 1.0
    """Of the squared error in the optimizer's loss."""
    max_norm: float | None = None
    """Of the gradient; None for no bound."""

    def learn(
        self, observations: Any, targets: Tensor, noise: Mapping[str, Tensor], look: Look
    ) -> tuple[Tensor, StepInfo | None]:
        """One step on a minibatch; gives the innovations before it, and the filter's report."""
        innovation, info = targets, None
        if self.optimizer is not None:
            predictions = self.predict(observations).flatten()
            free = [weight for weight in self.weights if weight.requires_grad]
            if free:
                (self.factor * mse_loss(targets, predictions)).backward(inputs=free)
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(free, self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()  # or the host would count these gradients when it clips the policy's
            innovation = targets - predictions.detach()
        if self.kova is not None:
            wanted: dict[str, Any] = {key: noise[key] for key in self.kova.observation.inputs}
            info = self.kova.step(lambda: self.predict(observations).flatten(), targets, look=look, **wanted)
            innovation = info.innovation
        return innovation, info


class Passes:
    """The passes of a critic through one rollout."""

    def __init__(
        self, learner: Learner, batch: int | None, total: int, permute: Callable[[int], NDArray[Any]]
    ) -> None:
        """Nothing is learned yet.

        Args:
            learner: What moves the critic.
            batch: Samples in a minibatch; None for all at once.
            total: How many passes there will be.
            permute: Gives so many numbers in a random order.
        """
        self.learner, self.batch, self.total = learner, batch, total
        self.permute, self.made = permute, 0

    def go(
        self,
        observations: Any,
        targets: Tensor,
        noise: Mapping[str, Tensor],
        noted: Noted = lambda *_: None,
    ) -> None:
        """One pass.

        Args:
            observations: One row a sample.
            targets: One number a sample.
            noise: What the filter's noise may need, one number a sample each.
            noted: Is told of each step: the innovations, the targets, and the filter's report.
        """
        self.made += 1
        order = torch.from_numpy(self.permute(len(targets))).to(targets.device)
        for index in order.split(self.batch or len(order)):
            chosen = {name: values[index] for name, values in noise.items()}
            seen, goals = rows_of(observations, index), targets[index]
            innovation, info = self.learner.learn(seen, goals, chosen, (self.made, self.total))
            noted(innovation, goals, info)
