"""A noise that is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.filter.checks import check_fraction, check_positive
from kova_rl.filter.evidence import inverse_lower
from kova_rl.filter.observation.base import Gram, Inputs, Observation
from kova_rl.filter.step import State

SURPRISE = 4.0
"""Innovations whose mean square is so many times what was expected may be more than noise."""

DAMPED = 0.3
"""Share of a surprise that counts as noise while it lasts."""

LEAST_VALID = 0.5
"""The least share of what was learned that one surprise leaves: it takes several to forget it."""


@dataclass(frozen=True)
class Adaptive(Observation):
    r"""Learns one variance from earlier innovations, so that nobody has to know it:

    .. math:: r = \max\big(\text{floor} \cdot \overline{\delta^2},\;
        \overline{\delta^2 - h' P^- h}\big), \qquad P_n = r I,

    with running means (bars) over the updates already made. Where P expects far more than the innovations
    show, as a wide prior does at first, the difference says that P is too wide and nothing of the noise; so
    none counts as less than :math:`-\overline{\delta^2}`, and what it owes is soon paid back.

    Innovations far larger than they were come from noise, or from a function that has changed, which is to
    be learned and not to be taken for noise. So a surprise counts as noise, in part, while its batch lasts,
    which keeps the step from landing anywhere; what is learned of the noise is what no change of the weights
    explains,

    .. math:: \frac{\delta' S_0^{-1} \delta}{\operatorname{tr} S_0^{-1}}, \qquad
        S_0 = s^2 H' P_0 H + r I,

    where ``s^2`` scales the prior to the innovations; and the rest of the surprise says how little of what
    was learned still holds, which evolutions that leak take for more to forget.

    It needs a filter that is tracked: with ``Memoryless`` the expected variance never falls, r ends at its
    floor, and the steps blow up.

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
        return {"variance": like.new_full((), self.initial), "squared": like.new_zeros(()), "valid": 1.0}

    def valid(self, memory: State) -> float:
        return float(memory["valid"])

    def _known(self, memory: State) -> float:
        """What was learned of the noise."""
        return max(float(memory["squared"]) * self.floor, float(memory["variance"]))

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        squared, usual = _mean_square(innovation), max(float(memory["squared"]), float(memory["variance"]))
        tiny = torch.finfo(innovation.dtype).tiny ** 0.5  # all targets met exactly
        least = DAMPED * squared if SURPRISE * usual < squared < math.inf else tiny
        return torch.full_like(innovation, max(least, self._known(memory)))

    def observe(
        self, memory: State, innovation: Tensor, predicted_variance: Tensor, gram: Gram | None = None
    ) -> None:
        squared, expected = _mean_square(innovation), float(predicted_variance.mean())
        noise, known = squared - expected, self._known(memory)
        memory["valid"] = 1.0
        usual = SURPRISE * (known + expected)
        if gram is not None and usual < squared < math.inf:
            noise = float(_unexplained(innovation, gram(), known))
            memory["valid"] = max(LEAST_VALID, usual / max(squared - noise, usual))
        mean_square = self._averaged(memory, "squared", squared)
        self._averaged(memory, "variance", max(noise, -mean_square))

    def _averaged(self, memory: State, name: str, value: float) -> float:
        """The running mean with one value more."""
        mean = self.decay * float(memory[name]) + (1 - self.decay) * value
        memory[name].fill_(mean)
        return mean


def _mean_square(values: Tensor) -> float:
    return values.dot(values).item() / values.shape[0]


def _unexplained(innovation: Tensor, gram: Tensor, known: float) -> Tensor:
    """The variance of what no change of the weights explains: where the prior expects least, it is noise."""
    K, delta = gram.double(), innovation.double()
    S = K * (delta.square().mean() / K.diagonal().mean().clamp(min=torch.finfo(K.dtype).tiny))
    S.diagonal().add_(max(known, 1e-9 * float(S.diagonal().mean())))
    lower = torch.linalg.cholesky_ex(S).L
    inverse = inverse_lower(lower)
    estimate: Tensor = (inverse @ delta).square().sum() / inverse.square().sum()
    return estimate
