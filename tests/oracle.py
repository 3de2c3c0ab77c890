"""A dense float64 filter, written as naively as the equations. For tests only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kova_rl import evolution as evo

Predict = Callable[[Tensor], Tensor]


def inverse(matrix: Tensor) -> Tensor:
    return torch.linalg.inv(matrix)


def predictor(evolution: evo.Evolution, P0: Tensor) -> Predict:
    """P- as a function of P, for the evolutions that do not look at the batch."""
    match evolution:
        case evo.Leakage(eta=eta):
            return lambda P: inverse((1 - eta) * inverse(P) + eta * inverse(P0))
        case evo.PriorAnchored(eta=eta):
            return lambda P: (1 - eta) * P + eta * P0
        case evo.FadingMemory(eta=eta):
            return lambda P: P / (1 - eta)
        case evo.RandomWalk(q=q):
            return lambda P: P + q * P0
        case evo.Stationary():
            return lambda P: P
        case evo.Memoryless(eta=eta):
            return lambda P: P0 / (1 - eta)
    raise NotImplementedError(evolution)


def directional(P: Tensor, H: Tensor, R: Tensor, lr: float, eta: float, bounded: bool) -> Tensor:
    """P- of DirectionalForgetting, direction by direction."""
    L = torch.linalg.cholesky(R)
    A = H @ inverse(L).T
    values, vectors = torch.linalg.eigh(A.T @ P @ A)
    out = P.clone()
    for value, vector in zip(values, vectors.T, strict=True):
        if value < 1e-12 * values[-1]:
            continue
        u = P @ A @ vector
        eta_i = min(eta, float(lr * value / (1 + value))) if bounded else eta
        out += (1 / (1 - eta_i) - 1) * torch.outer(u, u) / value
    return out


class DenseFilter:
    """Algorithm 1, with any evolution and an optional mask that is applied after each update."""

    def __init__(self, P0: Tensor, evolution: evo.Evolution, mask: Tensor | None = None) -> None:
        self.P0, self.P, self.evolution, self.mask = P0, P0.clone(), evolution, mask

    def step(self, H: Tensor, innovation: Tensor, R: Tensor, lr: float = 1.0) -> Tensor:
        """The change of the weights; H is d x N, R is N x N."""
        if isinstance(self.evolution, evo.DirectionalForgetting):
            P = directional(self.P, H, R, lr, self.evolution.eta, self.evolution.bounded)
        else:
            P = predictor(self.evolution, self.P0)(self.P)
        S = H.T @ P @ H + R
        K = P @ H @ inverse(S)
        self.nis = float(innovation @ inverse(S) @ innovation) / len(innovation)
        self.predicted = P
        self.P = P - lr * K @ S @ K.T
        if self.mask is not None:
            self.P = self.P * self.mask
        return lr * K @ innovation


def jacobian(module: torch.nn.Module, predictions: Callable[[], Tensor]) -> Tensor:
    """d x N by one autograd call a sample, parameters in the order of ``module.parameters()``."""
    tensors = [p for p in module.parameters() if p.requires_grad]
    columns = []
    for value in predictions():
        grads = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(tensors, grads, strict=True)]
        columns.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(columns, 1)


def flat(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
