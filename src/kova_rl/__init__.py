"""kova-rl: value functions with error bars for deep reinforcement learning."""

from kova_rl import covariance, evolution, observation
from kova_rl.errors import (
    CovarianceWindup,
    InvalidBatch,
    KovaError,
    NoiseNotPositiveDefinite,
    NonFiniteBatch,
    NotPositiveDefinite,
    StateMismatch,
)
from kova_rl.head import Head
from kova_rl.info import StepInfo
from kova_rl.optimizer import Kova
from kova_rl.posterior import Belief, Calibration, calibration

__version__ = "0.2.0"

__all__ = [
    "Belief",
    "Calibration",
    "CovarianceWindup",
    "Head",
    "InvalidBatch",
    "Kova",
    "KovaError",
    "NoiseNotPositiveDefinite",
    "NonFiniteBatch",
    "NotPositiveDefinite",
    "StateMismatch",
    "StepInfo",
    "__version__",
    "calibration",
    "covariance",
    "evolution",
    "observation",
]
