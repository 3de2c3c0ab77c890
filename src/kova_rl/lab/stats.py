"""Statistics over seeds. Knows nothing of plots or training.

Scores of several tasks come as a sequence of arrays, one a task with a row a run, so that tasks may have
different numbers of runs. A matrix of runs x tasks is ``list(matrix.T)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "bootstrap",
    "deviation",
    "improvement",
    "improvement_interval",
    "interval",
    "iqm",
    "profile",
    "profile_band",
    "with_deviation",
    "with_interval",
]

Array = NDArray[np.float64]
Statistic = Callable[..., Any]
LEVEL = "level must be in (0, 1), got {!r}: 0.95 for a 95% interval"


def bootstrap(
    values: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """A percentile bootstrap interval of the mean over the first axis.

    With few seeds it is too narrow: about 85% of the intervals of 4 values cover the mean. Say how
    many seeds there were. One seed has no interval: both ends are NaN.

    Args:
        values: One number a seed.
        level: Of the interval, in (0, 1).
        draws: Resamples.
        seed: Of the resamples; the same seed gives the same interval.

    Example:
        >>> low, high = bootstrap([1.0, 2.0, 3.0])
        >>> 1.0 <= low < 2.0 < high <= 3.0
        True
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"values must be one number a seed, got an array of shape {x.shape}")
    if len(x) == 1:
        return float("nan"), float("nan")
    low, high = interval([x], np.mean, level, draws, seed)
    return float(low), float(high)


def deviation(values: ArrayLike) -> Any:
    """The standard deviation of a sample (n - 1) along the first axis; NaN for one seed, which has none.

    Example:
        >>> float(deviation([1.0, 2.0, 3.0]))
        1.0
    """
    x = np.asarray(values, dtype=np.float64)
    return x.std(0, ddof=1) if len(x) > 1 else np.full(x.shape[1:], np.nan)


def with_deviation(values: ArrayLike, form: str = ".2f") -> str:
    """Mean and deviation over the seeds as text; of one seed its number alone.

    Example:
        >>> with_deviation([1.0, 2.0, 3.0]), with_deviation([1.0])
        ('2.00 ± 1.00', '1.00')
    """
    mean, spread = float(np.asarray(values).mean()), float(deviation(values))
    return f"{mean:{form}}" if np.isnan(spread) else f"{mean:{form}} ± {spread:{form}}"


def with_interval(values: ArrayLike, form: str = ".3f") -> str:
    """Mean over the seeds and its 95% interval as text; of one seed its number alone.

    Example:
        >>> with_interval([1.0])
        '1.000'
    """
    mean, (low, high) = float(np.asarray(values).mean()), bootstrap(values)
    return f"{mean:{form}}" if np.isnan(low) else f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def iqm(values: ArrayLike, axis: int = -1) -> Any:
    """The interquartile mean: of what is left without the lowest and the highest quarter.

    A quarter of n values is rounded down: 3 values lose none, 5 lose one at each end.

    Args:
        values: Runs along ``axis``.
        axis: The one that is averaged.

    Example:
        >>> float(iqm([0.0, 1.0, 2.0, 3.0, 100.0]))
        2.0
    """
    x = np.asarray(values, dtype=np.float64)
    count, cut = x.shape[axis], x.shape[axis] // 4
    x = np.partition(x, (cut, count - cut - 1), axis=axis)
    return x.take(np.arange(cut, count - cut), axis=axis).mean(axis)


