r"""Observation noise ``P_n``: how noisy each target is."""

from kova_rl.filter.observation.adaptive import Adaptive
from kova_rl.filter.observation.base import Observation
from kova_rl.filter.observation.batch_size import BatchSize
from kova_rl.filter.observation.correlated import Correlated, kernel
from kova_rl.filter.observation.importance_weighted import ImportanceWeighted
from kova_rl.filter.observation.max_ratio import MaxRatio
from kova_rl.filter.observation.per_sample import PerSample
from kova_rl.filter.observation.robust import Robust

__all__ = [
    "Adaptive",
    "BatchSize",
    "Correlated",
    "ImportanceWeighted",
    "MaxRatio",
    "Observation",
    "PerSample",
    "Robust",
    "kernel",
]
