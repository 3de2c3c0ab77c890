"""A variance for each target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kova_rl.filter.observation.base import Inputs, Observation, vector_of
from kova_rl.filter.step import State


@dataclass(frozen=True)
class PerSample(Observation):
    """``diag(variance)``: a variance for each target, in the targets' units squared. No factor N."""

    inputs = ("variance",)
    unit_free = False

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        return vector_of("variance", inputs, innovation, above=0.0)
