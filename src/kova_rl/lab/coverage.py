"""How often the 95% intervals of :mod:`kova_rl.lab.stats` hold the truth, by simulation.

``python -m kova_rl.lab.coverage`` prints the table; :data:`SIMULATED` keeps it for the captions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from kova_rl.lab import stats

__all__ = ["SHAPES", "SIMULATED", "note", "of_improvement", "of_statistic"]

Array = NDArray[np.float64]
BATCH = 50
MOST = 16
"""Seeds that were simulated."""
AHEAD = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Distances in standard deviations: probabilities of improvement of 0.50, 0.64, 0.76, 0.92 and 0.98."""


def _failing(rng: np.random.Generator, size: Any) -> Array:
    """Runs of which a fifth never learns."""
    out: Array = np.where(rng.random(size) < 0.2, rng.normal(0, 0.3, size), rng.normal(3, 0.5, size))
    return out


SHAPES: dict[str, Callable[[np.random.Generator, Any], Array]] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "a fifth fails": _failing,
}
"""What returns may look like over seeds: even, skewed, in two heaps."""


SHARES: dict[str, Callable[[np.random.Generator, Any], Array]] = {
    "half above": lambda rng, size: (rng.random(size) < 0.5).astype(np.float64),
    "a fifth above": lambda rng, size: (rng.random(size) < 0.2).astype(np.float64),
}
"""Whether runs score above a threshold, as in a performance profile."""


def of_statistic(
    statistic: stats.Statistic,
    shape: str,
    runs: int,
    environments: int = 1,
    repeats: int = 2000,
    draws: int = 1000,
) -> float:
    """The share of 95% intervals of ``statistic`` that hold its value in the population.

    Args:
        statistic: As :func:`kova_rl.lab.stats.interval` takes it.
        shape: A name in :data:`SHAPES` or :data:`SHARES`.
        runs: Seeds of each environment.
        environments: Whose runs are drawn by themselves and pooled.
        repeats: Simulated experiments; 2,000 leave a standard error of half a percent.
        draws: Resamples of each interval.

    Example:
        >>> 0.6 < of_statistic(np.mean, "normal", 3, repeats=200, draws=200) < 0.85
        True
    """
    rng, draw = np.random.default_rng(0), (SHAPES | SHARES)[shape]
    truth = round(float(statistic(draw(rng, 1_000_000), axis=0)), 3)  # an end may be a share, exactly
    held = 0
    for batch in range(0, repeats, BATCH):
        tasks = [draw(rng, (runs, BATCH)) for _ in range(environments)]
        low, high = stats.interval(tasks, statistic, draws=draws, seed=batch)
        held += int(((low <= truth + 1e-9) & (truth - 1e-9 <= high)).sum())
    return held / (BATCH * -(-repeats // BATCH))


def of_improvement(runs: int, environments: int = 1, ahead: float = 0.5, repeats: int = 4000) -> float:
    r"""The same of the probability of improvement, between normal returns that are ``ahead`` apart.

    The truth is :math:`\Phi(\mathrm{ahead} / \sqrt 2)`.
    """
    rng = np.random.default_rng(0)
    truth = 0.5 * (1 + math.erf(ahead / 2))
    held = 0
    for _ in range(repeats):
        new, old = rng.normal(ahead, 1, (environments, runs)), rng.normal(0, 1, (environments, runs))
        low, high = stats.improvement_interval(list(new), list(old))
        held += low <= truth <= high
    return held / repeats


SIMULATED = {
    "iqm": {
        1: "50-51 73-76 87-88 88-89 89-90 90 92-93 92-93 93 92-93 92-94 93-94 94 93-94 93-94",
        5: "75-76 85-87 90-91 90-91 91-93 92 92-93 93-94 92-93 93 93-94 94-95 93-94 94 94-95",
    },
    "improvement": {
        1: "92-100 90-97 93-97 94-95 95-96 95-97 95-96 95-97 95-97 96 95-97 95-97 95-97 96-97 95-97",
        5: "94-96 95-98 95 94-98 95-97 95-98 95-98 95-98 95-98 96-98 95-98 95-98 95-98 95-98 95-99",
    },
    "profile": {
        1: "31-50 47-75 55-87 66-94 71-97 77-88 81-93 84-93 88-97 91-94 91-97 91-92 92-94 92-95 84-95",
        5: "80-86 86-93 91-93 90-93 93-94 91-93 95 93-95 94-95 93-95 95 93-94 95 93-95 95",
    },
}
"""Percent of intervals that held, by the number of environments, for 2, 3 to 16 seeds: lowest and highest
over what was simulated."""


def note(seeds: Collection[int], kind: str = "iqm", environments: int = 1) -> str:
    """What a caption has to say of 95% intervals; nothing where 16 seeds or more keep their word.

    Args:
        seeds: Of each interval; the fewest count.
        kind: A name in :data:`SIMULATED`.
        environments: That are pooled; the fewest, too. Of those that were simulated, the next smaller one.

    Example:
        >>> note([16, 20])
        ''
        >>> note([1])
        'One seed has no interval.'
    """
    said = ["One seed has no interval."] if 1 in seeds else []
    if several := [count for count in seeds if count > 1]:
        fewest = min(MOST, *several)
        like = max(count for count in SIMULATED[kind] if count <= environments)
        span = SIMULATED[kind][like].split()[fewest - 2]
        where = "one environment" if like == 1 else f"each of {like} environments"
        if fewest < MOST or float(span.split("-")[0]) < 93:
            said.append(
                f"With {fewest} seeds in {where}, 95% intervals held the truth in {span}% of simulations."
            )
    return " ".join(said)


def simulate(runs: int, kind: str, environments: int = 1) -> list[tuple[str, float]]:
    """Name and coverage of all that is simulated of one kind."""
    if kind == "improvement":
        return [(f"ahead by {x:g}", of_improvement(runs, environments, x)) for x in AHEAD]
    statistic = stats.iqm if kind == "iqm" else np.mean
    shapes = SHARES if kind == "profile" else SHAPES
    return [(shape, of_statistic(statistic, shape, runs, environments)) for shape in shapes]


KINDS = {
    ("mean", 1): "mean",
    ("iqm", 1): "interquartile mean",
    ("iqm", 5): "interquartile mean, 5 environments",
    ("improvement", 1): "improvement",
    ("improvement", 5): "improvement, 5 environments",
    ("profile", 1): "performance profile",
    ("profile", 5): "performance profile, 5 environments",
}


def main(counts: tuple[int, ...] = (3, 5, 8, 16)) -> None:
    """Print coverage of the 95% intervals, in percent."""
    table = Table(title="Percent of 95% intervals that hold the truth, by number of seeds")
    for i, heading in enumerate(("interval of", "returns", *map(str, counts))):
        table.add_column(heading, justify="left" if i < 2 else "right")
    for kind, name in KINDS.items():
        columns = [simulate(runs, *kind) for runs in counts]
        for row in zip(*columns, strict=True):
            table.add_row(name, row[0][0], *(f"{100 * share:.1f}" for _, share in row))
    Console().print(table)


if __name__ == "__main__":
    main()
