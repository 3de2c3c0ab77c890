"""P = P_0 at every step: what ``evolution.Memoryless`` turns every structure into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from kova_rl.filter.covariance.base import Covariance, Prior, Spread
from kova_rl.filter.evidence import Evidence, Jacobian
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update

if TYPE_CHECKING:
    from kova_rl.filter.evolution import Evolution


@dataclass(frozen=True)
class Isotropic(Covariance):
    """The identity, in whitened coordinates. Allocates nothing, and is no posterior."""

    prior: Prior = 1.0
    dtype: torch.dtype | None = None

    tracked: ClassVar[bool] = False

    def init(self, segments: Sequence[Segment], like: Tensor) -> State:
        return {}

    def step(
        self, state: State, evolution: Evolution, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        return evolution.step(self, state, memory, evidence, lr)

    def variances(self, state: State) -> Tensor:
        return torch.ones(1)  # broadcasts to all d

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        H = jacobian.dense()
        return Spread.of(H, H)

    def draw(self, state: State, normal: Tensor) -> Tensor:
        return normal
