"""LowRank beside the exact filter, both fed with the same recorded batches."""

from __future__ import annotations

from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.chain import INPUTS, Chain, values
from kova_rl import Kova, covariance, evolution, observation
from kova_rl.filter.change import Leak
from kova_rl.filter.covariance import low_rank
from kova_rl.filter.evidence import DenseJacobian, Evidence, Noise
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State

Batch = tuple[Tensor, Tensor, Tensor]
"""Jacobian (d x N), innovation and noise variances."""
SETTLED = 100
"""Batches before the errors are counted."""


def record(noise: observation.Observation, eta: float, count: int) -> list[Batch]:
    """Policy evaluation on the demo's chain by a 12-32-32-1 critic, in float64."""
    torch.manual_seed(0)
    layers = [nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)]
    critic, chain = nn.Sequential(*layers).double(), Chain(0)
    optimizer = Kova(critic, 1.0, covariance.LowRank(64), evolution.Leakage(eta), noise)
    (memory,) = optimizer.state.values()
    stream = []
    for _ in range(count):
        chain.walk(32)
        x, y = chain.batch(critic)
        with torch.no_grad():
            predictions, jacobian = optimizer._tracker.jacobian(partial(values, critic, x), torch.float64)
        innovation = y - predictions
        variance = noise.covariance(memory["observation"], innovation, {}).clone()
        stream.append((jacobian.dense(), innovation, variance))
        optimizer.step(partial(values, critic, x), y)
    return stream


def exact(stream: list[Batch], eta: float) -> list[Tensor]:
    """The updates of the dense filter, which solves with all of the information matrix."""
    information = torch.eye(len(stream[0][0]), dtype=torch.float64)
    updates = []
    for H, innovation, variance in stream:
        information.mul_(1 - eta).diagonal().add_(eta)
        information.addmm_(H / variance, H.T)
        right = (H @ (innovation / variance))[:, None]
        updates.append(torch.cholesky_solve(right, torch.linalg.cholesky(information))[:, 0])
    return updates


def low(stream: list[Batch], eta: float, rank: int) -> list[Tensor]:
    """The updates of LowRank."""
    structure = covariance.LowRank(rank)
    d = len(stream[0][0])
    state: State = structure.init([Segment(0, 1, d, 0)], stream[0][0], Leak)
    updates = []
    for H, innovation, variance in stream:
        evidence = Evidence(DenseJacobian(H), innovation, Noise(variance))
        update = structure.step(state, Leak(eta), evidence, 1.0)
        update.commit()
        updates.append(update.delta)
    return updates


def _eigenvectors(G: Tensor, lr: float, r: int) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(G).eigenvectors
    return vectors[:, len(G) - r :]


def gain_errors(
    noise: observation.Observation, eta: float, ranks: tuple[int, ...], count: int = 300
) -> dict[str, list[float]]:
    """Median relative error of the update for each rank, as shipped and with exact eigenvectors."""
    stream = record(noise, eta, count)
    truth = exact(stream, eta)[SETTLED:]

    def error(rank: int) -> float:
        found = low(stream, eta, rank)[SETTLED:]
        ratios = [float((a - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True)]
        return float(torch.tensor(ratios).median())

    shipped = [error(rank) for rank in ranks]
    with mock.patch.object(low_rank, "_directions", _eigenvectors):
        optimal = [error(rank) for rank in ranks]
    return {"subspace iteration (shipped)": shipped, "eigendecomposition": optimal}
