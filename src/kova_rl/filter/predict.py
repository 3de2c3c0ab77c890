r"""The prediction ``P -> P-`` alone, for a filter that needs P- before it observes.

Kova's filter folds the prediction into the update (:mod:`kova_rl.filter.step`). An unscented filter
draws its sigma points from P-, so it needs the matrix. Coordinates are whitened, ``P_0 = I``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import NotPositiveDefinite
from kova_rl.filter.change import Change, Directional, Leak
from kova_rl.filter.covariance.parts.matrices import forgotten


def predict(change: Change, P: Tensor, step: int) -> Tensor:
    """P- as a new d x d matrix; a ``Directional`` change waits for the observation, see :func:`inflation`."""
    if isinstance(change, Leak) and change.eta > 0.0:
        P = _leaked(P, change.eta, step)
    kept, own = forgotten(P.diagonal(), *change.affine)
    predicted = P * kept
    predicted.diagonal().add_(own)
    return predicted


def inflation(change: Change, ratio: float) -> float:
    """By how much P- grows once more along the direction that is observed: ``1/(1 - eta_i)``.

    Args:
        change: Only a ``Directional`` one waits for the observation; for the others it is 1.
        ratio: ``l = h'P h / r``, the variance that the weights explain over the rest.
    """
    if not isinstance(change, Directional):
        return 1.0
    eta = min(change.eta, ratio / (1 + ratio)) if change.bounded else change.eta
    return 1 / (1 - eta)


def _leaked(P: Tensor, eta: float, step: int) -> Tensor:
    """``P ((1-eta) I + eta P)^-1``, which is ``P-^-1 = (1-eta) P^-1 + eta I``."""
    C = P * eta
    C.diagonal().add_(1 - eta)
    lower, failed = torch.linalg.cholesky_ex(C)
    if failed.item():
        raise NotPositiveDefinite(
            f"step {step}: a covariance of size {len(P)} has lost positive definiteness. Nothing was "
            "changed. Use dtype=torch.float64."
        )
    leaked = torch.cholesky_solve(P, lower)
    return leaked.add(leaked.T).mul_(0.5)
