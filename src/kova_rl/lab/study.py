"""The study that chose the default of ``Kova()``: a factorial on small mazes and on policy evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from kova_rl import covariance, evolution, observation
from kova_rl.filter.checks import check_choice
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.lab import files, pool
from kova_rl.lab.critics import Adam, Filtered
from kova_rl.lab.evaluation.protocol import evaluate_one
from kova_rl.lab.maze import Run
from kova_rl.lab.reproduce import perform
from kova_rl.lab.study_table import Entry, markdown, table

__all__ = ["configurations", "study"]

Setting = Adam | Filtered

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

MAZES = ("maze4", "maze6")
TASKS = tuple(product(("chain", "grid", "boyan"), ("on-policy", "switch")))
SAMPLES = 10_000
SCALES = {"smoke": (500, 1), "desk": (5_000, 2), "paper": (5_000, 4)}
"""Steps in a maze, and seeds."""


def configurations() -> Iterator[tuple[str, Setting]]:
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


@dataclass(frozen=True)
class Evaluation:
    """A run of policy evaluation."""

    name: str
    task: str
    condition: str
    critic: Setting
    seed: int
    samples: int
    out: Path

    @property
    def config(self) -> dict[str, Any]:
        keys = ("task", "condition", "seed", "samples")
        return {**{key: getattr(self, key) for key in keys}, "critic": repr(self.critic)}

    @property
    def path(self) -> Path:
        name = files.named(f"{self.task}-{self.condition}", self.name)
        return self.out / "data" / f"{name}_seed{self.seed}.npz"

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        if isinstance(self.critic, Adam):
            return torch.optim.Adam(network.parameters(), self.critic.lr)
        return self.critic.optimizer(network)


def evaluation(job: Evaluation, tick: Callable[[int], None]) -> None:
    """Run it, and write its curves."""
    started = time.process_time()
    curves = evaluate_one(job.task, job.condition, job.optimizer, job.seed, job.samples)
    meta = {"name": job.name, "config": job.config, "cpu_seconds": time.process_time() - started}
    kept = {name: curves[name] for name in ("samples", "error", "coverage")}
    files.save(job.path, kept, meta)
    tick(1)


def study(scale: str, out: Path, console: Console) -> list[Entry]:
    """Run what is not finished, print the table and write it."""
    check_choice("--scale", scale, tuple(SCALES))
    steps, seeds = SCALES[scale]
    settings = list(configurations())
    samples = SAMPLES if steps == SCALES["paper"][0] else SAMPLES // 10
    mazes = [
        Run(name, maze, critic, seed, steps, out)
        for seed, maze, (name, critic) in product(range(seeds), MAZES, settings)
    ]
    tasks = [
        Evaluation(name, task, condition, critic, seed, samples, out)
        for seed, (task, condition), (name, critic) in product(range(seeds), TASKS, settings)
    ]
    missing = [job for job in tasks if not files.finished(job.path, job.config)]
    pool.run_all(evaluation, missing, title="policy evaluation", ticks=len(missing), console=console)
    perform(mazes, "mazes", console)
    entries = collect(mazes, tasks)
    title = f"{len(settings)} settings, {steps:,} steps a maze, {samples:,} samples a task, {seeds} seeds"
    console.print(table(title, entries[:20]))
    files.write(out / "study.md", markdown(title, entries).encode())
    console.print(f"All of them: {out / 'study.md'}, data: {out / 'data'}/", soft_wrap=True)
    return entries


def collect(mazes: Sequence[Run], tasks: Sequence[Evaluation]) -> list[Entry]:
    """One entry a setting, best first: by the mean of its ranks in all columns."""
    from kova_rl.lab.maze import run_file

    columns: dict[str, dict[str, list[float]]] = {}
    cost: dict[str, list[float]] = {}
    for job in mazes:
        history, _, meta = run_file(job.path)
        area = history.curve(np.arange(1, job.steps + 1)).mean()
        columns.setdefault(job.maze, {}).setdefault(job.name, []).append(float(area))
        cost.setdefault(job.name, []).append(1e3 * meta["cpu_seconds"] / job.steps)
    for task in tasks:
        arrays, _ = files.load(task.path)
        error = np.nan_to_num(arrays["error"], nan=np.inf)
        column = f"{task.task}, {task.condition}"
        columns.setdefault(column, {}).setdefault(task.name, []).append(float(np.exp(np.log(error).mean())))
    return Entry.ranked(columns, cost, larger_is_better=MAZES)
