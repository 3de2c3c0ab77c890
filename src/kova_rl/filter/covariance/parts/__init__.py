"""The forms in which blocks of P are kept: as roots, as matrices, or as variances."""

from kova_rl.filter.covariance.parts.base import Part
from kova_rl.filter.covariance.parts.matrices import Matrices
from kova_rl.filter.covariance.parts.roots import Roots
from kova_rl.filter.covariance.parts.variances import Variances

__all__ = ["Matrices", "Part", "Roots", "Variances"]
