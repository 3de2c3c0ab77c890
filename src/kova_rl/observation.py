"""Observation noise: how noisy each target is."""

from kova_rl.filter.observation import *  # noqa: F403
from kova_rl.filter.observation import __all__ as __all__
