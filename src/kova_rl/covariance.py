"""Structures of the covariance P of the weights."""

from kova_rl.filter.covariance import *  # noqa: F403
from kova_rl.filter.covariance import __all__ as __all__
