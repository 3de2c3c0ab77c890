"""Samples that count as their weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kova_rl.filter.checks import check_positive
from kova_rl.filter.observation.base import Inputs, Observation, vector_of
from kova_rl.filter.step import State


@dataclass(frozen=True)
class ImportanceWeighted(Observation):
    """``N / clip(weight)``: a sample of importance weight w counts as w samples.

    Args:
        floor: Weights below it count as much as it does.
    """

    floor: float = 1e-3

    inputs = ("weight",)

    def __post_init__(self) -> None:
        check_positive("floor", self.floor)

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        weight = vector_of("weight", inputs, innovation, at_least=0.0)
        return len(innovation) / weight.clamp(min=self.floor)
