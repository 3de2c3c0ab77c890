"""Statistics over seeds. Knows nothing of plots or training."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["bootstrap"]


def bootstrap(
    values: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """A percentile bootstrap interval of the mean over the first axis.

    With few seeds it is too narrow: about 85% of the intervals of 4 values cover the mean. Say how
    many seeds there were.

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
    rng = np.random.default_rng(seed)
    means = x[rng.integers(len(x), size=(draws, len(x)))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
