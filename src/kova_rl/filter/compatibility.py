"""Which evolution goes with which covariance, as the two say themselves."""

from __future__ import annotations

from collections.abc import Sequence

from kova_rl.filter import covariance as cov
from kova_rl.filter import evolution as evo
from kova_rl.filter.covariance.base import ANY
from kova_rl.filter.layout import Segment

NEVER = 0
"""Does not work."""


def limit(covariance: type[cov.Covariance], evolution: type[evo.Evolution]) -> int | None:
    """The largest block for which the two go together: ``ANY``, ``NEVER`` or a size."""
    return covariance.accepts.get(evolution.kind, NEVER)


def members(package: object, base: type) -> list[type]:
    """The concrete classes that a package exports."""
    exported = (getattr(package, name) for name in package.__all__)  # type: ignore[attr-defined]
    kinds = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, base)]
    return [kind for kind in kinds if not getattr(kind, "__abstractmethods__", None)]


def check_pair(covariance: cov.Covariance, evolution: evo.Evolution, segments: Sequence[Segment]) -> None:
    """Raise ``ValueError``, naming what would work, if the two do not go together."""
    most = limit(type(covariance), type(evolution))
    if most is ANY:
        return
    size = covariance.largest_block(segments)
    if most != NEVER and size <= most:
        return
    structure, name = type(covariance).__name__, type(evolution).__name__
    evolutions = members(evo, evo.Evolution)
    structures = members(cov, cov.Covariance)
    good = ", ".join(kind.__name__ for kind in evolutions if limit(type(covariance), kind) is ANY)
    others = ", ".join(kind.__name__ for kind in structures if limit(kind, type(evolution)) is ANY)
    why = f" with blocks above {most} (its largest is {size})" if most else ""
    raise ValueError(
        f"{structure} does not work with {name}{why}. {structure} goes with {good}; "
        f"{name} goes with {others}."
    )
