"""The study that chose the default of ``Kova()``: a factorial on small mazes and on policy evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from kova_rl import covariance, evolution, observation
from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.lab import files, pool
from kova_rl.lab.critics import Adam, Filtered
from kova_rl.lab.evaluation.protocol import evaluate_one
from kova_rl.lab.maze import Run, run_file
from kova_rl.lab.reproduce import perform
from kova_rl.lab.series import gather
from kova_rl.lab.series import markdown as series_markdown
from kova_rl.lab.series import table as series_table
from kova_rl.lab.study_table import Entry, markdown, table
from kova_rl.lab.terminal import say

__all__ = ["configurations", "study"]

Setting = Adam | Filtered

PAIRS: dict[type[Covariance], tuple[type[Evolution], ...]] = {
    covariance.Kronecker: (evolution.Leakage, evolution.VariableLeakage),
    covariance.LowRank: (evolution.Leakage, evolution.VariableLeakage),
    covariance.NeuronBlocks: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Diagonal: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Full: (evolution.PriorAnchored, evolution.DirectionalForgetting),
}
"""What is compared: structures with the bounded evolutions that forget. Leakage would invert Full."""
ETAS: dict[type[Covariance], tuple[float, ...]] = dict.fromkeys(
    (covariance.Kronecker, covariance.LowRank), (0.1, 0.01, 0.001)
)
"""Of the others: 0.1 and 0.01."""
PRIORS: dict[str, Prior] = {"I": 1.0, "fan-in": covariance.FanIn(1.0)}
NOISES = (observation.BatchSize, observation.Adaptive)
RATES = (1e-2, 3e-3, 1e-3, 3e-4)
"""Of Adam, to compare with."""

DEFAULTS = ("Kronecker, Leakage 0.001, Adaptive, P0 I", "LowRank, Leakage 0.001, Adaptive, P0 I")
"""What ``Kova()`` is, and what it was before ``Kronecker``."""
MAZES = ("maze4", "maze6")
TASKS = tuple(product(("chain", "grid"), ("on-policy", "switch")))


@dataclass(frozen=True)
class Size:
    """How much is run."""

    steps: int
    """In each small maze."""
    samples: int
    """Of each task."""
    few: int
    """Seeds of every setting."""
    seeds: int
    """Seeds of the better ones."""
    final_steps: int
    final_seeds: int


SCALES = {
    "smoke": Size(500, 1_000, 1, 1, 500, 1),
    "desk": Size(5_000, 10_000, 1, 2, 10_000, 1),
    "paper": Size(5_000, 10_000, 1, 4, 30_000, 3),
}


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


def study(scale: str, seeds: int | None, out: Path, console: Console) -> list[Entry]:
    """Run what is not finished, in three rounds, print the tables and write them.

    All settings on the small mazes and the tasks with few seeds; the best sixth, and all of Adam and
    Memoryless, with more; the best four tracked filters, the default, the best Adam and the best
    Memoryless on the 10x10 maze.
    """
    check_choice("--scale", scale, tuple(SCALES))
    size = SCALES[scale]
    if seeds is not None:
        check_whole("--seeds", seeds, least=size.few)
        size = replace(size, seeds=seeds)
    settings = dict(configurations())
    entries = play(settings, range(size.few), size, out, console)
    kept = {entry.name: settings[entry.name] for entry in entries[: len(entries) // 6]}
    kept |= {name: critic for name, critic in settings.items() if not is_tracked(name)}
    better = play(kept, range(size.seeds), size, out, console)
    about = f"{size.steps:,} steps a maze, {size.samples:,} samples a task"
    title = f"The better {len(kept)}, ranked among themselves, {about}, {size.seeds} seeds"
    console.print(table(title, better[:20]))
    report = markdown(title, better) + "\n"
    report += markdown(f"The first round: {len(settings)} settings, {about}, {size.few} seed", entries)
    files.write(out / "study.md", report.encode())  # the last round takes long
    jobs = [
        Run(name, "maze10", settings[name], seed, size.final_steps, out)
        for seed, name in product(range(size.final_seeds), finalists(better))
    ]
    perform(jobs, "the best on the 10x10 maze", console)
    final = f"The best on the 10x10 maze, {size.final_steps:,} steps, {size.final_seeds} seeds"
    series = gather(jobs)
    console.print(series_table(final, series))
    report += "\n" + series_markdown(final, series)
    files.write(out / "study.md", report.encode())
    say(console, f"All of it: {out / 'study.md'}, data: {out / 'data'}/")
    return better


def play(
    settings: Mapping[str, Setting], seeds: range, size: Size, out: Path, console: Console
) -> list[Entry]:
    """Run these settings on the small mazes and the tasks, and rank them."""
    mazes = [
        Run(name, maze, critic, seed, size.steps, out)
        for seed, maze, (name, critic) in product(seeds, MAZES, settings.items())
    ]
    tasks = [
        Evaluation(name, task, condition, critic, seed, size.samples, out)
        for seed, (task, condition), (name, critic) in product(seeds, TASKS, settings.items())
    ]
    missing = files.missing(tasks)
    pool.run_all(evaluation, missing, title="policy evaluation", ticks=len(missing), console=console)
    perform(mazes, "mazes", console)
    return collect(mazes, tasks)


def is_tracked(name: str) -> bool:
    """Whether a setting of this name is a filter with a posterior."""
    return not name.startswith(("Adam", "Memoryless"))


def finalists(entries: Sequence[Entry]) -> list[str]:
    """The best four tracked filters, the default and its other prior, the best Adam and Memoryless."""
    names = [entry.name for entry in entries]
    best = [name for name in names if is_tracked(name) and not name.startswith("Full")][:4]
    others = [next(name for name in names if name.startswith(kind)) for kind in ("Adam", "Memoryless")]
    return list(dict.fromkeys([*best, *(name for name in names if name in DEFAULTS), *others]))


def collect(mazes: Sequence[Run], tasks: Sequence[Evaluation]) -> list[Entry]:
    """One entry a setting, best first: by the mean of its ranks in all columns."""
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
    return Entry.ranked(columns, cost)
