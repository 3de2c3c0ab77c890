"""Is one policy better than another, by how much, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces.utils import flatten

from kova_rl.filter.checks import check_real, check_whole
from kova_rl.lab.evaluation.environment import Env, acting, collect, make_env
from kova_rl.lab.evaluation.estimate import Estimate, estimate
from kova_rl.lab.evaluation.protocol import STEP

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """Two policies in the same states."""

    a: Estimate
    b: Estimate
    where: str = "at the beginning of an episode"

    @property
    def difference(self) -> Estimate:
        """The value of A less that of B; they were walked independently."""
        return Estimate(self.a.value - self.b.value, math.hypot(self.a.std, self.b.std))

    @property
    def sure(self) -> float:
        """The probability that A is better."""
        ahead = self.difference
        if ahead.std == 0:
            return 0.5 * (1 + float(np.sign(ahead.value)))
        return NormalDist().cdf(ahead.value / ahead.std)

    def __str__(self) -> str:
        ahead, how = self.difference, max(self.sure, 1 - self.sure)
        low, high = ahead.interval()
        verdict = "A is better than B" if low > 0 else "B is better than A" if high < 0 else "It is open"
        likely = "A" if ahead.value >= 0 else "B"
        return (
            f"{verdict}: A less B is {ahead.value:.4g} {self.where} (discounted), 95% interval {low:.4g} to "
            f"{high:.4g}; {likely} is better with probability {min(how, 0.9999):.2%}."
        )


def compare(
    env: str | Callable[[], Env],
    policy_a: Any,
    policy_b: Any,
    *,
    gamma: float = 0.99,
    samples: int = 5_000,
    walks: int = 2,
    deterministic: bool = True,
    at: Any = None,
    seed: int = 0,
) -> Comparison:
    """Is policy A better than policy B, by how much, and how sure is that?

    Each walks by itself; a critic with a solved head, as ``kova-head``, learns its values and says how far
    they may be off.

    Args:
        env: A registered name, or a function that makes the environment.
        policy_a: A function of the observation that returns an action, or a Stable-Baselines3 model.
        policy_b: The other.
        gamma: Discount, in [0, 1].
        samples: Transitions of each walk.
        walks: Of each policy, with a critic each; their answers are averaged.
        deterministic: Whether a model's actions are its most likely ones, or drawn.
        at: An observation in which they are compared; None for the begin of an episode, as it is drawn.
        seed: Of all that is drawn. Walks of other seeds share nothing.

    Returns:
        The two values, their difference with an interval, and how sure it is that A is better; ``print`` it
        for one line.
    """
    check_real("gamma", gamma, "a number in [0, 1]", isinstance(gamma, (int, float)) and 0 <= gamma <= 1)
    check_whole("samples", samples, 20 * STEP)
    check_whole("walks", walks, 1)
    made = make_env(env)
    space: Any = made.observation_space
    state = None if at is None else np.asarray(flatten(space, at), dtype=np.float64)[None]
    plain = not isinstance(space, gymnasium.spaces.Box)

    def worth(policy: Any, first: int) -> Estimate:
        act, found = acting(policy, deterministic), []
        for each in range(first, first + walks):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(each)  # of a policy that draws its actions with torch
                seen = collect(made, act, samples, each)
            found.append(estimate(seen, gamma, at=state, seed=each, plain=plain))
        return Estimate.mean(found)

    first = 2 * walks * seed  # no two walks share their chance
    where = "at the beginning of an episode" if at is None else "in this state"
    found = Comparison(worth(policy_a, first), worth(policy_b, first + walks), where)
    made.close()
    return found
