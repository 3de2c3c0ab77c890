r"""Policy evaluation with known answers: three finite MDPs, and how a condition changes them.

With :math:`P_\pi(s'|s) = \sum_a \pi(a|s) P(s'|s, a)` and :math:`r_\pi` likewise, the true values solve

.. math:: V = r_\pi + \gamma P_\pi V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kova_rl.filter.checks import check_choice
from kova_rl.lab.evaluation.transitions import Array

__all__ = ["CONDITIONS", "TASKS", "Task", "phases"]

CLIP = 10.0
"""The largest importance weight."""


@dataclass(frozen=True)
class Task:
    """A finite MDP of S states and A actions, a policy to evaluate, and one to walk with."""

    name: str
    transitions: Array
    """P(s'|s, a), A x S x (S+1); the last column is the end of the episode."""
    rewards: Array
    """r(s, a, s'), A x S x (S+1)."""
    features: Array
    """What critics see of each state, S x k."""
    policy: Array
    """pi(a|s), S x A: whose values are asked for."""
    behaviour: Array
    """b(a|s), S x A: who walks."""
    start: Array
    """Where episodes begin, S probabilities."""
    gamma: float

    def values(self) -> Array:
        """The true values of ``policy``, by a linear solve."""
        states = len(self.features)
        step = np.einsum("sa,ast->st", self.policy, self.transitions)
        reward = np.einsum("sa,ast,ast->s", self.policy, self.transitions, self.rewards)
        solved: Array = np.linalg.solve(np.eye(states) - self.gamma * step[:, :states], reward)
        return solved

    def ratios(self) -> Array:
        """Importance weights pi/b, S x A, clipped."""
        safe = np.where(self.behaviour > 0, self.behaviour, 1.0)
        return np.clip(np.where(self.behaviour > 0, self.policy / safe, 0.0), 0.0, CLIP)

    def linear_floor(self) -> float:
        """RMS error of the best values that are linear in the features: no linear critic beats it."""
        truth = self.values()
        weights = np.linalg.lstsq(self.features, truth, rcond=None)[0]
        return float(np.sqrt(np.mean((self.features @ weights - truth) ** 2)))


def _bumps(places: Array, centres: Array, width: float) -> Array:
    """Gaussian radial basis functions of places, S x k."""
    square = ((places[:, None] - centres[None]) ** 2).sum(-1)
    bumps: Array = np.exp(-0.5 * square / width**2)
    return bumps


def _always(row: list[float], states: int) -> Array:
    return np.tile(np.array(row), (states, 1))


def chain(condition: str) -> tuple[Task, ...]:
    """A random walk on 30 states that ends beyond either end: reward -1 on the left, +1 on the right.

    Episodes begin in the middle. Off-policy, the walker leans outwards (0.65); the deterministic walk
    goes right from anywhere; at the switch the rewards change sign.
    """
    n = 30
    step = np.zeros((2, n, n + 1))
    reward = np.zeros_like(step)
    for s in range(n):
        step[0, s, s - 1 if s > 0 else n] = 1.0
        step[1, s, s + 1] = 1.0
    reward[0, 0, n], reward[1, n - 1, n] = -1.0, 1.0
    place = np.linspace(-1.0, 1.0, n)[:, None]
    features = _bumps(place, np.linspace(-1.0, 1.0, 12)[:, None], 0.15)
    even, middle = _always([0.5, 0.5], n), np.eye(n)[n // 2]
    task = Task("chain", step, reward, features, even, even, middle, 0.98)
    if condition == "deterministic":
        right = _always([0.0, 1.0], n)
        return (replace(task, policy=right, behaviour=right, start=np.full(n, 1 / n)),)
    if condition == "off-policy":
        outwards = np.where(place < 0, [[0.65, 0.35]], [[0.35, 0.65]])
        return (replace(task, behaviour=outwards),)
    return (task, replace(task, rewards=-reward)) if condition == "switch" else (task,)


def boyan(condition: str) -> tuple[Task, ...]:
    """Boyan's chain: 13 states, one or two steps down at random, reward -0.3 a move and -0.2 for the last.

    Four features interpolate between states 12, 8, 4 and 0, so that V = -0.2 s is linear in them. Rewards
    are a tenth of Boyan's, to bring values to the order of 1. Off-policy, the walker takes short steps
    (0.8); the deterministic walk takes only them; at the switch short steps become likely (0.9).
    """
    n = 13
    step, reward = np.zeros((2, n, n + 1)), np.zeros((2, n, n + 1))
    for action in (0, 1):
        for s in range(n):
            after = max(s - 1 - action, 0) if s else n
            step[action, s, after] = 1.0
            reward[action, s, after] = (-0.3 if s > 1 else -0.2) if s else 0.0
    place = np.arange(n)[:, None] / 4.0
    features = np.clip(1.0 - np.abs(place - np.array([[3.0, 2.0, 1.0, 0.0]])), 0.0, 1.0)
    even, top = _always([0.5, 0.5], n), np.eye(n)[n - 1]
    task = Task("boyan", step, reward, features, even, even, top, 1.0)
    if condition == "deterministic":
        short = _always([1.0, 0.0], n)
        return (replace(task, policy=short, behaviour=short),)
    if condition == "off-policy":
        return (replace(task, behaviour=_always([0.8, 0.2], n)),)
    slow = _always([0.9, 0.1], n)
    return (task, replace(task, policy=slow, behaviour=slow)) if condition == "switch" else (task,)


SIDE, GOAL, PIT = 7, (6, 6), (3, 3)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


def grid(condition: str) -> tuple[Task, ...]:
    """A 7 x 7 grid with +1 in a corner and -1 in the middle; a move slips to a random one at 0.2.

    Episodes begin anywhere. The policy leans down and right, to the goal. Off-policy, the walker has no
    leaning; the deterministic walk goes right, then down, round the middle, and never slips; at the switch
    the policy turns to lean up and left.
    """
    cells = [(i, j) for i in range(SIDE) for j in range(SIDE) if (i, j) not in (GOAL, PIT)]
    index, n = {cell: s for s, cell in enumerate(cells)}, len(cells)
    slip = 0.0 if condition == "deterministic" else 0.2
    step, reward = np.zeros((4, n, n + 1)), np.zeros((4, n, n + 1))
    for action, (s, cell) in ((a, pair) for a in range(4) for pair in enumerate(cells)):
        for move in range(4):
            i, j = (min(max(x + d, 0), SIDE - 1) for x, d in zip(cell, MOVES[move], strict=True))
            chance = (1 - slip) * (move == action) + slip / 4
            # both ends share a column, and no cell touches both, so its reward is that of the one it touches
            step[action, s, index.get((i, j), n)] += chance
            if (i, j) not in index:
                reward[action, s, n] = 1.0 if (i, j) == GOAL else -1.0
    place = np.array(cells) / (SIDE - 1) * 2.0 - 1.0
    line = np.linspace(-1.0, 1.0, 5)
    features = _bumps(place, np.array([(x, y) for x in line for y in line]), 0.35)
    leaning, anywhere = _always([0.15, 0.35, 0.15, 0.35], n), np.full(n, 1 / n)
    task = Task("grid", step, reward, features, leaning, leaning, anywhere, 0.95)
    if condition == "deterministic":
        down = np.array([j == SIDE - 1 or (i == PIT[0] and j < PIT[1]) for i, j in cells])
        way = np.eye(4)[np.where(down, 1, 3)]
        return (replace(task, policy=way, behaviour=way),)
    if condition == "off-policy":
        return (replace(task, behaviour=np.full((n, 4), 0.25)),)
    back = _always([0.35, 0.15, 0.35, 0.15], n)
    return (task, replace(task, policy=back, behaviour=back)) if condition == "switch" else (task,)


CONDITIONS = ("on-policy", "off-policy", "deterministic", "switch")
TASKS: dict[str, Callable[[str], tuple[Task, ...]]] = {"chain": chain, "grid": grid, "boyan": boyan}


def phases(task: str, condition: str) -> tuple[Task, ...]:
    """The task under a condition: one phase, or two of equal length where something switches.

    Example:
        >>> (walk,) = phases("boyan", "on-policy")
        >>> walk.values()[-1].round(6)
        np.float64(-2.4)
    """
    check_choice("task", task, tuple(TASKS))
    check_choice("condition", condition, CONDITIONS)
    return TASKS[task](condition)
