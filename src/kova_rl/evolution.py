"""Evolution noise: how the covariance grows between updates."""

from kova_rl.filter.evolution import *  # noqa: F403
from kova_rl.filter.evolution import __all__ as __all__
