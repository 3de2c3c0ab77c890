"""Many runs: settings are tuned on seeds of their own, and what is missing is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from kova_rl.lab.evaluation.critics import CRITICS
from kova_rl.lab.evaluation.panel import Panel, final_error, panels
from kova_rl.lab.evaluation.run import TUNING_SEEDS, EvaluationRun
from kova_rl.lab.evaluation.tasks import conditions_of
from kova_rl.lab.pack import Folder
from kova_rl.lab.sweep.make import Place, made

__all__ = ["Study", "gather"]

Pair = tuple[str, str]


@dataclass(frozen=True)
class Study:
    """What is asked for."""

    tasks: Sequence[str]
    conditions: Sequence[str]
    critics: Sequence[str]
    seeds: int
    samples: int
    place: Place

    @property
    def pairs(self) -> list[Pair]:
        """Every task under every condition that it has."""
        return [(t, c) for t in self.tasks for c in self.conditions if c in conditions_of(t)]

    def runs(self, pair: Pair, critic: str, setting: float, seeds: Sequence[int]) -> list[EvaluationRun]:
        """The runs of one critic."""
        return [EvaluationRun.named(*pair, critic, seed, self.samples, setting) for seed in seeds]


def gather(study: Study, console: Console, words: Sequence[object] = ()) -> list[Panel]:
    """Tune, run what is missing, and load all."""
    if not study.pairs:
        had = ", ".join(conditions_of(study.tasks[0]))
        raise ValueError(f"--condition of {study.tasks[0]} must be one of {had}, got {study.conditions[0]}")
    chosen = _tuned(study, console)
    wanted = [
        run
        for pair in study.pairs
        for critic in study.critics
        for run in study.runs(pair, critic, chosen[pair, critic], range(study.seeds))
    ]
    folders = _made(wanted, study.place, console, words)
    return panels(list(folders.values()), study.critics)


def _tuned(study: Study, console: Console) -> dict[tuple[Pair, str], float]:
    """The setting of each critic in each panel that has the least final error on the tuning seeds."""
    trials = {
        (pair, critic, setting): study.runs(pair, critic, setting, TUNING_SEEDS)
        for pair in study.pairs
        for critic in study.critics
        for setting in CRITICS[critic].choices
        if len(CRITICS[critic].choices) > 1
    }
    folders = _made([run for runs in trials.values() for run in runs], study.place, console)
    marks = {
        key: float(np.mean([final_error(folders[run.name].arrays()) for run in runs]))
        for key, runs in trials.items()
    }

    def best(pair: Pair, critic: str) -> float:
        return min(CRITICS[critic].choices, key=lambda setting: marks.get((pair, critic, setting), 0.0))

    return {(pair, critic): best(pair, critic) for pair in study.pairs for critic in study.critics}


def _made(
    runs: list[EvaluationRun], place: Place, console: Console, words: Sequence[object] = ()
) -> dict[str, Folder]:
    """The folders of the runs by name; the long ones are made first."""
    first = sorted(runs, key=lambda run: not str(run.critic).startswith("ktd"))
    return {folder.name: folder for folder in made(first, place, console, words)} if runs else {}
