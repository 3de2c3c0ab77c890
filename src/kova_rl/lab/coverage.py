"""How often the 95% intervals of :mod:`kova_rl.lab.stats` hold the truth, by simulation.

``python -m kova_rl.lab.coverage`` prints the table; :data:`SIMULATED` keeps it for the captions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from kova_rl.lab import stats

__all__ = ["SHAPES", "SIMULATED", "note", "of_improvement", "of_statistic"]

Array = NDArray[np.float64]
BATCH = 50
ENOUGH = 16
ENVIRONMENTS = 5


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


def of_improvement(
    runs: int, environments: int = 1, ahead: float = 0.5, repeats: int = 1000, draws: int = 1000
) -> float:
    r"""The same of the probability of improvement, between normal returns that are ``ahead`` apart.

    The truth is :math:`\Phi(\mathrm{ahead} / \sqrt 2)`.
    """
    rng = np.random.default_rng(0)
    truth = 0.5 * (1 + math.erf(ahead / 2))
    held = 0
    for seed in range(repeats):
        new, old = rng.normal(ahead, 1, (environments, runs)), rng.normal(0, 1, (environments, runs))
        low, high = stats.improvement_interval(list(new), list(old), draws=draws, seed=seed)
        held += low <= truth <= high
    return held / repeats


SIMULATED = {
    "iqm": "50-51 73-76 87-88 88-89 89-90 90 92-93 92-93 93 92-93 92-94 93-94 94 93-94",
    "environments": "75-76 85-87 90-91 90-91 91-93 92 92-93 93-94 92-93 93 93-94 94-95 93-94 94",
    "improvement": "53-63 70-84 83-89 89-91 90-92 90-92 92-94 92-94 93-94 91-93 92-94 93-95 94-95 95-96",
    "profile": "80-86 86-93 91-93 90-93 93-94 91-93 95 93-95 94-95 93-95 95 93-94 95 93-95",
}
"""Percent of intervals that held, for 2, 3 to 15 seeds: lowest and highest over what was simulated. Of
the interquartile mean in one environment and in five, of improvement in one, and of profiles over five."""


def note(runs: int, kind: str = "iqm") -> str:
    """What a caption has to say of 95% intervals over so few seeds; nothing for 16 or more.

    Args:
        runs: Seeds; of several groups, the fewest.
        kind: A name in :data:`SIMULATED`.

    Example:
        >>> note(16)
        ''
        >>> note(1)
        'One seed has no interval.'
    """
    if runs >= ENOUGH:
        return ""
    if runs < 2:
        return "One seed has no interval."
    span = SIMULATED[kind].split()[runs - 2]
    where = f" in each of {ENVIRONMENTS} environments" if kind in ("environments", "profile") else ""
    return f"With {runs} seeds{where}, 95% intervals held the truth in {span}% of simulations."


def simulate(runs: int, kind: str) -> list[tuple[str, float]]:
    """Name and coverage of all that is simulated of one kind."""
    if kind == "improvement":
        return [(f"ahead by {ahead:g}", of_improvement(runs, ahead=ahead)) for ahead in (0.5, 1.0)]
    if kind == "profile":
        return [(name, of_statistic(np.mean, name, runs, ENVIRONMENTS)) for name in SHARES]
    environments = ENVIRONMENTS if kind == "environments" else 1
    statistic = np.mean if kind == "mean" else stats.iqm
    return [(shape, of_statistic(statistic, shape, runs, environments)) for shape in SHAPES]


KINDS = {
    "mean": "mean",
    "iqm": "interquartile mean",
    "environments": f"interquartile mean, {ENVIRONMENTS} environments",
    "improvement": "probability of improvement",
    "profile": f"performance profile, {ENVIRONMENTS} environments",
}


def main(counts: tuple[int, ...] = (3, 5, 8, 16)) -> None:
    """Print coverage of the 95% intervals, in percent."""
    table = Table(title="Percent of 95% intervals that hold the truth, by number of seeds")
    for i, heading in enumerate(("interval of", "returns", *map(str, counts))):
        table.add_column(heading, justify="left" if i < 2 else "right")
    for kind, name in KINDS.items():
        columns = [simulate(runs, kind) for runs in counts]
        for row in zip(*columns, strict=True):
            table.add_row(name, row[0][0], *(f"{100 * share:.1f}" for _, share in row))
    Console().print(table)


if __name__ == "__main__":
    main()
