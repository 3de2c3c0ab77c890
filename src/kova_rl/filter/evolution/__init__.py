r"""Evolution noise ``P_v``: how the covariance grows between updates, ``P -> P-``.

Coordinates are whitened, so that the prior ``P_0`` is the identity. ``eta`` is the share of the past
that a step forgets: about ``1/eta`` batches are remembered.
"""

from kova_rl.filter.evolution.base import Evolution
from kova_rl.filter.evolution.directional_forgetting import DirectionalForgetting
from kova_rl.filter.evolution.fading_memory import FadingMemory
from kova_rl.filter.evolution.leakage import Leakage
from kova_rl.filter.evolution.memoryless import Memoryless
from kova_rl.filter.evolution.prior_anchored import PriorAnchored
from kova_rl.filter.evolution.random_walk import RandomWalk
from kova_rl.filter.evolution.stationary import Stationary
from kova_rl.filter.evolution.variable_leakage import VariableLeakage

__all__ = [
    "DirectionalForgetting",
    "Evolution",
    "FadingMemory",
    "Leakage",
    "Memoryless",
    "PriorAnchored",
    "RandomWalk",
    "Stationary",
    "VariableLeakage",
]
