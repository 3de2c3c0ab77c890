"""Which evolution goes with which covariance: one table, which the docs print and ``Kova`` obeys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from kova_rl.filter import covariance as cov
from kova_rl.filter import evolution as evo
from kova_rl.filter.layout import Segment

T = TypeVar("T")

ANY = None
"""Works at any size."""
NEVER = 0
"""Does not work."""
SMALL = 512
"""Works where no block is larger than this: a step inverts each block."""

_KEEPS_P: dict[type[evo.Evolution], int | None] = {
    evo.Leakage: ANY,
    evo.VariableLeakage: ANY,
    evo.PriorAnchored: ANY,
    evo.DirectionalForgetting: ANY,
    evo.FadingMemory: ANY,
    evo.RandomWalk: ANY,
    evo.Stationary: ANY,
    evo.Memoryless: ANY,
}
_INVERTS = _KEEPS_P | {evo.Leakage: SMALL, evo.VariableLeakage: SMALL}
_KEEPS_THE_INVERSE = _KEEPS_P | {
    evo.PriorAnchored: NEVER,
    evo.DirectionalForgetting: NEVER,
    evo.FadingMemory: NEVER,
    evo.RandomWalk: NEVER,
}

TABLE: dict[type[cov.Covariance], dict[type[evo.Evolution], int | None]] = {
    cov.Full: _INVERTS,
    cov.LayerBlocks: _INVERTS,
    cov.NeuronBlocks: _KEEPS_P,
    cov.Diagonal: _KEEPS_P,
    cov.LowRank: _KEEPS_THE_INVERSE,
    cov.Kronecker: _KEEPS_THE_INVERSE,
}
"""``TABLE[covariance][evolution]`` is the largest block that works; subclasses follow their parents."""


def check_pair(covariance: cov.Covariance, evolution: evo.Evolution, segments: Sequence[Segment]) -> None:
    """Raise ``ValueError``, naming what would work, if the two do not go together."""
    row = _lookup(TABLE, type(covariance))
    if row is None:
        return  # A structure of the user's own: it knows best.
    if not any(parent in row for parent in type(evolution).__mro__):  # an evolution of the user's own
        if row is not _KEEPS_THE_INVERSE or type(evolution).leak is not evo.Evolution.leak:
            return
        raise ValueError(
            f"{type(covariance).__name__} keeps the inverse of P, so {type(evolution).__name__} must say by "
            "its leak() how that decays, as evolution.Leakage does; or use a covariance that keeps P"
        )
    limit = _lookup(row, type(evolution))
    if limit is ANY:
        return
    structure, name = type(covariance).__name__, type(evolution).__name__
    assert limit is not None
    size = 0
    if limit != NEVER and isinstance(covariance, cov.BlockDiagonal):
        size = max(blocks.size for blocks in covariance.partition(segments))
        if size <= limit:
            return
    good = ", ".join(kind.__name__ for kind, allowed in row.items() if allowed is ANY)
    others = ", ".join(kind.__name__ for kind in TABLE if _lookup(TABLE[kind], type(evolution)) is ANY)
    why = f" with blocks above {limit} (its largest is {size})" if limit else ""
    raise ValueError(
        f"{structure} does not work with {name}{why}. {structure} goes with {good}; "
        f"{name} goes with {others}."
    )


def _lookup(table: Mapping[type, T], kind: type) -> T | None:
    return next((table[parent] for parent in kind.__mro__ if parent in table), None)
