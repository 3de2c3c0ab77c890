"""Many runs: what is there already is kept, the settings are tuned on seeds of their own, the rest is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import kova_rl
from kova_rl.lab import files, pool
from kova_rl.lab.evaluation.critics import CRITICS, describe
from kova_rl.lab.evaluation.protocol import Curves, Tick, evaluate_one
from kova_rl.lab.evaluation.tasks import ROLLED, conditions_of, phases
from kova_rl.lab.terminal import say

TUNING_SEEDS = (1000, 1001)
"""Never among the seeds that are reported."""


@dataclass(frozen=True)
class Job:
    """One run, and the file that it is kept in."""

    task: str
    condition: str
    critic: str
    setting: float
    seed: int
    samples: int
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """What the numbers depend on."""
        own = {name: value for name, value in asdict(self).items() if name != "folder"}
        return own | {"described": describe(self.critic), "version": kova_rl.__version__}

    @property
    def path(self) -> Path:
        """One file a run; settings have files of their own."""
        tuned = f"-{self.setting:g}" if len(CRITICS[self.critic].choices) > 1 else ""
        return self.folder / f"{self.task}-{self.condition}-{self.critic}{tuned}-{self.seed}.npz"


def work(job: Job, tick: Tick) -> None:
    """Run the job and keep what came out, in single precision."""
    curves = evaluate_one(
        job.task, job.condition, job.critic, job.seed, job.samples, setting=job.setting, tick=tick
    )
    arrays = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in curves.items()}
    files.save(job.path, arrays, {"config": job.config})


@dataclass
class Panel:
    """All runs of one task under one condition."""

    task: str
    condition: str
    floor: float | None
    """The least error that values linear in the features can have, in the last phase, if it is known."""
    switch: int | None
    """After how many samples the truth changes."""
    curves: dict[str, list[Curves]] = field(default_factory=dict)
    """By critic, one a seed."""
    settings: dict[str, float] = field(default_factory=dict)
    """What was chosen, of the critics that are tuned."""
    note: str = ""
    """How the truth was found, where it is not solved for."""

    def stack(self, critic: str, name: str) -> np.ndarray[Any, Any]:
        """One array of all seeds, seeds x ..."""
        return np.stack([curves[name] for curves in self.curves[critic]])


def run_missing(jobs: Sequence[Job], title: str, workers: int | None, console: Console) -> int:
    """Run the jobs that are not in their files yet, the long ones first; how many that were."""
    missing = files.missing(jobs)
    missing.sort(key=lambda job: not job.critic.startswith("ktd"))
    ticks = sum(job.samples for job in missing)
    pool.run_all(work, missing, title=title, ticks=ticks, workers=workers, console=console)
    return len(missing)


def final_error(curves: Curves) -> float:
    """Mean over the last three points; infinite if the critic broke down."""
    error = float(np.mean(curves["error"][-3:]))
    return error if np.isfinite(error) else float("inf")


@dataclass(frozen=True)
class Study:
    """What is asked for."""

    tasks: Sequence[str]
    conditions: Sequence[str]
    critics: Sequence[str]
    seeds: int
    samples: int
    folder: Path
    """For the files of the runs."""
    workers: int | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every task under every condition that it has."""
        return [(t, c) for t in self.tasks for c in self.conditions if c in conditions_of(t)]

    def jobs(self, pair: tuple[str, str], critic: str, setting: float, seeds: Sequence[int]) -> list[Job]:
        """The runs of one critic."""
        return [Job(*pair, critic, setting, seed, self.samples, self.folder) for seed in seeds]


Choice = dict[tuple[tuple[str, str], str], float]


def tune(study: Study, console: Console) -> Choice:
    """The setting of each critic in each panel that has the least final error on the tuning seeds."""
    trials = {
        (pair, name, setting): study.jobs(pair, name, setting, TUNING_SEEDS)
        for pair in study.pairs
        for name in study.critics
        for setting in CRITICS[name].choices
        if len(CRITICS[name].choices) > 1
    }
    run_missing([job for jobs in trials.values() for job in jobs], "tuning", study.workers, console)
    marks = {
        key: float(np.mean([final_error(files.load(job.path)[0]) for job in jobs]))
        for key, jobs in trials.items()
    }

    def best(pair: tuple[str, str], name: str) -> float:
        return min(CRITICS[name].choices, key=lambda setting: marks.get((pair, name, setting), 0.0))

    return {(pair, name): best(pair, name) for pair in study.pairs for name in study.critics}


def gather(study: Study, console: Console) -> list[Panel]:
    """Tune, run what is missing, and load all."""
    from kova_rl.lab.evaluation import control

    if not study.pairs:
        had = ", ".join(conditions_of(study.tasks[0]))
        raise ValueError(f"--condition of {study.tasks[0]} must be one of {had}, got {study.conditions[0]}")
    chosen = tune(study, console)
    jobs = {key: study.jobs(*key, setting, range(study.seeds)) for key, setting in chosen.items()}
    everything = [job for group in jobs.values() for job in group]
    ran = run_missing(everything, "learning", study.workers, console)
    if ran < len(everything):
        say(console, f"{len(everything) - ran} of {len(everything)} runs were there already.")
    panels = []
    for pair in study.pairs:
        parts = () if pair[0] in ROLLED else phases(*pair)
        curves = {name: [files.load(job.path)[0] for job in jobs[pair, name]] for name in study.critics}
        tuned = {name: chosen[pair, name] for name in study.critics if len(CRITICS[name].choices) > 1}
        at = curves[study.critics[0]][0]["samples"]
        switch = int(at[len(at) // 2 - 1]) if len(parts) > 1 else None
        floor, note = (parts[-1].linear_floor(), "") if parts else (None, control.note(pair[0]))
        panels.append(Panel(*pair, floor, switch, curves, tuned, note))
    return panels
