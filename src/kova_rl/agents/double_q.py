"""Double Q-learning as in the paper's maze experiments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kova_rl.agents.learners import Learner
from kova_rl.agents.replay import Replay, Transition
from kova_rl.filter.checks import check_real, check_whole

__all__ = ["DoubleQ", "History", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The paper's settings, and those that only its code states."""

    gamma: float = 0.95
    """Discount, in [0, 1]."""
    batch: int = 32
    """Transitions in a batch; learning begins once the buffer holds one."""
    buffer: int | None = None
    """Transitions in the replay buffer; None is 8 x the size of an observation, at least a batch."""
    target_every: int = 200
    """Steps between two copies of the network to the target network."""
    epsilon: float = 0.1
    """Probability of a random action, drawn from those that are not blocked."""
    epsilon_solved: float = 0.05
    """The same, while the success rate is above ``solved``."""
    solved: float = 0.9
    """Success rate from which on ``epsilon_solved`` holds."""
    window: int | None = None
    """Episodes that the success rate is counted over; None is half the size of an observation."""

    def __post_init__(self) -> None:
        for name in ("gamma", "epsilon", "epsilon_solved", "solved"):
            value = getattr(self, name)
            check_real(name, value, "a number in [0, 1]", isinstance(value, int | float) and 0 <= value <= 1)
        for name in ("batch", "target_every"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("buffer", "window"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        if self.buffer is not None and self.buffer < self.batch:
            raise ValueError(f"buffer must hold a batch of {self.batch}, got {self.buffer}")


@dataclass
class History:
    """The episodes that ended: when, how, and with what total reward."""

    window: int
    ends: list[int] = field(default_factory=list)
    """The step, counted from 1, that ended each episode."""
    successes: list[bool] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ends)

    def rate(self) -> float:
        """Success rate over the last ``window`` episodes; those that are still missing count as failed."""
        return sum(self.successes[-self.window :]) / self.window

    def curve(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """The success rate after each of these steps."""
        total = np.concatenate([[0.0], np.cumsum(self.successes)])
        done = np.searchsorted(self.ends, steps, side="right")
        rates: NDArray[np.float64] = (total[done] - total[np.maximum(done - self.window, 0)]) / self.window
        return rates


class DoubleQ:
    """An agent that acts on a Q-network and learns as it goes.

    Args:
        env: With a flat ``Box`` of observations and ``Discrete`` actions. If ``info`` has an
            ``"action_mask"``, random actions keep to it; ``info["is_success"]`` says how an episode ended.
        network: Q: N x observation to N x actions; and one observation to actions, to act on.
        learner: What improves the network, such as :class:`FromReplay`; None only acts.
        settings: See :class:`Settings`.
        seed: Of the environment, the exploration and the replay: the same seed, the same curve.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        network: nn.Module,
        learner: Learner | None,
        settings: Settings | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(env.action_space, gymnasium.spaces.Discrete) or env.action_space.start != 0:
            raise ValueError(f"the agent needs Discrete actions from 0 on, got {env.action_space}")
        shape = env.observation_space.shape
        if not isinstance(env.observation_space, gymnasium.spaces.Box) or shape is None or len(shape) != 1:
            raise ValueError(
                f"the agent needs a flat Box of observations, got {env.observation_space}: wrap the "
                "environment in gymnasium.wrappers.FlattenObservation"
            )
        self.env, self.network, self.learner = env, network, learner
        self.settings = settings or Settings()
        self.history = History(self.settings.window or max(1, shape[0] // 2))
        self.replay = Replay(self.settings.buffer or max(8 * shape[0], self.settings.batch), shape, seed)
        self.steps = self.acted = 0
        self._actions = list(range(int(env.action_space.n)))
        self._random = random.Random(seed)
        self._return = 0.0
        self._begin(seed)

    def _begin(self, seed: int | None = None) -> None:
        observation, self._info = self.env.reset(seed=seed)
        self._observation = torch.tensor(observation, dtype=torch.float32)
        self._return = 0.0

    def learn(self, steps: int) -> History:
        """Act and learn for so many more steps; returns the history of all."""
        solved = self.settings.solved
        for _ in range(steps):
            epsilon = self.settings.epsilon_solved if self.history.rate() > solved else self.settings.epsilon
            self._step(self._act(epsilon))
        return self.history

    def _act(self, epsilon: float) -> int:
        if self._random.random() >= epsilon:
            with torch.no_grad():
                self.acted += 1
                return int(self.network(self._observation).argmax())
        mask = self._info.get("action_mask")
        allowed = (
            self._actions
            if mask is None
            else [a for a, free in zip(self._actions, mask, strict=True) if free]
        )
        return self._random.choice(allowed)

    def _step(self, action: int) -> None:
        before = self._observation
        after, reward, terminated, truncated, self._info = self.env.step(action)
        reward, self._observation = float(reward), torch.tensor(after, dtype=torch.float32)
        transition = Transition(before, action, reward, self._observation, terminated)
        self.steps += 1
        self._return += reward
        self.replay.add(transition)
        if terminated or truncated:
            self.history.ends.append(self.steps)
            self.history.successes.append(bool(self._info.get("is_success", False)))
            self.history.returns.append(self._return)
            self._begin()
        if self.learner is not None:  # last: if it raises, the agent is where it should be
            self.learner.update(transition, self.replay, self.settings)

    def state_dict(self) -> dict[str, Any]:
        """What the agent goes on from, beside its environment; ``torch.save`` takes it."""
        mask = self._info.get("action_mask")
        return {
            "network": self.network.state_dict(),
            "learner": None if self.learner is None else self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "history": (self.history.ends, self.history.successes, self.history.returns),
            "random": self._random.getstate(),
            "counts": (self.steps, self.acted),
            "episode": (self._observation, self._return, None if mask is None else [int(x) for x in mask]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit, if the environment does."""
        self.network.load_state_dict(state["network"])
        if self.learner is None or state["learner"] is None:
            self.learner = None
        else:
            self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        self.history = History(self.history.window, *state["history"])
        self._random.setstate(state["random"])
        self.steps, self.acted = state["counts"]
        self._observation, self._return, mask = state["episode"]
        self._info = {} if mask is None else {"action_mask": mask}
