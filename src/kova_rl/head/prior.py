"""The prior of a head, in the unit of the values."""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.head.stream import Stream

__all__ = ["PRIOR", "prior_variance"]

PRIOR = 10.0
"""Standard deviation of a typical value about the critic's own before any data, in the unit of values."""


def prior_variance(
    stream: Stream, tracked: Tensor, prior: float = PRIOR, scale: float | None = None
) -> float:
    """The variance of a weight about the tracked one that gives a typical value this deviation.

    Args:
        stream: What was seen; its features say what is typical.
        tracked: The critic's head, of shape (k,).
        prior: Standard deviation of a typical value, in units of ``scale``.
        scale: The unit; None for the root mean square of the returns that were seen, and 1 before that.
    """
    seen = len(stream)
    length = float(stream.features.square().sum()) / max(seen, 1)
    if scale is None:
        after = torch.where(stream.discounts != 0, stream.next_features @ tracked, 0.0)
        scale = float(stream.returns(after).square().mean().sqrt()) if seen else 1.0
    return (prior * (scale or 1.0)) ** 2 / (length or len(tracked))  # none seen, or only zeros
