"""What a step of the filter is going to cost, told from its sizes, so that nobody has to wait for it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from kova_rl.filter.covariance import Covariance, Kronecker
from kova_rl.filter.layout import Segment, dimension

__all__ = ["price", "warn_if_dear"]

CALLS = 14e6
"""Operations that would take as long as what a small critic's step is made of: calls, and no arithmetic."""
DEAR = 10.0
"""Steps of Adam from which on a step of the filter is worth a warning."""


def price(covariance: Covariance, segments: Sequence[Segment], n: int) -> float:
    """About how many steps of Adam a step with n samples costs; measured ones are within a half of it."""
    adam = CALLS + 6.0 * dimension(segments) * n
    return (1.5 * CALLS + covariance.work(segments, n)) / adam


def warn_if_dear(
    covariance: Covariance, segments: Sequence[Segment], n: int, linear: bool, stacklevel: int
) -> None:
    """Warn, at the first batch, of a structure that will make a step many times as slow as Adam's."""
    times = price(covariance, segments, n)
    if times <= DEAR:
        return
    better = (
        f"covariance.{Kronecker.__name__}() costs two to four, at any width"
        if linear
        else "smaller batches, a smaller rank and narrower layers cost less, and so does the last layer alone"
    )
    warnings.warn(
        f"a step of {type(covariance).__name__} with {dimension(segments):,} weights and batches of {n} will "
        f"cost about {times:.0f} steps of Adam: {better}.",
        stacklevel=stacklevel,
    )
