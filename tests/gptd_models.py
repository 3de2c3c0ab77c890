"""Trajectories for the tests of GPTD, both of its forms, and the batch posterior written naively."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kova_rl.baselines.gptd import GPTD

BOTH = pytest.mark.parametrize("monte_carlo", [False, True])


class Step(NamedTuple):
    state: Tensor
    reward: float
    next_state: Tensor
    done: bool
    cut: bool


def random_steps(seed: int, lengths: tuple[int, ...] = (4, 1, 6, 3, 1), size: int = 3) -> list[Step]:
    """Episodes that end in a terminal state, are cut, or (the last) just stop."""
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for episode, length in enumerate(lengths):
        states = torch.randn(length + 1, size, dtype=torch.float64, generator=generator)
        rewards = torch.randn(length, dtype=torch.float64, generator=generator).tolist()
        for t in range(length):
            at_end = t == length - 1 and episode < len(lengths) - 1
            terminal = at_end and (episode + seed) % 2 == 0
            steps.append(Step(states[t], rewards[t], states[t + 1], terminal, at_end and not terminal))
    return steps


def feed(gptd: GPTD, steps: list[Step]) -> GPTD:
    for step in steps:
        gptd.observe(step.state, step.reward, step.next_state, step.done)
        if step.cut:
            gptd.restart()
    return gptd


def noise_covariance(steps: list[Step], gamma: float, noise: float, monte_carlo: bool) -> Tensor:
    """White, or n_t - gamma n_{t+1} with an n for each visit of a state, written out."""
    if not monte_carlo:
        return noise * torch.eye(len(steps), dtype=torch.float64)
    rows, visit = torch.zeros(len(steps), 2 * len(steps), dtype=torch.float64), 0
    for t, step in enumerate(steps):
        rows[t, visit] = 1.0
        if not step.done:
            rows[t, visit + 1] = -gamma
        visit += 2 if step.cut else 1
    return noise * rows @ rows.T


def differences(steps: list[Step], rows: Callable[[Tensor], Tensor], gamma: float) -> Tensor:
    """phi(x_t) - gamma phi(x_{t+1}), one row a step."""
    here, there = (rows(torch.stack([s[i] for s in steps])) for i in (0, 2))  # type: ignore[misc]
    going_on = torch.tensor([not s.done for s in steps], dtype=torch.float64)
    return here - gamma * going_on[:, None] * there


def dot(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.T


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def quadratic(x: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(x), 1, dtype=x.dtype), x, x.square()], 1)
