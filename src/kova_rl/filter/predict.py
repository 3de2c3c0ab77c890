r"""The prediction ``P -> P-`` alone, for a filter that needs P- before it observes.

Kova's filter folds the prediction into the update (:mod:`kova_rl.filter.step`). An unscented filter
draws its sigma points from P-, so it needs the matrix. Coordinates are whitened, ``P_0 = I``.
An evolution of your own takes part with ``@predict.register``.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from kova_rl.filter.covariance import Full
from kova_rl.filter.evolution import (
    DirectionalForgetting,
    Evolution,
    FadingMemory,
    Leakage,
    Memoryless,
    PriorAnchored,
    RandomWalk,
    Stationary,
)
from kova_rl.filter.step import State


@singledispatch
def predict(evolution: Evolution, P: Tensor, memory: State, step: int) -> Tensor:
    """P- as a new d x d matrix."""
    raise ValueError(
        f"{type(evolution).__name__} has no prediction of its own: use one of {', '.join(predictable())}, "
        "or register one with kova_rl.filter.predict.predict.register"
    )


def predictable() -> list[str]:
    """The names of the evolutions that :func:`predict` knows."""
    return sorted(kind.__name__ for kind in predict.registry if kind is not object)


def check_predictable(evolution: object) -> None:
    """Raise ``ValueError``, naming what would work, for an evolution that :func:`predict` does not know."""
    if not isinstance(evolution, Evolution) or predict.dispatch(type(evolution)) is predict.dispatch(object):
        raise ValueError(f"evolution must be one of {', '.join(predictable())}, got {evolution!r}")


@predict.register
def _(evolution: FadingMemory, P: Tensor, memory: State, step: int) -> Tensor:
    return _affine(P, scale=1 / (1 - evolution.eta))


@predict.register
def _(evolution: PriorAnchored, P: Tensor, memory: State, step: int) -> Tensor:
    return _affine(P, scale=1 - evolution.eta, shift=evolution.eta)


@predict.register
def _(evolution: RandomWalk, P: Tensor, memory: State, step: int) -> Tensor:
    return _affine(P, shift=evolution.q)


@predict.register
def _(evolution: Stationary, P: Tensor, memory: State, step: int) -> Tensor:
    return _affine(P)


@predict.register
def _(evolution: Leakage, P: Tensor, memory: State, step: int) -> Tensor:
    eta = evolution.leak(memory)
    return _affine(Full().leaked({"0": P[None]}, eta, step)["0"][0] if eta else P)


@predict.register
def _(evolution: Memoryless, P: Tensor, memory: State, step: int) -> Tensor:
    return torch.eye(len(P), dtype=P.dtype, device=P.device).div_(1 - evolution.eta)


@predict.register
def _(evolution: DirectionalForgetting, P: Tensor, memory: State, step: int) -> Tensor:
    return _affine(P)  # it grows in the observed direction only: see inflation()


def _affine(P: Tensor, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """``scale P + shift I``, but for rounding.

    The last digits of a stored P mean nothing, so a step forgets a few of its correlations' and none of
    its variances', which keeps P positive definite (as :func:`kova_rl.filter.step.affine` does).
    """
    rest = 16 * torch.finfo(P.dtype).eps
    own = P.diagonal().clamp(max=1.0).mul_(scale * rest).add_(shift)
    predicted = P * (scale * (1 - rest))
    predicted.diagonal().add_(own)
    return predicted


@singledispatch
def inflation(evolution: Evolution, ratio: float) -> float:
    """By how much P- grows once more along the direction that is observed: ``1/(1 - eta_i)``.

    Args:
        evolution: Only ``DirectionalForgetting`` waits for the observation; for the others it is 1.
        ratio: ``l = h'P h / r``, the variance that the weights explain over the rest.
    """
    return 1.0


@inflation.register
def _(evolution: DirectionalForgetting, ratio: float) -> float:
    eta = min(evolution.eta, ratio / (1 + ratio)) if evolution.bounded else evolution.eta
    return 1 / (1 - eta)
