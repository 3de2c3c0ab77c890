"""Outliers as noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kova_rl.filter.checks import check_fraction, check_positive
from kova_rl.filter.observation.base import Gram, Inputs, Observation
from kova_rl.filter.observation.batch_size import BatchSize
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Robust(Observation):
    r"""Takes outliers for noise: multiplies the variances of ``base`` by ``1 + z^2/c^2``.

    ``z`` is the innovation over its running standard deviation, so that an innovation of ``c``
    deviations counts half, and one of ``10 c`` a hundredth.

    Args:
        c: Where an innovation begins to look like an outlier, in standard deviations.
        base: The noise of a sample that is none.
        decay: Of the running variance, to which an innovation contributes at most ``c`` deviations. What
            clipping takes from a Gaussian's variance is put back.
    """

    c: float = 3.0
    base: Observation = field(default_factory=BatchSize)
    decay: float = 0.99

    learns = True

    def __post_init__(self) -> None:
        check_positive("c", self.c)
        check_fraction("decay", self.decay)
        if not isinstance(self.base, Observation):
            raise ValueError(f"base must be an observation noise, got {self.base!r}")

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.base.inputs

    @property
    def unit_free(self) -> bool:  # type: ignore[override]
        return self.base.unit_free

    def init(self, like: Tensor) -> State:
        return {"variance": like.new_zeros(()), "base": self.base.init(like)}

    def _scale(self, memory: State, innovation: Tensor) -> Tensor:
        """The running variance; that of the batch before the first, or if most of the batch is far out.

        What most of a batch is cannot be an outlier: then it is the scale that has changed.
        """
        known, squares = memory["variance"], innovation.square()
        changed = len(squares) >= 5 and bool(squares.median() > max(self.c, 3.0) ** 2 * known)
        return squares.mean() if changed or not known > 0 else known

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        base = self.base.covariance(memory["base"], innovation, inputs)
        tiny = torch.finfo(innovation.dtype).tiny ** 0.5
        scale = self._scale(memory, innovation).clamp(min=tiny)
        factor = 1 + innovation.square() / (self.c**2 * scale)
        if base.ndim == 1:
            return base * factor
        return base * factor.sqrt() * factor.sqrt()[:, None]

    def valid(self, memory: State) -> float:
        return self.base.valid(memory["base"])

    def observe(
        self, memory: State, innovation: Tensor, predicted_variance: Tensor, gram: Gram | None = None
    ) -> None:
        scale = self._scale(memory, innovation)
        limit = self.c * scale.sqrt()
        clipped = innovation.clamp(-limit, limit)
        typical = clipped.square().mean() / _clipped_variance(self.c)
        memory["variance"].copy_(torch.lerp(scale, typical, 1 - self.decay))
        self.base.observe(memory["base"], clipped, predicted_variance, gram)


def _clipped_variance(c: float) -> float:
    """Mean square of a standard normal number that is clipped at c deviations."""
    inside = math.erf(c / math.sqrt(2))
    return inside - c * math.sqrt(2 / math.pi) * math.exp(-c * c / 2) + c * c * (1 - inside)
