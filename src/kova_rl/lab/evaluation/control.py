"""CartPole and Pendulum under fixed policies, by name; the truth is the mean of rollouts from copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kova_rl.lab.evaluation.environment import Policy
from kova_rl.lab.evaluation.network import Make
from kova_rl.lab.evaluation.own import Own
from kova_rl.lab.evaluation.protocol import Curves

__all__ = ["CONTROL", "learn", "note"]

STATES, ROLLOUTS = 50, 32


def balance(observation: Any) -> int:
    """A pole that is balanced not too well: pushed to the side that it falls to, most of the time."""
    lean = 10.0 * float(observation[2]) + 2.0 * float(observation[3])
    return int(float(torch.rand(())) < 1 / (1 + np.exp(-lean)))


def swing(observation: Any) -> Any:
    """A pendulum that is swung up, and held there against the noise of its own motor."""
    up, side, speed = (float(x) for x in observation)
    torque = -8.0 * side - 2.0 * speed if up > 0.8 else 2.0 * np.sign(speed)
    return np.clip([torque + 0.5 * float(torch.randn(()))], -2.0, 2.0).astype(np.float32)


@dataclass(frozen=True)
class Fixed:
    """An environment and a policy in it, whose actions are drawn with torch's random numbers."""

    env: str
    policy: Policy
    gamma: float


CONTROL = {"cartpole": Fixed("CartPole-v1", balance, 0.95), "pendulum": Fixed("Pendulum-v1", swing, 0.95)}


@lru_cache(maxsize=8)
def _own(task: str, samples: int) -> Own:
    """One a process: the truth takes longer than a run."""
    fixed = CONTROL[task]
    return Own(fixed.env, fixed.policy, fixed.gamma, samples, STATES, ROLLOUTS)


def learn(
    task: str, critic: str | Make, seed: int, samples: int, setting: float | None, tick: Callable[[int], None]
) -> Curves:
    """One run, as :func:`kova_rl.lab.evaluation.evaluate_one` gives it, in the environment's units."""
    return _own(task, samples).learn(critic, setting, seed, tick)


def note(task: str) -> str:
    """How the truth is found."""
    fixed = CONTROL[task]
    rolled = f"truth: mean of {ROLLOUTS} rollouts from each of {STATES} states"
    return f"{rolled} of {fixed.env}, gamma {fixed.gamma:g}"
