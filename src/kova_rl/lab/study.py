"""The study that chose the default of ``Kova()``: a factorial on small mazes and on policy evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from kova_rl import covariance, evolution, observation
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.lab.critics import Adam, Critic, Filtered
from kova_rl.lab.maze import Run

__all__ = ["configurations", "factorial", "finalists"]

PAIRS: dict[type[Covariance], tuple[type[Evolution], ...]] = {
    covariance.LowRank: (evolution.Leakage, evolution.VariableLeakage),
    covariance.NeuronBlocks: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Diagonal: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Full: (evolution.PriorAnchored, evolution.DirectionalForgetting),
}
"""The bounded evolutions that each structure goes with, at the size of a 6x6 maze's network."""
ETAS: dict[type[Covariance], tuple[float, ...]] = {covariance.LowRank: (0.1, 0.01, 0.001)}
"""Of the others: 0.1 and 0.01."""
PRIORS: dict[str, Prior] = {"I": 1.0, "fan-in": covariance.FanIn(1.0)}
NOISES = (observation.BatchSize, observation.Adaptive)
RATES = (1e-2, 3e-3, 1e-3, 3e-4)
"""Of Adam, to compare with."""


def configurations() -> Iterator[tuple[str, Critic]]:
    """Every setting of the factorial by its name, the cheap ones first."""
    for lr in RATES:
        yield f"Adam {lr:g}", Adam(lr)
    for (prior_name, prior), noise in product(PRIORS.items(), NOISES):
        named = f"Memoryless, {noise.__name__}, P0 {prior_name}"
        yield named, Filtered(covariance.LowRank(prior=prior), evolution.Memoryless(0.01), noise())
    for structure, evolutions in PAIRS.items():
        for kind, noise, eta, (prior_name, prior) in product(
            evolutions, NOISES, ETAS.get(structure, (0.1, 0.01)), PRIORS.items()
        ):
            named = f"{structure.__name__}, {kind.__name__} {eta:g}, {noise.__name__}, P0 {prior_name}"
            yield named, Filtered(structure(prior=prior), kind(eta=eta), noise())  # type: ignore[call-arg]


def factorial(out: Path, mazes: tuple[str, ...], steps: int, seeds: int) -> list[Run]:
    """The runs of the factorial: seed by seed, so that an interrupted study compares like with like."""
    settings = list(configurations())
    return [
        Run(name, maze, critic, seed, steps, out)
        for maze, seed, (name, critic) in product(mazes, range(seeds), settings)
    ]


def finalists(out: Path, names: tuple[str, ...], steps: int, seeds: int) -> list[Run]:
    """The runs of the best settings on the 10x10 maze."""
    known = dict(configurations())
    return [Run(name, "maze10", known[name], seed, steps, out) for seed, name in product(range(seeds), names)]