def interval(
    tasks: Sequence[ArrayLike],
    statistic: Statistic = iqm,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """A stratified percentile bootstrap interval: the runs of each task are drawn again by themselves.

    Args:
        tasks: An array a task with a row a run. Rows may be curves, for an interval at each point.
        statistic: Of the runs of all tasks together; takes an array and ``axis``.
        level: Of the interval, in (0, 1).
        draws: Resamples.
        seed: Of the resamples; the same seed gives the same interval.

    Returns:
        Lower and upper ends, with the shape of a row.

    Example:
        >>> low, high = interval([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
        >>> bool(1.5 <= low < 3.0 < high <= 4.5)
        True
    """
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([_resampled(task, draws, rng) for task in _checked(tasks)], axis=1)
    return _ends(statistic(drawn, axis=1), level)


def improvement(new: Sequence[ArrayLike], old: Sequence[ArrayLike]) -> float:
    r"""The probability that a run of the new beats a run of the old, averaged over tasks; ties count half.

    .. math:: \frac{1}{M} \sum_m P(X_m > Y_m) + \tfrac12 P(X_m = Y_m)

    Args:
        new: Scores :math:`X`, an array a task.
        old: Scores :math:`Y` on the same tasks.

    Example:
        >>> improvement([[1.0, 3.0]], [[0.0, 2.0]])
        0.75
    """
    pairs = zip(*_same_tasks(new, old), strict=True)
    return float(np.mean([_wins(x, y) for x, y in pairs]))


def improvement_interval(
    new: Sequence[ArrayLike], old: Sequence[ArrayLike], level: float = 0.95
) -> tuple[float, float]:
    r"""A score interval of :func:`improvement`, which keeps its word with few runs and near 0 and 1.

    A bootstrap of 3 runs that all beat 3 others knows no doubt; this says what they leave open. With
    :math:`m` new and :math:`n` old runs in each of :math:`M` tasks its ends are the :math:`\theta` with

    .. math:: (\hat\theta - \theta)^2 = \frac{z^2}{M^2} \sum_1^M \frac{\theta (1 - \theta)}{m n} \left[1 +
        (k - 1) \left(\frac{1 - \theta}{2 - \theta} + \frac{\theta}{1 + \theta}\right)\right],
        \qquad k = \frac{m + n}{2}.

    The variance is that of the average if the probability is the same in all tasks; if not, it is less.

    Args:
        new: Scores, an array a task.
        old: Scores on the same tasks.
        level: Of the interval, in (0, 1).

    References:
        Newcombe, Confidence intervals for an effect size measure based on the Mann-Whitney statistic, part 2
        (method 5, for one task), Statistics in Medicine 2006.

    Example:
        >>> low, high = improvement_interval([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]])
        >>> f"{low:.2f} {high:.2f}"
        '0.50 1.00'
    """
    if not 0 < level < 1:
        raise ValueError(LEVEL.format(level))
    pairs = list(zip(*_same_tasks(new, old), strict=True))
    share, counts = improvement(new, old), np.array([(len(x), len(y)) for x, y in pairs], dtype=np.float64)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return _score_end(share, 0.0, counts, z), _score_end(share, 1.0, counts, z)


def _score_end(share: float, towards: float, counts: Array, z: float) -> float:
    """Where a score interval around this share ends, by halving."""
    inside, outside, k = share, towards, counts.mean(1)
    for _ in range(60):
        at = (inside + outside) / 2
        factors = 1 + (k - 1) * ((1 - at) / (2 - at) + at / (1 + at))
        variance = at * (1 - at) * (factors / counts.prod(1)).sum() / len(counts) ** 2
        if (at - share) ** 2 <= z**2 * variance:
            inside = at
        else:
            outside = at
    return (inside + outside) / 2


def profile(tasks: Sequence[ArrayLike], thresholds: ArrayLike) -> Array:
    """The performance profile: the share of runs that score above each threshold.

    Args:
        tasks: Scores, an array a task, on a scale that the tasks share.
        thresholds: In rising order.

    Example:
        >>> profile([[0.2, 0.6], [0.4, 0.8]], [0.0, 0.5, 1.0]).tolist()
        [1.0, 0.5, 0.0]
    """
    above: Array = np.concatenate(_above(tasks, thresholds)).mean(0)
    return above


def profile_band(
    tasks: Sequence[ArrayLike], thresholds: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[Array, Array]:
    """Stratified bootstrap intervals of :func:`profile`, at each threshold by itself."""
    return interval(_above(tasks, thresholds), np.mean, level, draws, seed)


def _above(tasks: Sequence[ArrayLike], thresholds: ArrayLike) -> list[Array]:
    at = np.asarray(thresholds, dtype=np.float64)
    return [(task[:, None] > at).astype(np.float64) for task in _checked(tasks)]


def _wins(x: Array, y: Array) -> float:
    """Share of pairs that x wins."""
    return float((0.5 * (1 + np.sign(x[:, None] - y))).mean())


def _resampled(task: Array, draws: int, rng: np.random.Generator) -> Array:
    return task[rng.integers(len(task), size=(draws, len(task)))]


def _ends(values: Array, level: float) -> tuple[Array, Array]:
    if not 0 < level < 1:
        raise ValueError(LEVEL.format(level))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _checked(tasks: Sequence[ArrayLike]) -> list[Array]:
    arrays = [np.asarray(task, dtype=np.float64) for task in tasks]
    if not arrays or any(array.ndim < 1 or not len(array) for array in arrays):
        shapes = [array.shape for array in arrays]
        raise ValueError(f"tasks must be one array a task, each with at least one run, got shapes {shapes}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("scores must be finite, got NaN or infinity: leave out the runs without a score")
    return arrays


def _same_tasks(new: Sequence[ArrayLike], old: Sequence[ArrayLike]) -> tuple[list[Array], list[Array]]:
    if len(new) != len(old):
        count = f"{len(new)} and {len(old)} tasks"
        raise ValueError(f"new and old must be scores on the same tasks, got {count}: compare where both ran")
    return _checked(new), _checked(old)
