"""Policy evaluation with known answers: the finite MDPs by name, and how a condition changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kova_rl.filter.checks import check_choice
from kova_rl.lab.evaluation.mdp import Task, bumps
from kova_rl.lab.evaluation.more_tasks import Garnet, aliased, baird
from kova_rl.lab.evaluation.transitions import Array

__all__ = ["CLASSIC", "CONDITIONS", "MORE", "ROLLED", "TASKS", "Task", "conditions_of", "phases"]


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
    features = bumps(place, np.linspace(-1.0, 1.0, 12)[:, None], 0.15)
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
    features = bumps(place, np.array([(x, y) for x in line for y in line]), 0.35)
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
Conditioned = Callable[[str], tuple[Task, ...]]
CLASSIC: dict[str, Conditioned] = {"chain": chain, "grid": grid, "boyan": boyan}
"""The three that the filters were compared on first."""
MORE: dict[str, Conditioned] = {
    "garnet-30": Garnet(states=30, actions=4, branches=3, inputs=10, gamma=0.9),
    "garnet-100": Garnet(states=100, actions=4, branches=5, inputs=20, gamma=0.95),
    "garnet-300": Garnet(states=300, actions=4, branches=5, inputs=30, gamma=0.99),
    "aliased": aliased,
    "baird": baird,
}
"""Beside those: larger, off-policy, and with features that are not enough."""
TASKS = CLASSIC | MORE
ROLLED = ("cartpole", "pendulum")
"""Those whose truth is rolled out, see :mod:`kova_rl.lab.evaluation.control`."""
ONLY = {
    **{"baird": ("off-policy",), "aliased": ("on-policy", "off-policy", "switch")},
    **dict.fromkeys(ROLLED, ("on-policy",)),
}
"""Tasks that do not have all conditions."""


def conditions_of(task: str) -> tuple[str, ...]:
    """The conditions that a task has."""
    return ONLY.get(task, CONDITIONS)


def phases(task: str, condition: str) -> tuple[Task, ...]:
    """The task under a condition: one phase, or two of equal length where something switches.

    Example:
        >>> (walk,) = phases("boyan", "on-policy")
        >>> walk.values()[-1].round(6)
        np.float64(-2.4)
    """
    check_choice("task", task, (*TASKS, *ROLLED))
    check_choice("condition", condition, conditions_of(task))
    if task in ROLLED:
        raise ValueError(f"{task} is not a finite MDP: its truth is rolled out, see evaluate_one")
    return TASKS[task](condition)
