"""Runs of one setting, over its seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.lab import stats
from kova_rl.lab.report.reading import RunRecord
from kova_rl.lab.run import Measure

__all__ = ["Group", "baseline", "family", "group", "normalised", "shared", "title"]

Array = NDArray[np.float64]
POINTS = 60
CRITICS = ("kova", "memoryless", "adam", "kfac")
IDENTITY = {"algorithm", "environment", "critic", "seed"}
HOUSEKEEPING = {"described", "imports", "label", "looks", "preset"}
"""Settings that say how a run was asked for, not what it is: they tell no groups apart."""


@dataclass(frozen=True)
class Group:
    """The runs of one environment, algorithm, critic and setting."""

    environment: str
    algorithm: str
    critic: str
    named: str
    """What the runs' maker called them; often empty."""
    settings: str
    """Those that vary between runs that are otherwise alike, ``eta=0.01``; often empty."""
    runs: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        """What it is called beside others of its algorithm."""
        return f"{self.named or self.critic} {self.settings}".rstrip()

    @property
    def measure(self) -> Measure:
        """What it is judged by."""
        return self.runs[0].measure

    @property
    def scored(self) -> list[RunRecord]:
        """The runs that statistics are made of."""
        return [run for run in self.runs if run.scored]

    @property
    def steps(self) -> int:
        return int(self.runs[0].config["steps"])

    @property
    def final(self) -> Array:
        """Final score, for each run that has one."""
        return np.array([run.final for run in self.scored])

    @property
    def marks(self) -> Array:
        """The same, so that more is better."""
        return -self.final if self.measure.lower else self.final

    @property
    def seconds(self) -> float:
        """Median training time of the runs that are done; NaN if none is."""
        seconds = [run.seconds for run in self.runs if run.status == "done" and np.isfinite(run.seconds)]
        return float(np.median(seconds)) if seconds else float("nan")

    @property
    def times(self) -> list[float]:
        """Milliseconds of the processor a step, of each run; other work on the machine changes it little."""
        done = [run for run in self.runs if run.status == "done" and run.reached]
        return [1e3 * run.processor / run.reached for run in done if np.isfinite(run.processor)]

    @property
    def milliseconds(self) -> float:
        """The median of these."""
        return float(np.median(self.times)) if self.times else float("nan")

    def form(self, value: float) -> str:
        """How a number of its measure is written: one of many digits without a fraction."""
        return ",.0f" if abs(value) >= 1000 else self.measure.form

    def count(self, status: str) -> int:
        """How many runs have this status."""
        return sum(run.status == status for run in self.runs)

    @cached_property
    def curves(self) -> tuple[Array, Array]:
        """Steps, and scores at them with a row a run; from where on every run has one."""
        return self._curves([(run.steps, run.scores) for run in self.scored])

    def curves_of(self, quantity: str) -> tuple[Array, Array]:
        """The same of a curve that is logged beside the score; empty if no run has it."""
        runs = [run for run in self.scored if quantity in run.logged]
        return self._curves([(run.steps, run.logged[quantity]) for run in runs])

    def _curves(self, found: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        grid = np.linspace(0, self.steps, POINTS + 1)[1:]
        rows = []
        for steps, values in found:
            known = np.isfinite(values)
            if known.any():
                rows.append(np.interp(grid, steps[known], values[known], left=np.nan))
        if not rows:
            return grid[:0], np.empty((0, 0))
        table = np.stack(rows)
        whole = np.isfinite(table).all(0)
        return grid[whole], table[:, whole]


def group(runs: Iterable[RunRecord]) -> list[Group]:
    """Groups in a fixed order: by algorithm, environment, critic and setting.

    A seed counts once in a group; of two runs with it, the one that has a final score.
    """
    runs = list(runs)
    shown = _varying(runs)
    found: dict[tuple[str, str, str, str, str], dict[int, RunRecord]] = defaultdict(dict)
    for run in runs:
        keys = shown[run.algorithm, run.critic, run.label]
        settings = " ".join(
            f"{key}={_text(run.config[key])}" for key in keys if run.config.get(key) is not None
        )
        members = found[run.algorithm, run.environment, run.critic, run.label, settings]
        if run.seed not in members or run.scored:
            members[run.seed] = run
    groups = [Group(e, a, c, n, s, tuple(members.values())) for (a, e, c, n, s), members in found.items()]
    return sorted(groups, key=lambda g: (g.algorithm, g.environment, rank(g.critic), g.critic, g.label))


def family(critic: str) -> str:
    """Whose colours a critic has.

    Example:
        >>> family("kova-head"), family("adam"), family("lstd")
        ('kova', 'adam', 'other')
    """
    return next((known for known in CRITICS if critic.startswith(known)), "other")


def title(algorithm: str) -> str:
    """What an algorithm is called in a heading."""
    named = {"double-q": "Mazes", "evaluation": "Policy evaluation", "stream": "Recorded rollouts"}
    return named.get(algorithm, algorithm.upper())


def rank(critic: str) -> int:
    """Where a critic stands in legends and tables."""
    return [*CRITICS, "other"].index(family(critic))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _varying(runs: Sequence[RunRecord]) -> dict[tuple[str, str, str], list[str]]:
    """Of each algorithm, critic and label, the settings that take more than one value in some environment."""
    alike: dict[tuple[str, str, str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        alike[run.algorithm, run.critic, run.label, run.environment].append(run)
    shown: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (algorithm, critic, label, _), members in alike.items():
        listed = shown[algorithm, critic, label]
        for key in dict.fromkeys(key for run in members for key in run.config):
            if key not in IDENTITY | HOUSEKEEPING and key not in listed and _varies(key, members):
                listed.append(key)
    return shown


def _varies(key: str, runs: Sequence[RunRecord]) -> bool:
    """Whether it takes more than one value; a field of a part, ``observation.eps``, with the same part."""
    part = key.rpartition(".")[0]
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        values[_text(run.config.get(part))].add(_text(run.config.get(key)))
    return any(len(found) > 1 for found in values.values())


def baseline(groups: Sequence[Group], beside: Group) -> Group | None:
    """Adam in the same algorithm and environment, for as many steps; of several settings, the best."""
    where = (beside.algorithm, beside.environment, beside.steps, "adam")
    adams = [g for g in groups if (g.algorithm, g.environment, g.steps, g.critic) == where and len(g.final)]
    return max(adams, key=lambda g: float(stats.iqm(g.marks)), default=None)


def normalised(groups: Sequence[Group]) -> dict[tuple[str, str], dict[str, Array]]:
    """Final marks by algorithm and label, then environment, from 0 (worst run of the environment) to 1."""
    ends = spans(groups)
    out: dict[tuple[str, str], dict[str, Array]] = defaultdict(dict)
    for g in sorted(groups, key=lambda g: rank(g.critic)):
        tasks = out[g.algorithm, g.label]
        if len(g.final):
            low, span = ends[g.environment]
            tasks[g.environment] = (g.marks - low) / span
    return out


def spans(groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
    """Of each environment the final mark of the worst run, and how far above it the best run's is."""
    ends: dict[str, list[float]] = defaultdict(list)
    for g in groups:
        ends[g.environment].extend(g.marks)
    return {name: (min(marks), (max(marks) - min(marks)) or 1.0) for name, marks in ends.items() if marks}


def shared(environments: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """Of labels with their environments: the labels to compare, and the environments that all of these have.

    If there are none, the label with the fewest environments goes, the last of several, until there are.

    Example:
        >>> shared({"kova": "A", "adam": "AB"})
        (['kova', 'adam'], ['A'])
        >>> shared({"kova": "AB", "kfac": "C", "adam": "AB"})
        (['kova', 'adam'], ['A', 'B'])
    """
    kept = {label: set(found) for label, found in environments.items()}
    while kept:
        if common := set.intersection(*kept.values()):
            return list(kept), sorted(common)
        del kept[min(reversed(kept), key=lambda label: len(kept[label]))]
    return [], []
