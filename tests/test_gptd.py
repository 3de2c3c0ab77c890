"""GPTD is the posterior of a Gaussian process: both forms against the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kova_rl.baselines.gptd_kernel import Gaussian, KernelGPTD
from kova_rl.baselines.gptd_linear import LinearGPTD
from tests.gptd_models import (
    BOTH,
    Step,
    close,
    differences,
    dot,
    feed,
    noise_covariance,
    quadratic,
    random_steps,
)

Kernel = Callable[[Tensor, Tensor], Tensor]


def rewards_of(steps: list[Step]) -> Tensor:
    return torch.tensor([step.reward for step in steps], dtype=torch.float64)


def dense_linear(
    steps: list[Step], sigma: Tensor, phi: Callable[[Tensor], Tensor], gamma: float, prior: float
) -> tuple[Tensor, Tensor]:
    h = differences(steps, phi, gamma)
    precision = torch.eye(h.shape[1], dtype=torch.float64) / prior + h.T @ torch.linalg.solve(sigma, h)
    covariance = torch.linalg.inv(precision)
    return covariance @ h.T @ torch.linalg.solve(sigma, rewards_of(steps)), covariance


def dense_kernel(
    steps: list[Step], sigma: Tensor, kernel: Kernel, gamma: float, queries: Tensor
) -> tuple[Tensor, Tensor]:
    """The posterior mean and covariance at the queries, with every visited state kept."""
    visited = torch.stack([s.state for s in steps] + [s.next_state for s in steps])
    eye = torch.eye(len(visited), dtype=torch.float64)
    pick = torch.stack(
        [eye[i] - (0.0 if s.done else gamma) * eye[len(steps) + i] for i, s in enumerate(steps)]
    )
    cross = kernel(queries, visited) @ pick.T
    weights = torch.linalg.solve(pick @ kernel(visited, visited) @ pick.T + sigma, cross.T).T
    return weights @ rewards_of(steps), kernel(queries, queries) - weights @ cross.T


def dense_sparse(
    steps: list[Step], sigma: Tensor, kernel: Kernel, gamma: float, queries: Tensor, nu: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with the values projected on the dictionary, a_t as it was when x_t came."""
    points: list[Tensor] = []

    def project(x: Tensor) -> Tensor:
        if points:
            members = torch.stack(points)
            k = kernel(members, x[None])[:, 0]
            a = torch.linalg.solve(kernel(members, members), k)
            if kernel(x[None], x[None])[0, 0] - k @ a <= nu:
                return a
        points.append(x)
        return torch.eye(len(points), dtype=torch.float64)[-1]

    pairs = [(project(s.state), None if s.done else project(s.next_state)) for s in steps]
    h = torch.zeros(len(steps), len(points), dtype=torch.float64)
    for t, (here, there) in enumerate(pairs):
        h[t, : len(here)] += here
        if there is not None:
            h[t, : len(there)] -= gamma * there
    members = torch.stack(points)
    Q = torch.linalg.inv(h @ kernel(members, members) @ h.T + sigma)
    k = kernel(queries, members)
    alpha, C = h.T @ Q @ rewards_of(steps), h.T @ Q @ h
    return k @ alpha, kernel(queries, queries).diagonal() - (k @ C * k).sum(1), members


# against the batch


@BOTH
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("gamma", "prior", "noise"), [(0.9, 2.0, 0.3), (1.0, 100.0, 1e-3), (0.0, 1.0, 1.0)])
def test_linear_is_the_batch_posterior(
    seed: int, gamma: float, prior: float, noise: float, monte_carlo: bool
) -> None:
    steps = random_steps(seed)
    gptd = LinearGPTD(quadratic, gamma, prior, noise, monte_carlo)
    feed(gptd, steps)
    sigma = noise_covariance(steps, gamma, noise, monte_carlo)
    mean, covariance = dense_linear(steps, sigma, quadratic, gamma, prior)
    close(gptd.mean, mean)
    close(gptd.covariance, covariance)
    queries = torch.randn(6, 3, dtype=torch.float64)
    rows = quadratic(queries)
    found_mean, found_std = gptd.value(queries)
    close(found_mean, rows @ mean)
    close(found_std, (rows @ covariance @ rows.T).diagonal().sqrt())
    close(gptd.belief(queries).covariance, rows @ covariance @ rows.T)


def test_whole_episodes_with_coloured_noise_are_regression_on_returns() -> None:
    gamma, phi, returns = 0.8, [], []
    steps = [s._replace(done=s.done or s.cut, cut=False) for s in random_steps(0)]
    steps[-1] = steps[-1]._replace(done=True)
    later = 0.0
    for step in reversed(steps):
        later = step.reward + (0.0 if step.done else gamma * later)
        phi.append(step.state)
        returns.append(later)
    x, y = torch.stack(phi), torch.tensor(returns, dtype=torch.float64)
    covariance = torch.linalg.inv(x.T @ x / 0.5 + torch.eye(3, dtype=torch.float64) / 2.0)
    gptd = LinearGPTD(3, gamma, prior=2.0, noise=0.5, monte_carlo=True)
    feed(gptd, steps)
    close(gptd.mean, covariance @ x.T @ y / 0.5)
    close(gptd.covariance, covariance)


