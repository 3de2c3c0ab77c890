"""The critics that are compared, each under its name, with what is tuned of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn

from kova_rl import covariance, evolution, observation
from kova_rl.baselines import Gaussian, KernelGPTD, LinearGPTD
from kova_rl.filter.checks import check_choice
from kova_rl.lab.evaluation.headed import HeadedCritic
from kova_rl.lab.evaluation.network import Make, NetworkCritic, network
from kova_rl.lab.evaluation.sequential import LSTD, GPTDCritic, KTDCritic
from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.optimizer import Kova

WINDOW = 2_000
"""Samples that are replayed, or remembered by LSTD, where the truth may switch."""


class Critic(Protocol):
    """What learns values from transitions."""

    def observe(self, batch: Transitions) -> None:
        """Learn from transitions, in their order."""

    def mean_std(self, states: Array) -> tuple[Array, Array | None]:
        """Values of states, and their standard deviations or None, each of shape (n,)."""


@dataclass(frozen=True)
class Problem:
    """What a critic may know of the task before it begins."""

    inputs: int
    """How many features a state has."""
    gamma: float
    seed: int
    weighted: bool = False
    """Whether another policy walks, and transitions carry importance weights."""
    tracking: bool = False
    """Whether the truth may switch, so that the old is to be forgotten."""

    @property
    def window(self) -> int | None:
        """How many samples to remember; None for all."""
        return WINDOW if self.tracking else None


Build = Callable[[Problem, float], Critic]


@dataclass(frozen=True)
class Spec:
    """A critic that can be asked for by name."""

    label: str
    """In tables and pictures."""
    build: Build
    choices: tuple[float, ...] = (0.0,)
    """Settings to tune over, on seeds of their own, by the final error; one means that nothing is tuned."""
    tuned: str = ""
    """What the setting is."""


def by_optimizer(make: Make, kind: type[NetworkCritic] = NetworkCritic) -> Build:
    """A network critic that learns with this optimizer; a ``HeadedCritic`` has a solved head beside it."""

    def build(problem: Problem, setting: float) -> Critic:
        p = problem
        return kind(make, p.inputs, p.gamma, p.seed, window=p.window, weighted=p.weighted)

    return build


def _adam(problem: Problem, rate: float) -> Critic:
    def make(critic: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(critic.parameters(), rate)

    return by_optimizer(make)(problem, rate)


def _ktd(problem: Problem, noise: float, hidden: int) -> Critic:
    if hidden:
        module: nn.Module = network(problem.inputs, problem.seed, hidden)
    else:
        module = nn.Linear(problem.inputs, 1, bias=False)
        nn.init.zeros_(module.weight)
    return KTDCritic(module, problem.gamma, noise, eta=1 / WINDOW if problem.tracking else 0.0)


def _gptd(problem: Problem, noise: float, monte_carlo: bool) -> Critic:
    return GPTDCritic(LinearGPTD(problem.inputs, gamma=problem.gamma, noise=noise, monte_carlo=monte_carlo))


def _kernel(problem: Problem, noise: float) -> Critic:
    return GPTDCritic(KernelGPTD(Gaussian(), problem.gamma, noise, 0.01, monte_carlo=True, capacity=200))


def _lstd(problem: Problem, setting: float) -> Critic:
    return LSTD(problem.inputs, problem.gamma, problem.window)


NOISE = (0.1,)
"""Variance of the noise in KTD and GPTD: of the order of that of the returns in these tasks."""
# Settings in full: these do not move when the default does.
WIDE = covariance.LowRank(rank=32, prior=1.0)
PAPER = partial(Kova, covariance=WIDE, evolution=evolution.Leakage(0.01), observation=observation.BatchSize())
MEMORYLESS = partial(
    Kova, covariance=WIDE, evolution=evolution.Memoryless(0.01), observation=observation.BatchSize()
)

CRITICS: dict[str, Spec] = {
    "kova": Spec("Kova", by_optimizer(Kova)),
    "kova-head": Spec("Kova, solved head", by_optimizer(Kova, HeadedCritic)),
    "kova-paper": Spec("Kova, paper's noise", by_optimizer(PAPER)),
    "memoryless": Spec("memoryless", by_optimizer(MEMORYLESS)),
    "adam": Spec("Adam, tuned", _adam, (1e-2, 3e-3, 1e-3, 3e-4), "rate"),
    "ktd": Spec("KTD, 8 units", partial(_ktd, hidden=8), NOISE),
    "gptd": Spec("GPTD, white noise", partial(_gptd, monte_carlo=False), NOISE),
    "gptd-mc": Spec("GPTD, noise of returns", partial(_gptd, monte_carlo=True), NOISE),
    "lstd": Spec("LSTD", _lstd),
    "gptd-kernel": Spec("GPTD, kernel", _kernel, NOISE),
    "ktd-linear": Spec("KTD, linear", partial(_ktd, hidden=0), NOISE),
    "ktd-wide": Spec("KTD, 32 units", partial(_ktd, hidden=32), NOISE),
}
EXTRA = ("gptd-kernel", "ktd-linear", "ktd-wide")
"""Only on demand: linear KTD is GPTD with white noise, and a wide one takes half a minute a run."""
DEFAULT = tuple(name for name in CRITICS if name not in EXTRA)


def build(critic: str | Make, problem: Problem, setting: float | None = None) -> Critic:
    """The named critic, or a network that learns with the optimizer that ``critic`` makes.

    Args:
        critic: A name of ``CRITICS``, or a function of the network that returns its optimizer.
        problem: What the critic may know.
        setting: Of what is tuned; None for the first choice.
    """
    if callable(critic):
        return by_optimizer(critic)(problem, 0.0)
    check_choice("critic", critic, tuple(CRITICS))
    spec = CRITICS[critic]
    return spec.build(problem, spec.choices[0] if setting is None else setting)


def describe(critic: str) -> str:
    """What a named critic is made of, so that runs of other defaults are not taken for its own."""
    built = build(critic, Problem(inputs=2, gamma=0.9, seed=0))
    if not isinstance(built, NetworkCritic) or not isinstance(built.optimizer, Kova):
        return CRITICS[critic].label
    filter_ = built.optimizer
    rate = filter_.param_groups[0]["lr"]
    head = f", {built.head}" if isinstance(built, HeadedCritic) else ""
    return f"lr {rate}, {filter_.covariance}, {filter_.evolution}, {filter_.observation}{head}"
