"""How good a policy is, and how sure: from transitions, by a critic with a solved head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from kova_rl.errors import InvalidBatch
from kova_rl.filter.checks import check_real
from kova_rl.lab.evaluation.critics import Problem, build
from kova_rl.lab.evaluation.headed import HeadedCritic
from kova_rl.lab.evaluation.protocol import STEP
from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.lab.evaluation.units import Units

__all__ = ["Estimate", "estimate", "evaluate_data", "evaluate_file"]


@dataclass(frozen=True)
class Estimate:
    """A number and how far it may be off."""

    value: float
    std: float
    """Standard error."""

    @classmethod
    def mean(cls, of: Sequence[Estimate]) -> Estimate:
        """Of estimates that are independent of each other."""
        total = math.sqrt(sum(each.std**2 for each in of))
        return cls(sum(each.value for each in of) / len(of), total / len(of))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper end of the central interval."""
        half = NormalDist().inv_cdf((1 + level) / 2) * self.std
        return self.value - half, self.value + half

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.value:.4g} (95% interval {low:.4g} to {high:.4g})"


def estimate(
    seen: Transitions, gamma: float, *, at: Array | None = None, seed: int = 0, plain: bool = False
) -> Estimate:
    """The mean value of the states in which episodes begin, or of those of ``at``, in the rewards' unit.

    Args:
        seen: Transitions in the order of time.
        gamma: Discount.
        at: States, n x k, as they are; None for the begins of ``seen``, which are taken for a sample of all.
        seed: Of the network and its replay.
        plain: Whether inputs are left as they are, as one-hot ones should be.
    """
    units = Units.of(seen, gamma, plain)
    shown, weighted = units.transitions(seen), bool((seen.weights != 1).any())
    critic = build("kova-head", Problem(shown.states.shape[1], gamma, seed, weighted))
    assert isinstance(critic, HeadedCritic)
    for batch in shown.pieces(STEP):
        critic.observe(batch)
    states = shown.begins if at is None else units.inputs(at)
    mean, std = critic.average(states, drawn=at is None)
    return Estimate(mean * units.reward, std * units.reward)


def evaluate_data(
    observations: Any,
    rewards: Any,
    next_observations: Any,
    terminated: Any,
    truncated: Any = None,
    weights: Any = None,
    *,
    gamma: float = 0.99,
    at: Any = None,
    seed: int = 0,
) -> Estimate:
    """How good the policy is that made these transitions, and how sure that is.

    A critic learns from them once through, as in ``kova evaluate``, and its last layer is solved from all.

    Args:
        observations: N x k, in the order of time.
        rewards: Of shape (N,).
        next_observations: What followed, N x k; where the episode terminated, anything.
        terminated: Whether nothing follows, of shape (N,).
        truncated: Whether the walk was cut, so that the next row is not of it; None for nowhere.
        weights: Importance weights pi(a|s)/b(a|s), where another policy walked; None for ones.
        gamma: Discount, in [0, 1].
        at: Observations whose mean value is asked for; None for those in which episodes began.
        seed: Of the network.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> before, after = rng.normal(size=(2, 1000, 2))
        >>> worth = evaluate_data(before, rng.normal(1, 1, 1000), after, np.zeros(1000), gamma=0.9)
        >>> low, high = worth.interval()
        >>> bool(low < 10 < high)  # the value is 10 everywhere
        True
    """
    check_real("gamma", gamma, "a number in [0, 1]", isinstance(gamma, (int, float)) and 0 <= gamma <= 1)
    states, after = _rows("observations", observations), _rows("next_observations", next_observations)
    n = len(states)
    columns = {
        **{"rewards": rewards, "terminated": terminated},
        **{"truncated": np.zeros(n) if truncated is None else truncated},
        **{"weights": np.ones(n) if weights is None else weights},
    }
    found = {name: np.asarray(x, dtype=np.float64) for name, x in columns.items()}
    for name, column in found.items():
        if column.shape != (n,):
            raise InvalidBatch(f"{name} must have shape ({n},), one for each observation, got {column.shape}")
    if after.shape != states.shape:
        raise InvalidBatch(
            f"next_observations must be as the observations, {states.shape}, got {after.shape}"
        )
    over, cut = found["terminated"] > 0, found["truncated"] > 0
    after = np.where(over[:, None], 0.0, after)
    seen = Transitions(states, found["rewards"], after, over, cut & ~over, found["weights"])
    return estimate(seen, gamma, at=None if at is None else _rows("at", at), seed=seed)


def evaluate_file(path: Path, gamma: float) -> Estimate:
    """The same of arrays in a file that ``numpy.savez`` wrote, by the names of the arguments."""
    needed = ("observations", "rewards", "next_observations", "terminated")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"--data must be a file that numpy.savez wrote, got {path} ({error})") from None
    for name in (*needed, *arrays):
        if name not in arrays or name not in (*needed, "truncated", "weights"):
            raise ValueError(
                f"--data must have {', '.join(needed)}, and may have truncated and weights; "
                f"{path} has {', '.join(arrays)}"
            )
    return evaluate_data(**arrays, gamma=gamma)


def _rows(name: str, given: Any) -> Array:
    rows = np.asarray(given, dtype=np.float64)
    if rows.ndim < 2 or not len(rows):
        raise InvalidBatch(f"{name} must be rows of numbers, N x k with N above 0, got shape {rows.shape}")
    return rows.reshape(len(rows), -1)
