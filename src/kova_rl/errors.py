"""Every error that kova-rl raises on purpose. All of them are :class:`KovaError`."""

__all__ = [
    "CovarianceWindup",
    "InvalidBatch",
    "KovaError",
    "NoiseNotPositiveDefinite",
    "NonFiniteBatch",
    "NotPositiveDefinite",
    "StateMismatch",
]


class KovaError(Exception):
    """Base class of the package's errors."""


class InvalidBatch(KovaError, ValueError):
    """A batch of the wrong shape, or with a noise input missing or out of range. Nothing changed."""


class NonFiniteBatch(InvalidBatch):
    """A target, a prediction, a gradient or a noise input is NaN or infinite. Nothing changed."""


class NotPositiveDefinite(KovaError):
    """A covariance has lost positive definiteness, beyond what a bounded jitter can mend."""


class NoiseNotPositiveDefinite(NotPositiveDefinite, InvalidBatch):
    """The observation noise that was passed in is not a covariance matrix. Nothing changed."""


class CovarianceWindup(KovaError):
    """The covariance grew without bound in directions that the batches do not excite."""


class StateMismatch(KovaError, ValueError):
    """A state dict of another architecture, structure or prior. Nothing was loaded."""
