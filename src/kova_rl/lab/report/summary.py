"""What the page and the terminal say of the groups, in numbers. Knows nothing of either."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kova_rl.lab import stats
from kova_rl.lab.report.groups import Group, baseline
from kova_rl.lab.run import Measure

__all__ = ["Best", "Final", "Improvement", "Overhead", "best", "finals", "improvements", "overheads"]

EVERYWHERE = "over environments"
ENVIRONMENTS = ("Swimmer", "Hopper", "HalfCheetah", "Ant", "Walker2d")
PAPER = {"ppo": (48, 47, 47, 57, 44), "trpo": (55, 60, 57, 55, 56), "sac": (254, 450, 269, 482, 352)}
"""Running time of KOVA over Adam's that the paper reports, in percent, in the order of ENVIRONMENTS."""


@dataclass(frozen=True)
class Final:
    """Final scores of a group; NaN where no run has one, or where one run is too few."""

    group: Group
    mean: float
    std: float
    iqm: float
    low: float
    high: float


def finals(groups: Sequence[Group]) -> list[Final]:
    """A row a group: mean, sample standard deviation, interquartile mean and its 95% interval."""
    rows = []
    for g in groups:
        x = g.final
        if not len(x):
            rows.append(Final(g, *[float("nan")] * 5))
            continue
        std, (low, high) = stats.deviation(x), stats.interval([x]) if len(x) > 1 else (np.nan, np.nan)
        rows.append(Final(g, float(x.mean()), float(std), float(stats.iqm(x)), float(low), float(high)))
    return rows


@dataclass(frozen=True)
class Best:
    """Of several settings of a critic, the one that ends best in an environment."""

    first: Final
    second: Final
    tried: int
    """How many settings there are."""


CHOSEN = "The best of several settings, chosen by the seeds it is measured with, looks better than it is."


def best(rows: Sequence[Final]) -> list[Best]:
    """By interquartile mean, for each critic that has several settings there and as many steps."""
    alike: dict[tuple[str, str, str, int], list[Final]] = defaultdict(list)
    for row in rows:
        if len((g := row.group).final):
            alike[g.algorithm, g.environment, g.critic, g.steps].append(row)
    ranked = [
        sorted(found, key=lambda row: float(stats.iqm(row.group.marks)), reverse=True)
        for found in alike.values()
    ]
    return [Best(found[0], found[1], len(found)) for found in ranked if len(found) > 1]


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of a critic ends better than a run of Adam's."""

    algorithm: str
    label: str
    critic: str
    environment: str
    """Or EVERYWHERE, for the average over them."""
    seeds: int
    """The fewest of a side, in an environment."""
    failed: int
    """Runs of both sides that are left out since they failed; over environments, also where all failed."""
    environments: int
    measure: Measure
    probability: float
    low: float
    """NaN, as ``high``, of one seed."""
    high: float

    @property
    def where(self) -> str:
        """The environment, or how many."""
        return self.environment if self.environments == 1 else f"{self.environments} environments"

    @property
    def span(self) -> str:
        """The interval, if there is one."""
        return f" [{self.low:.2f}, {self.high:.2f}]" if np.isfinite(self.low) else ""


def improvements(groups: Sequence[Group]) -> list[Improvement]:
    """Of every critic but Adam, in each environment that Adam ran in too; and over them, if several."""
    pairs: dict[tuple[str, str], list[tuple[Group, Group]]] = defaultdict(list)
    for g in groups:
        adam = baseline(groups, g)
        if g.critic != "adam" and adam and len(g.final):
            pairs[g.algorithm, g.label].append((g, adam))
    rows: list[Improvement] = []
    for (algorithm, label), found in pairs.items():
        rows.extend(_improvement([pair], pair[0].environment) for pair in found)
        if len(found) > 1:
            over = _improvement(found, EVERYWHERE)
            own = [g for g in groups if (g.algorithm, g.label) == (algorithm, label) and not len(g.final)]
            rows.append(replace(over, failed=over.failed + sum(g.count("failed") for g in own)))
    return rows


def _improvement(pairs: Sequence[tuple[Group, Group]], environment: str) -> Improvement:
    new, old = ([pair[side].marks for pair in pairs] for side in (0, 1))
    seeds = min(len(x) for x in (*new, *old))
    low, high = stats.improvement_interval(new, old) if seeds > 1 else (np.nan, np.nan)
    first = pairs[0][0]
    return Improvement(
        algorithm=first.algorithm,
        label=first.label,
        critic=first.critic,
        environment=environment,
        seeds=seeds,
        failed=sum(g.count("failed") for pair in pairs for g in pair),
        environments=len(pairs),
        measure=first.measure,
        probability=stats.improvement(new, old),
        low=low,
        high=high,
    )


@dataclass(frozen=True)
class Overhead:
    """Training time of a critic over Adam's, in percent."""

    group: Group
    milliseconds: float
    """A step, median over the runs."""
    adam: float
    """The same of Adam."""
    paper: int | None
    """What the paper reports for KOVA."""

    @property
    def percent(self) -> float:
        return 100 * (self.milliseconds / self.adam - 1)


def overheads(groups: Sequence[Group]) -> list[Overhead]:
    """Of every critic but Adam, where Adam ran too."""
    rows = []
    for g in groups:
        adam = baseline(groups, g)
        if g.critic == "adam" or adam is None or not (g.milliseconds > 0 and adam.milliseconds > 0):
            continue
        printed = dict(zip(ENVIRONMENTS, PAPER.get(g.algorithm, ()), strict=False))
        paper = printed.get(g.environment.split("-")[0])
        rows.append(Overhead(g, g.milliseconds, adam.milliseconds, paper))
    return rows
