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
        shape: A name in :data:`SHAPES`.
        runs: Seeds of each environment.
        environments: Whose runs are drawn by themselves and pooled.
        repeats: Simulated experiments; 2,000 leave a standard error of half a percent.
        draws: Resamples of each interval.

    Example:
        >>> 0.6 < of_statistic(np.mean, "normal", 3, repeats=200, draws=200) < 0.85
        True
    """
    rng = np.random.default_rng(0)
    truth = float(statistic(SHAPES[shape](rng, 1_000_000), axis=0))
    held = 0
    for batch in range(0, repeats, BATCH):
        tasks = [SHAPES[shape](rng, (runs, BATCH)) for _ in range(environments)]
        low, high = stats.interval(tasks, statistic, draws=draws, seed=batch)
        held += int(((low <= truth) & (truth <= high)).sum())
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


SIMULATED: dict[str, dict[int, tuple[int, int]]] = {
    "iqm": {
        2: (50, 51),
        3: (73, 76),
        4: (87, 88),
        5: (88, 89),
        6: (89, 90),
        7: (90, 90),
        8: (92, 93),
        9: (92, 93),
        10: (93, 93),
        11: (92, 93),
        12: (92, 94),
        13: (93, 94),
        14: (94, 94),
        15: (93, 94),
        16: (93, 94),
    },
    "environments": {
        2: (75, 76),
        3: (85, 87),
        4: (90, 91),
        5: (90, 91),
        6: (91, 93),
        7: (92, 92),
        8: (92, 93),
        9: (93, 94),
        10: (92, 93),
        11: (93, 93),
        12: (93, 94),
        13: (94, 95),
        14: (93, 94),
        15: (94, 94),
        16: (94, 95),
    },
    "improvement": {
        2: (53, 63),
        3: (70, 84),
        4: (83, 89),
        5: (89, 91),
        6: (90, 92),
        7: (90, 92),
        8: (92, 94),
        9: (92, 94),
        10: (93, 94),
        11: (91, 93),
        12: (92, 94),
        13: (93, 95),
        14: (94, 95),
        15: (95, 96),
        16: (93, 94),
    },
}
"""Percent of intervals that held, lowest and highest over what was simulated, by number of seeds:
of the interquartile mean in one environment, in five, and of the probability of improvement in one."""


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
    low, high = SIMULATED[kind][runs]
    span = f"{low}%" if low == high else f"{low}-{high}%"
    return f"With {runs} seeds, 95% intervals held the truth in {span} of simulations."


def simulate(runs: int, kind: str) -> list[tuple[str, float]]:
    """Name and coverage of all that is simulated of one kind."""
    if kind == "improvement":
        return [(f"ahead by {ahead:g}", of_improvement(runs, ahead=ahead)) for ahead in (0.5, 1.0)]
    environments = ENVIRONMENTS if kind == "environments" else 1
    statistic = np.mean if kind == "mean" else stats.iqm
    return [(shape, of_statistic(statistic, shape, runs, environments)) for shape in SHAPES]


KINDS = {
    "mean": "mean",
    "iqm": "interquartile mean",
    "environments": f"interquartile mean, {ENVIRONMENTS} environments",
    "improvement": "probability of improvement",
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
