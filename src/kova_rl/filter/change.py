r"""What an evolution does to P between two updates, as a value that every filter can read.

Coordinates are whitened, so that the prior ``P_0`` is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass


class Change:
    """One prediction ``P -> P-``. A structure says which kinds it can make."""

    bounded = True
    """Whether ``P- <= P_0`` follows from ``P <= P_0``, after the update at the latest."""

    @property
    def affine(self) -> tuple[float, float]:
        """``P- = scale P + shift I``; of a change of another kind, what is left of it without that."""
        return 1.0, 0.0

    def grown(self, variance: float) -> float:
        """The largest variance after the prediction, given that before it."""
        scale, shift = self.affine
        return scale * variance + shift

    def opened(self, share: float) -> Change:
        """The same, where only this share of what was learned still holds; most take no notice."""
        return self

    def part(self, looks: int) -> Change:
        """What is the same if it is done so many times."""
        return self


@dataclass(frozen=True)
class Unchanged(Change):
    """``P- = P``."""


@dataclass(frozen=True)
class Leak(Change):
    """``P-^-1 = (1-eta) P^-1 + eta I``."""

    eta: float

    def opened(self, share: float) -> Leak:
        return self if share == 1.0 else Leak(1 - (1 - self.eta) * share)

    def part(self, looks: int) -> Leak:
        return Leak(1 - (1 - self.eta) ** (1 / looks))


@dataclass(frozen=True)
class Scaled(Change):
    """``P- = factor P`` with a factor of at least 1."""

    factor: float

    bounded = False

    @property
    def affine(self) -> tuple[float, float]:
        return self.factor, 0.0

    def part(self, looks: int) -> Scaled:
        return Scaled(self.factor ** (1 / looks))


@dataclass(frozen=True)
class Shifted(Change):
    """``P- = scale P + shift I``."""

    scale: float
    shift: float

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return self.scale + self.shift <= 1.0

    @property
    def affine(self) -> tuple[float, float]:
        return self.scale, self.shift

    def part(self, looks: int) -> Shifted:
        scale = self.scale ** (1 / looks)
        return Shifted(scale, self.shift / sum(scale**i for i in range(looks)))


@dataclass(frozen=True)
class Directional(Change):
    """Grows by ``1/(1 - eta)`` in the directions that the batch observes, or less (``bounded``)."""

    eta: float
    bounded: bool = True

    def part(self, looks: int) -> Directional:
        return Directional(1 - (1 - self.eta) ** (1 / looks), self.bounded)


@dataclass(frozen=True)
class Restart(Change):
    """``P- = variance I``: nothing is carried over."""

    variance: float

    bounded = False

    @property
    def affine(self) -> tuple[float, float]:
        return 0.0, self.variance
