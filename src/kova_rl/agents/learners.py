"""What a Q-network learns from: batches of the replay buffer, or each transition as it comes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from kova_rl import targets
from kova_rl.agents.replay import Replay, Transition
from kova_rl.optimizer import Kova

if TYPE_CHECKING:
    from kova_rl.agents.double_q import Settings
    from kova_rl.baselines import KTD

__all__ = ["FromReplay", "Learner", "OneTransition"]


class Learner(Protocol):
    """Improves the network after each step of the environment."""

    @property
    def evaluations(self) -> int:
        """How many inputs the network was evaluated at so far, to learn; the paper's forward passes."""

    def update(self, transition: Transition, replay: Replay, settings: Settings) -> None:
        """Learn from the newest transition, which the replay buffer holds already."""

    def state_dict(self) -> dict[str, Any]:
        """What learning goes on from, beside the network."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""


class FromReplay:
    r"""Double Q-learning on batches of the replay buffer, with a target network.

    .. math:: y = r + \gamma\, Q\big(s', \arg\max_{a'} Q(s', a'; \theta); \theta'\big)

    Args:
        network: Q: N x observation to N x actions.
        optimizer: :class:`~kova_rl.Kova` on the network, or any ``torch.optim.Optimizer`` on its
            parameters, which then minimises the mean squared Bellman error.
        schedule: The learning rate by update, from 0; None keeps the optimizer's own.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        self.network, self.optimizer, self.schedule = network, optimizer, schedule
        self.target = copy.deepcopy(network).requires_grad_(False)
        self._steps = self._updates = self._evaluations = 0

    @property
    def evaluations(self) -> int:
        return self._evaluations

    def update(self, transition: Transition, replay: Replay, settings: Settings) -> None:
        self._steps += 1
        if len(replay) >= settings.batch:
            self._learn(replay, settings)
        if self._steps % settings.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())

    def _learn(self, replay: Replay, settings: Settings) -> None:
        batch = replay.sample(settings.batch)
        with torch.no_grad():
            online, target = self.network(batch.next_observations), self.target(batch.next_observations)
        y = targets.double_q(batch.rewards, online, target, batch.terminated, settings.gamma)
        if self.schedule is not None:
            self.optimizer.param_groups[0]["lr"] = self.schedule(self._updates)

        def predictions() -> Tensor:
            q: Tensor = self.network(batch.observations)
            return q.gather(1, batch.actions).squeeze(1)

        if isinstance(self.optimizer, Kova):
            self.optimizer.step(predictions, y, replays=settings.batch)
        else:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(predictions(), y).backward()
            self.optimizer.step()
        self._updates += 1
        self._evaluations += 3 * settings.batch

    def state_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": (self._steps, self._updates, self._evaluations),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps, self._updates, self._evaluations = state["counts"]


class OneTransition:
    """The optimality form of KTD: no replay, no target network, one transition at a time.

    Args:
        ktd: The filter, with the equation :class:`~kova_rl.baselines.Optimality`.
    """

    def __init__(self, ktd: KTD) -> None:
        self.ktd = ktd

    @property
    def evaluations(self) -> int:
        return self.ktd.forward_passes

    def update(self, transition: Transition, replay: Replay, settings: Settings) -> None:
        before, action, reward, after, terminated = transition
        self.ktd.step(before, reward, after, terminated, action=action)

    def state_dict(self) -> dict[str, Any]:
        return self.ktd.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ktd.load_state_dict(state)
