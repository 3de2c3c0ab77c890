"""A noise that is learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.filter.checks import check_fraction, check_positive
from kova_rl.filter.observation.base import Inputs, Observation
from kova_rl.filter.step import State


@dataclass(frozen=True)
class Adaptive(Observation):
    r"""Learns one variance from earlier innovations, so that nobody has to know it:

    .. math:: r = \max\big(\text{floor} \cdot \overline{\delta^2},\;
        \overline{\delta^2 - h' P^- h}\big), \qquad P_n = r I,

    with running means (bars) over the updates already made. It needs a filter that is tracked: with
    ``Memoryless`` the expected variance never falls, r ends at its floor, and the steps blow up.

    Args:
        initial: The variance before the first batch, in the targets' units squared.
        decay: Of the running means; ``1/(1 - decay)`` updates are averaged.
        floor: Least share of the innovations that is taken as noise.
    """

    initial: float = 1.0
    decay: float = 0.99
    floor: float = 1e-3

    unit_free = False
    learns = True

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_fraction("decay", self.decay)
        check_positive("floor", self.floor)

    def init(self, like: Tensor) -> State:
        return {"variance": like.new_full((), self.initial), "squared": like.new_zeros(())}

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        learned = torch.maximum(memory["squared"] * self.floor, memory["variance"])
        tiny = torch.finfo(innovation.dtype).tiny ** 0.5  # all targets met exactly
        return learned.clamp(min=tiny).expand_as(innovation)

    def observe(self, memory: State, innovation: Tensor, predicted_variance: Tensor) -> None:
        squared = innovation.square().mean()
        memory["squared"].lerp_(squared, 1 - self.decay)
        memory["variance"].lerp_(squared - predicted_variance.mean(), 1 - self.decay)
