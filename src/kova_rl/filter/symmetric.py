"""Products of which about a quarter is known beforehand: symmetric ones, and those with a triangle."""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 32
"""Rows that are computed at a time."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left' right``, k x k, which must be symmetric; to the bit it is so but for tiles on its diagonal."""
    k = left.shape[1]
    out = left.new_empty(k, k)
    for start in range(0, k, TILE):
        stop = min(start + TILE, k)
        below = torch.mm(left[:, start:stop].T, right[:, :stop], out=out[start:stop, :stop])
        if start:
            out[:start, start:stop] = below[:, :start].T
    return out


def times_upper(left: Tensor, upper: Tensor, out: Tensor) -> Tensor:
    """``left upper``, written to ``out``, for an upper triangular matrix."""
    half = len(upper) // 2
    torch.mm(left[:, :half], upper[:half, :half], out=out[:, :half])
    torch.mm(left, upper[:, half:], out=out[:, half:])
    return out
