"""One rollout learned from: the policy's epochs by the host, the critic's passes beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kova_rl.sb3.collected import observations_of, rollout_of, write_advantages
from kova_rl.value_loop import Estimate, Passes, Rollout, solve_head

if TYPE_CHECKING:
    from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["Apart", "as_the_host_draws", "frozen"]


class Apart:
    """Gives the critic its passes through the rollout, and new advantages and returns where they are due."""

    def __init__(self, model: FilteredValue, permute: Callable[[int], NDArray[Any]]) -> None:
        assert model.loop is not None
        self.model, self.loop = model, model.loop
        batch = self.loop.value_batch or model._hosts_batch()
        whole = None if batch is None else int(batch)  # the host takes NumPy's
        self.passes = Passes(model._learner(), whole, model.passes, permute)
        self.moved = self.ahead = False  # of the rollout's values; of its advantages
        self.rollout: Rollout | None = rollout_of(model, model._cuts) if self.loop.rewrites else None
        self.observations = observations_of(model) if self.rollout is None else self.rollout.observations
        self.targets = self._returns()

    def learn(self) -> None:
        """Everything that the rollout is for."""
        turns = self.model._epochs() if self.loop.recompute == "each" else 1
        due = [k * turns // self.passes.total for k in range(self.passes.total)]
        for turn in range(turns):
            if self.loop.value_first:
                self._go(due.count(turn))
            if self.loop.recompute is not None and self.ahead:
                self._compute_again()
            going_on = self.model._learn_policy(1 if turns > 1 else self.model._epochs())
            if not self.loop.value_first:
                self._go(due.count(turn))
            if not going_on:
                break
        self._go(self.passes.total - self.passes.made)  # what an early end of the policy's epochs has left

    def _go(self, passes: int) -> None:
        for _ in range(passes):
            if self.loop.recompute == "each" and self.moved:
                self.targets = self._returns()
            self.model.policy.set_training_mode(True)
            self.passes.go(self.observations, self.targets, self._noise(), self.model._noted)
            self.moved = self.ahead = True
            if self.loop.head is not None and self.passes.made == self.passes.total:
                self._solve_head(self.loop.head)

    def _solve_head(self, prior: float) -> None:
        assert self.rollout is not None
        self.model.policy.set_training_mode(False)
        lam = self.model.gae_lambda if self.loop.value_lambda is None else self.loop.value_lambda
        solve_head(self.model._heads(), self.rollout, self.model.gamma, lam, prior)

    def _noise(self) -> dict[str, Tensor]:
        wanted = self.passes.learner.kova.observation.inputs if self.passes.learner.kova else ()
        if not wanted:
            return {}
        ratio = self.model._ratio(self.observations)
        return dict.fromkeys(wanted, ratio)

    def _returns(self) -> Tensor:
        """What the critic learns, flat."""
        lam = self.loop.value_lambda
        if self.rollout is None or (lam is None and not self.moved):
            buffer: Any = self.model.rollout_buffer
            found: Tensor = torch.as_tensor(buffer.returns, device=self.model.device)
            return found.flatten() if buffer.generator_ready else found.T.flatten()
        return self._estimate(self.model.gae_lambda if lam is None else lam).returns.T.flatten()

    def _compute_again(self) -> None:
        write_advantages(self.model, self._estimate(self.model.gae_lambda).advantages)
        self.ahead = False

    def _estimate(self, lam: float) -> Estimate:
        assert self.rollout is not None
        self.model.policy.set_training_mode(False)
        return self.rollout.estimate(self.model.policy.predict_values, self.model.gamma, lam)


def as_the_host_draws() -> Callable[[int], NDArray[Any]]:
    """The permutations that the host is about to draw, without drawing them.

    So the critic sees the minibatches in the order in which the host's own loop would show them, and the
    host's random numbers are where they would be without it.
    """
    state = np.random.RandomState()
    state.set_state(np.random.get_state())
    return state.permutation


@contextmanager
def frozen(weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """The host's loss does not reach these weights, and its gradient is not clipped for them."""
    held = [weight for weight in weights if weight.requires_grad]
    for weight in held:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in held:
            weight.requires_grad_(True)