@BOTH
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("gamma", "noise"), [(0.9, 0.3), (1.0, 0.01)])
def test_kernel_without_threshold_is_the_batch_posterior(
    seed: int, gamma: float, noise: float, monte_carlo: bool
) -> None:
    steps, kernel = random_steps(seed), Gaussian(2.0, 1.5)
    steps += [s._replace(reward=s.reward + 1) for s in steps[:4]]  # the same states again
    steps[len(steps) - 5] = steps[len(steps) - 5]._replace(cut=True)
    gptd = KernelGPTD(kernel, gamma, noise, threshold=0.0, monte_carlo=monte_carlo)
    feed(gptd, steps)
    queries = torch.cat([torch.randn(6, 3, dtype=torch.float64), steps[0].state[None]])
    sigma = noise_covariance(steps, gamma, noise, monte_carlo)
    mean, covariance = dense_kernel(steps, sigma, kernel, gamma, queries)
    found_mean, found_std = gptd.value(queries)
    close(found_mean, mean, 1e-8)
    close(found_std.square(), covariance.diagonal(), 1e-8)
    close(gptd.belief(queries).covariance, covariance, 1e-8)


@BOTH
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nu", [0.01, 0.3, 1.0])
def test_a_sparse_dictionary_is_the_batch_posterior_of_the_projected_prior(
    seed: int, nu: float, monte_carlo: bool
) -> None:
    steps, kernel = random_steps(seed, (9, 1, 12, 8), size=2), Gaussian(2.0, 1.5)
    gptd = KernelGPTD(kernel, 0.9, 0.1, nu, monte_carlo)
    feed(gptd, steps)
    queries = torch.randn(8, 2, dtype=torch.float64)
    sigma = noise_covariance(steps, 0.9, 0.1, monte_carlo)
    mean, variance, members = dense_sparse(steps, sigma, kernel, 0.9, queries, nu)
    assert gptd.dictionary is not None
    assert torch.equal(gptd.dictionary, members)
    assert nu < 0.1 or len(gptd) < len(steps)
    found_mean, found_std = gptd.value(queries)
    close(found_mean, mean, 1e-8)
    close(found_std.square(), variance, 1e-8)


def test_kernel_is_engels_recursion_for_coloured_noise() -> None:
    """alpha, C, c, d and s as the thesis has them, for one episode that goes on."""
    steps, kernel, gamma, noise = random_steps(1, (12,), size=2), Gaussian(2.0, 1.5), 0.9, 0.1
    states = torch.stack([s.state for s in steps] + [steps[-1].next_state])
    size = len(states)
    K, eye = kernel(states, states), torch.eye(size, dtype=torch.float64)
    alpha, C, c = torch.zeros(size).double(), torch.zeros(size, size).double(), torch.zeros(size).double()
    d, inverse = 0.0, 0.0
    for t, step in enumerate(steps):
        h = eye[t] - gamma * eye[t + 1]
        dk, carry = K @ h, gamma * noise * inverse
        d = carry * d + step.reward - float(dk @ alpha)
        new = carry * c + h - C @ dk
        s = (1 + gamma**2) * noise + float(dk @ (new + carry * c)) - gamma * noise * carry
        c, inverse = new, 1 / s
        alpha, C = alpha + c * d / s, C + torch.outer(c, c) / s
    gptd = KernelGPTD(kernel, gamma, noise, threshold=0.0, monte_carlo=True)
    feed(gptd, steps)
    queries = torch.randn(5, 2, dtype=torch.float64)
    k = kernel(queries, states)
    mean, std = gptd.value(queries)
    close(mean, k @ alpha, 1e-8)
    close(std.square(), 2.0 - (k @ C * k).sum(1), 1e-8)


@BOTH
def test_a_linear_kernel_is_the_linear_form(monte_carlo: bool) -> None:
    steps = random_steps(2)
    kernel = KernelGPTD(lambda a, b: 2.0 * dot(a, b), 0.9, 0.3, 1e-9, monte_carlo)
    linear = LinearGPTD(3, 0.9, 2.0, 0.3, monte_carlo)
    feed(kernel, steps)
    feed(linear, steps)
    assert len(kernel) == 3
    queries = torch.randn(6, 3, dtype=torch.float64)
    for one, other in zip(kernel.value(queries), linear.value(queries), strict=True):
        close(one, other, 1e-8)
