"""P = P_0 at every step: what ``evolution.Memoryless`` turns every structure into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kova_rl.filter.change import Change, Restart
from kova_rl.filter.covariance.base import ANY, Accepted, Covariance, Prior, Spread
from kova_rl.filter.evidence import Evidence, Jacobian
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update, isotropic


@dataclass(frozen=True)
class Isotropic(Covariance):
    """The identity, in whitened coordinates. Allocates nothing, and is no posterior."""

    prior: Prior = 1.0
    dtype: torch.dtype | None = None

    tracked: ClassVar[bool] = False
    accepts: ClassVar[Accepted] = {Restart: ANY}

    @classmethod
    def or_else(cls, covariance: Covariance, kind: type[Change]) -> Covariance:
        """The structure that is really kept: ``covariance``, unless every step starts afresh."""
        return cls(covariance.prior, covariance.dtype) if kind is Restart else covariance

    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        return {}

    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        assert isinstance(change, Restart)
        return isotropic(evidence, lr, change.variance)

    def variances(self, state: State) -> Tensor:
        return torch.ones(1)  # broadcasts to all d

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        H = jacobian.dense()
        return Spread.of(H, H)

    def draw(self, state: State, normal: Tensor) -> Tensor:
        return normal
