"""The paper's max-ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kova_rl.filter.checks import check_choice, check_positive
from kova_rl.filter.observation.base import Inputs, Observation, vector_of
from kova_rl.filter.step import State


@dataclass(frozen=True)
class MaxRatio(Observation):
    r"""Noisier where the new policy finds the action unlikely (the paper's *max-ratio*).

    With ``ratio = pi_new/pi_old``, the diagonal is

    .. math::
        \text{code:}\ N \max\Big(1, \frac{1}{\text{ratio} + \epsilon}\Big), \qquad
        \text{paper:}\ N \max\Big(1, \frac{1}{1/\text{ratio} + \epsilon}\Big).

    The paper prints the second; the authors' released code computes the first, which is the sensible
    direction and the default here.

    Args:
        eps: Keeps the noise finite.
        convention: ``"code"`` or ``"paper"``.
    """

    eps: float = 1e-5
    convention: Literal["code", "paper"] = "code"

    inputs = ("ratio",)

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)
        check_choice("convention", self.convention, ("code", "paper"))

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        ratio = vector_of("ratio", inputs, innovation, at_least=0.0)
        if self.convention == "paper":
            ratio = 1 / ratio  # infinite where the ratio is 0, and its inverse 0 again
        return len(innovation) * (1 / (ratio + self.eps)).clamp(min=1.0)
