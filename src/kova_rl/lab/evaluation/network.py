"""Network critics: semi-gradient TD on a replay of what was seen, by any optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.observation import BatchSize, ImportanceWeighted
from kova_rl.optimizer import Kova
from kova_rl.targets import one_step

HIDDEN, BATCH = 32, 32

Make = Callable[[nn.Module], torch.optim.Optimizer]


def network(inputs: int, seed: int, hidden: int = HIDDEN) -> nn.Sequential:
    """A tanh network, inputs-32-1, whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))


class Replay:
    """The latest transitions, all of them or as many as ``window``, in float32."""

    def __init__(self, inputs: int, window: int | None, seed: int) -> None:
        self.window, self._inputs, self._count = window, inputs, 0
        self._rows = np.empty((1024 if window is None else window, 2 * inputs + 3), dtype=np.float32)
        self._rng = np.random.default_rng([seed, 1])

    def add(self, batch: Transitions) -> None:
        """Remember these, and forget the oldest if the window is full."""
        while self.window is None and self._count + len(batch) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        at = (self._count + np.arange(len(batch))) % len(self._rows)
        scalars = np.stack([batch.rewards, batch.terminated, batch.weights], 1)
        self._rows[at] = np.hstack([batch.states, batch.next_states, scalars])
        self._count += len(batch)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """States, next states, rewards, terminated and weights of transitions drawn at random."""
        chosen = self._rng.integers(min(self._count, len(self._rows)), size=count)
        rows, k = torch.from_numpy(self._rows[chosen]), self._inputs
        rewards, over, weights = rows[:, 2 * k :].T
        return rows[:, :k], rows[:, k : 2 * k], rewards, over.bool(), weights


class NetworkCritic:
    r"""One update a call, on a batch of replayed transitions, with one-step targets.

    Off-policy, a target counts by its importance weight :math:`\rho`. A Kova with ``BatchSize`` noise gets
    ``ImportanceWeighted``, which is the same at :math:`\rho = 1`. Kovas with other noises have the
    weight on the innovation, :math:`y = V(s) + \rho\,(r + \gamma V(s') - V(s))`, which has the same fixed
    point; gradient optimizers have it on the squared error.
    """

    def __init__(
        self, make: Make, inputs: int, gamma: float, seed: int, *, window: int | None, weighted: bool
    ) -> None:
        self.critic = network(inputs, seed)
        self.optimizer = make(self.critic)
        if weighted and isinstance(self.optimizer, Kova):
            self.optimizer = _weighted(self.optimizer)
        self.replay, self.gamma, self.weighted = Replay(inputs, window, seed), gamma, weighted

    def observe(self, batch: Transitions) -> None:
        """Remember the transitions, and learn from a batch of all that is remembered."""
        self.replay.add(batch)
        states, after, rewards, over, weights = self.replay.draw(BATCH)
        with torch.no_grad():
            y = one_step(rewards, self._values(after), over, self.gamma)
        predict = partial(self._values, states)
        if isinstance(self.optimizer, Kova):
            replays = BATCH / max(1, min(BATCH, len(batch)))
            self._track(self.optimizer, predict, y, weights, replays)
            return
        self.optimizer.zero_grad()
        (weights * (predict() - y).square()).mean().backward()
        self.optimizer.step()

    def mean_std(self, states: Array) -> tuple[Array, Array | None]:
        """Values of states (features, n x k), and their standard deviations if the critic has any."""
        predict = partial(self._values, torch.as_tensor(states, dtype=torch.float32))
        if isinstance(self.optimizer, Kova):
            belief = self.optimizer.posterior(predict)
            std = belief.std.double().numpy() if belief.tracked else None
            return belief.mean.double().numpy(), std
        return self._plain(predict), None

    @torch.no_grad()
    def _plain(self, predict: Callable[[], Tensor]) -> Array:
        return predict().double().numpy()

    def _track(
        self, optimizer: Kova, predict: Callable[[], Tensor], y: Tensor, weights: Tensor, replays: float
    ) -> None:
        if "weight" in optimizer.observation.inputs:
            optimizer.step(predict, y, weight=weights, replays=replays)
            return
        if self.weighted:
            with torch.no_grad():
                here = predict()
            y = here + weights * (y - here)
        optimizer.step(predict, y, replays=replays)

    def _values(self, states: Tensor) -> Tensor:
        out: Tensor = self.critic(states).squeeze(-1)
        return out


def _weighted(optimizer: Kova) -> Kova:
    """The same filter, before its first step, with importance weights in the paper's noise."""
    if type(optimizer.observation) is not BatchSize:
        return optimizer
    return Kova(
        optimizer.module,
        lr=optimizer.param_groups[0]["lr"],
        covariance=optimizer.covariance,
        evolution=optimizer.evolution,
        observation=ImportanceWeighted(),
    )
