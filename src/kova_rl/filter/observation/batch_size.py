"""The paper's batch-size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kova_rl.filter.observation.base import Inputs, Observation
from kova_rl.filter.step import State


@dataclass(frozen=True)
class BatchSize(Observation):
    """``N I``: a whole batch is worth one observation of unit noise (the paper's *batch-size*)."""

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        return torch.full_like(innovation, innovation.shape[0])
