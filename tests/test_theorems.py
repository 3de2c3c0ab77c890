"""The paper's theorems, in a form that can be tested."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from kova_rl import Kova, covariance, evolution, observation
from tests import members
from tests.oracle import flat, jacobian


def predictions(module: nn.Module, states: Tensor) -> Tensor:
    return module(states).squeeze(-1)


@pytest.mark.parametrize("structure", [covariance.Full(0.5), covariance.LowRank(100, 0.5)], ids=members.name)
def test_theorem_1_the_update_minimises_the_regularised_objective(structure: covariance.Covariance) -> None:
    model = members.critic()
    kind, eta = evolution.Leakage(0.1), 0.1
    optimizer = Kova(model, 1.0, structure, kind, observation.PerSample())
    d = len(flat(model))
    information = 2.0 * torch.eye(d).double()  # P_0^-1
    for _ in range(3):
        x, y, r = torch.randn(8, 3).double(), torch.randn(8).double(), torch.rand(8).double() + 0.5
        before, H = flat(model), jacobian(model, lambda x=x: predictions(model, x))
        innovation = y - predictions(model, x).detach()
        predicted = (1 - eta) * information + eta * 2.0 * torch.eye(d).double()
        optimizer.step(lambda x=x: predictions(model, x), y, variance=r)

        step = (flat(model) - before).requires_grad_()
        residual = innovation - H.T @ step
        objective = 0.5 * residual @ (residual / r) + 0.5 * step @ predicted @ step
        (gradient,) = torch.autograd.grad(objective, step)
        assert gradient.abs().max() < 1e-9  # stationary, and the objective is strictly convex
        information = predicted + H @ (H / r).T


def test_corollary_1_batch_size_noise_and_a_small_prior_give_the_gradient_step() -> None:
    x, y = torch.randn(16, 3).double(), torch.randn(16).double()
    errors = []
    for c in (1e-2, 1e-3, 1e-4):
        model = members.critic()
        loss = 0.5 * (y - predictions(model, x)).square().mean()  # 1/(2N) sum delta^2
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        innovation = (y - predictions(model, x)).detach()
        noise = observation.BatchSize().covariance({}, innovation, {})
        assert float(0.5 * innovation @ (innovation / noise)) == pytest.approx(loss.item(), rel=1e-12)
        before = flat(model)
        optimizer = Kova(model, 1.0, covariance.Full(c), evolution.Stationary(), observation.BatchSize())
        optimizer.step(lambda model=model: predictions(model, x), y)
        errors.append(float((flat(model) - before + c * gradient).norm()))
    # -c grad L + O(c^2): a tenth of c leaves a hundredth of the error.
    for larger, smaller in itertools.pairwise(errors):
        assert 70 < larger / smaller < 130


def kl(mean: Tensor, variance: Tensor) -> Tensor:
    """KL(N(m1, R) || N(m2, R)) for a difference of means and a diagonal R."""
    return 0.5 * (mean.square() / variance).sum()


def test_theorem_2_is_exact_for_a_linear_model() -> None:
    """1/2 D'P^-1 D = sum of KL over the past batches + 1/2 D'P_0^-1 D."""
    model, prior = nn.Linear(4, 1).double(), 0.8
    optimizer = Kova(model, 1.0, covariance.Full(prior), evolution.Stationary(), observation.PerSample())
    seen = []
    for n in (3, 5, 2):
        x, y, r = torch.randn(n, 4).double(), torch.randn(n).double(), torch.rand(n).double() + 0.3
        optimizer.step(lambda x=x: predictions(model, x), y, variance=r)
        seen.append((torch.cat([x, torch.ones(n, 1)], 1), r))
    P = optimizer.posterior(lambda: torch.cat([p.flatten() for p in model.parameters()])).covariance
    D = torch.randn(5).double()
    left = 0.5 * D @ torch.linalg.inv(P) @ D
    right = sum(kl(features @ D, r) for features, r in seen) + 0.5 * D @ D / prior
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


def test_theorem_2_for_a_network_is_off_by_the_cube_of_the_distance() -> None:
    model, prior = members.critic(), 0.8
    optimizer = Kova(model, 1.0, covariance.Full(prior), evolution.Stationary(), observation.PerSample())
    seen = []
    for n in (3, 5, 4):
        x, r = torch.randn(n, 3).double(), torch.rand(n).double() + 0.3
        seen.append((copy.deepcopy(model), x, r))  # the weights at which that batch was linearised
        y = predictions(model, x).detach() + 0.5 * torch.randn(n).double()
        optimizer.step(lambda x=x: predictions(model, x), y, variance=r)
    P = optimizer.posterior(lambda: torch.cat([p.flatten() for p in model.parameters()])).covariance
    direction = torch.randn(len(P)).double()
    direction /= direction.norm()

    def gap(distance: float) -> float:
        D = distance * direction
        divergence = torch.zeros(()).double()
        for then, x, r in seen:
            moved = copy.deepcopy(then)
            nn.utils.vector_to_parameters(flat(then) + D, moved.parameters())
            divergence += kl((predictions(moved, x) - predictions(then, x)).detach(), r)
        left = 0.5 * D @ torch.linalg.inv(P) @ D
        return abs(float(left - divergence - 0.5 * D @ D / prior))

    # An eighth of the gap for half of the distance.
    assert 7.0 < gap(2e-2) / gap(1e-2) < 9.0
    assert 7.5 < gap(1e-2) / gap(5e-3) < 8.5
