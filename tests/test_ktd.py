"""KTD is the unscented Kalman filter: closed forms, a filter of loops, and filterpy's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from filterpy.kalman import MerweScaledSigmaPoints, UnscentedKalmanFilter
from torch import nn

from kova_rl import evolution
from kova_rl.baselines import KTD, Equation, Evaluation, Optimality, Sarsa
from tests import members
from tests.ktd_models import Wrapped, q_network, transitions
from tests.oracle import DenseFilter

PRINTED = evolution.FadingMemory(0.01 / 1.01, on_windup="ignore")


FORGETFUL = [*members.EVOLUTIONS, PRINTED, evolution.FadingMemory(0.01 / 1.01)]


# Linear networks: the Kalman filter in closed form.


@pytest.mark.parametrize("kappa", [0.0, 3.0, -2.0])
@pytest.mark.parametrize("kind", FORGETFUL, ids=members.name)
def test_a_linear_network_is_the_kalman_filter(kind: evolution.Evolution, kappa: float) -> None:
    d, gamma, prior, noise = 5, 0.9, 10.0, 0.7
    torch.manual_seed(3)
    module = nn.Linear(d, 1, bias=False).double()
    ktd = KTD(module, Evaluation(), gamma, kappa, prior, noise, kind)
    theta, P0 = module.weight.detach().flatten().clone(), prior * torch.eye(d, dtype=torch.float64)
    dense, memory = DenseFilter(P0, kind), kind.init(theta)
    R = torch.tensor([[noise]], dtype=torch.float64)
    for s, reward, t, done, _, _ in transitions(60, d):
        if isinstance(kind, evolution.VariableLeakage):
            dense.evolution = evolution.Leakage(kind.change(memory).eta)
        h = torch.from_numpy(s if done else s - gamma * t)
        innovation = reward - h @ theta
        theta = theta + dense.step(h[:, None], innovation[None], R)
        kind.observe(memory, dense.nis)
        info = ktd.step(s, reward, t, done)
        assert info.innovation == pytest.approx(float(innovation), abs=1e-10)
        assert info.innovation_variance == pytest.approx(float(h @ dense.predicted @ h) + noise, rel=1e-10)
        torch.testing.assert_close(ktd.mean, theta, rtol=0, atol=1e-10)
        torch.testing.assert_close(module.weight.flatten().detach(), theta, rtol=0, atol=1e-10)
        if not isinstance(kind, evolution.Memoryless):
            torch.testing.assert_close(ktd.covariance, dense.P, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", members.EVOLUTIONS, ids=members.name)
def test_posterior_of_a_linear_network(kind: evolution.Evolution) -> None:
    module = nn.Linear(4, 1).double()
    ktd = KTD(module, Evaluation(), evolution=kind)
    for s, reward, t, done, _, _ in transitions(20, 4):
        ktd.step(s, reward, t, done)
    states = torch.randn(6, 4, dtype=torch.float64)
    phi = torch.cat([states, torch.ones(6, 1, dtype=torch.float64)], 1)
    belief = ktd.posterior(states)
    joint = phi @ ktd.covariance @ phi.T
    torch.testing.assert_close(belief.mean, module(states).squeeze(-1).detach())
    torch.testing.assert_close(belief.std, joint.diagonal().sqrt(), rtol=1e-10, atol=0)
    torch.testing.assert_close(belief.covariance, joint, rtol=1e-9, atol=1e-9)
    assert belief.tracked is not isinstance(kind, evolution.Memoryless)
    assert belief.sample(3).shape == (3, 6)


@pytest.mark.parametrize("sampled", [False, True])
def test_random_walk_chain(sampled: bool) -> None:
    """Seven states, reward 1 off the right end and 0 off the left, gamma .9, features a table.

    With the expected next features it finds the true values; with sampled ones those of the least squared
    Bellman residual, which is KTD's known bias where transitions are random.
    """
    n, gamma, features = 7, 0.9, np.vstack([np.eye(7), np.zeros(7)])  # the last row is outside
    steps = [
        (s, s + move if 0 <= s + move < n else n, float(s + move == n)) for s in range(n) for move in (-1, 1)
    ]
    D = np.array([features[s] - gamma * features[t] for s, t, _ in steps])
    rewards = np.array([reward for _, _, reward in steps])
    pairs = D.reshape(n, 2, n).mean(1), rewards.reshape(n, 2).mean(1)
    truth = np.linalg.lstsq(D, rewards, rcond=None)[0] if sampled else np.linalg.solve(*pairs)
    ktd = KTD(
        nn.Linear(n, 1, bias=False).double(), Evaluation(), gamma, evolution=evolution.Stationary(), noise=0.1
    )
    rng = np.random.default_rng(0)
    for _ in range(600):
        for s in rng.permutation(n):
            s_next, reward = features[steps[2 * s][1]], steps[2 * s][2]
            other, second = features[steps[2 * s + 1][1]], steps[2 * s + 1][2]
            if not sampled:
                s_next, reward = (s_next + other) / 2, (reward + second) / 2
            elif rng.random() < 0.5:
                s_next, reward = other, second
            ktd.step(features[s], reward, s_next, terminated=not s_next.any())
    belief = ktd.posterior(np.eye(n))
    np.testing.assert_allclose(belief.mean, truth, atol=0.05 if sampled else 1e-3)
    if sampled:
        assert np.abs(belief.mean.numpy() - np.linalg.solve(*pairs)).max() > 0.1


def test_deterministic_chain_converges_on_policy() -> None:
    n, gamma = 6, 0.9
    module = nn.Linear(n, 1, bias=False).double()
    ktd = KTD(module, Evaluation(), gamma, evolution=evolution.PriorAnchored(1e-3), start="zeros")
    states = torch.eye(n, dtype=torch.float64)
    for _ in range(500):
        for i in range(n):
            last = i == n - 1
            ktd.step(states[i], float(last), states[(i + 1) % n], terminated=last)
    truth = torch.tensor([gamma ** (n - 1 - i) for i in range(n)], dtype=torch.float64)
    torch.testing.assert_close(ktd.mean, truth, rtol=0, atol=0.01)


# Nonlinear networks: a filter of loops, and filterpy's.


def forward(net: nn.Sequential, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The two layers of the network by hand, with these weights in place of its own."""
    ends = np.cumsum([p.numel() for p in net.parameters()])[:-1]
    W, b, V, c = np.split(theta, ends)
    hidden = net[1](torch.from_numpy(x @ W.reshape(len(b), -1).T + b)).numpy()
    return np.asarray(hidden @ V.reshape(len(c), -1).T + c)


def predicted_reward(
    equation: Equation, net: nn.Sequential, gamma: float, transition: tuple[Any, ...]
) -> Callable[[np.ndarray], float]:
    s, _, t, done, a, b = transition

    def reward(theta: np.ndarray) -> float:
        here, there = forward(net, theta, s), forward(net, theta, t)
        now, then = {
            Evaluation: (here[0], there[0]),
            Sarsa: (here[a % len(here)], there[b % len(here)]),
            Optimality: (here[a % len(here)], there.max()),
        }[type(equation)]
        return float(now if done else now - gamma * then)

    return reward


def naive_step(
    theta: np.ndarray, P: np.ndarray, z: Callable[[np.ndarray], float], r: float, kappa: float, noise: float
) -> tuple[np.ndarray, np.ndarray, float]:
    d = len(theta)
    L = np.linalg.cholesky(P)
    points = [theta]
    points += [theta + math.sqrt(d + kappa) * L[:, j] for j in range(d)]
    points += [theta - math.sqrt(d + kappa) * L[:, j] for j in range(d)]
    weights = [kappa / (d + kappa)] + [1 / (2 * (d + kappa))] * (2 * d)
    values = [z(point) for point in points]
    mean = sum(w * v for w, v in zip(weights, values, strict=True))
    S = max(sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) + noise, 1e-4)
    cross = sum(w * (point - theta) * (v - mean) for w, point, v in zip(weights, points, values, strict=True))
    K = cross / S
    return theta + K * (r - mean), P - S * np.outer(K, K), S


@pytest.mark.parametrize("hidden", [False, True], ids=["fast path", "vmap"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("equation", [Evaluation(), Sarsa(), Optimality()], ids=str)
def test_equals_a_naive_unscented_filter(
    equation: Equation, activation: type[nn.Module], hidden: bool
) -> None:
    gamma, prior, noise, eta = 0.9, 0.5, 0.3, 0.02
    net = q_network(activation, outputs=1 if isinstance(equation, Evaluation) else 3)
    module = copy.deepcopy(net)
    kind = evolution.PriorAnchored(eta)
    ktd = KTD(
        Wrapped(module) if hidden else module, equation, gamma, prior=prior, noise=noise, evolution=kind
    )
    assert bool(ktd._network._layers) is not hidden
    theta = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    P = prior * np.eye(len(theta))
    for transition in transitions(15, 2):
        P = (1 - eta) * P + eta * prior * np.eye(len(theta))
        z = predicted_reward(equation, net, gamma, transition)
        theta, P, S = naive_step(theta, P, z, transition[1], 3.0, noise)
        info = ktd.step(*transition)
        assert info.innovation_variance == pytest.approx(S, rel=1e-9)
        np.testing.assert_allclose(ktd.mean, theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ktd.covariance, P, rtol=0, atol=1e-10)


@pytest.mark.parametrize("equation", [Evaluation(), Sarsa(), Optimality()], ids=str)
def test_equals_filterpy(equation: Equation) -> None:
    gamma, prior, noise, kappa = 0.9, 0.5, 0.3, 3.0
    net = q_network(nn.Tanh, outputs=1 if isinstance(equation, Evaluation) else 3)
    ktd = KTD(
        copy.deepcopy(net), equation, gamma, kappa, prior, noise, evolution.FadingMemory(0.02, "ignore")
    )
    d = len(ktd.mean)
    # alpha = 1 and beta = 0 are the plain weights: lambda is kappa, and the covariance's are the mean's.
    points = MerweScaledSigmaPoints(d, alpha=1.0, beta=0.0, kappa=kappa)
    ukf = UnscentedKalmanFilter(d, 1, dt=1.0, hx=None, fx=lambda x, dt: x, points=points)
    ukf.x, ukf.P, ukf.R, ukf.Q = (
        ktd.mean.numpy().copy(),
        prior * np.eye(d),
        np.eye(1) * noise,
        np.zeros((d, d)),
    )
    for transition in transitions(8, 2):
        ukf.P = ukf.P / 0.98
        ukf.predict()
        ukf.sigmas_f = points.sigma_points(ukf.x, ukf.P)
        z = predicted_reward(equation, net, gamma, transition)
        ukf.update(np.array([transition[1]]), hx=lambda x, z=z: np.array([z(x)]))
        ktd.step(*transition)
        np.testing.assert_allclose(ktd.mean, ukf.x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(ktd.covariance, ukf.P, rtol=0, atol=1e-9)


def test_posterior_is_the_unscented_transform() -> None:
    net = q_network(nn.Tanh)
    ktd = KTD(net, prior=0.5)
    for transition in transitions(10, 2):
        ktd.step(*transition)
    states = torch.randn(5, 2, dtype=torch.float64)
    theta, P, d = ktd.mean.numpy(), ktd.covariance.numpy(), len(ktd.mean)
    L = np.linalg.cholesky(P) * math.sqrt(d + 3)
    points = np.concatenate([theta[None], theta + L.T, theta - L.T])
    weights = np.array([3 / (d + 3)] + [0.5 / (d + 3)] * (2 * d))
    values = np.stack([forward(net, point, states.numpy()) for point in points])
    mean = np.einsum("i,ins->ns", weights, values)
    std = np.sqrt(np.einsum("i,ins->ns", weights, (values - mean) ** 2))
    belief = ktd.posterior(states)
    np.testing.assert_allclose(belief.mean, mean, atol=1e-10)
    np.testing.assert_allclose(belief.std, std, atol=1e-10)
    torch.testing.assert_close(belief.covariance.diagonal().sqrt(), belief.std.flatten())
    actions = torch.tensor([0, 1, 2, 1, 0])
    chosen = ktd.posterior(states, actions)
    torch.testing.assert_close(chosen.mean, belief.mean[torch.arange(5), actions])
    torch.testing.assert_close(chosen.std, belief.std[torch.arange(5), actions])
    assert chosen.sample(2).shape == (2, 5)


@pytest.mark.parametrize("bounded", [True, False])
def test_directional_forgetting_inflates_the_observed_direction(bounded: bool) -> None:
    """As a filter of N = 1 whose jacobian is the statistical linearisation."""
    eta, noise = 0.3, 0.4
    ktd = KTD(
        q_network(nn.Tanh), prior=1.0, noise=noise, evolution=evolution.DirectionalForgetting(eta, bounded)
    )
    plain = KTD(q_network(nn.Tanh), prior=1.0, noise=noise, evolution=evolution.Stationary())
    for transition in transitions(20, 2):
        plain._weights, plain._P = ktd.mean, ktd.covariance
        P = ktd.covariance
        S = plain.step(*transition).innovation_variance
        cross = torch.linalg.svd(P - plain.covariance)
        g = cross.U[:, 0] * (cross.S[0] * S).sqrt()  # K S K' = g g' / S
        h = torch.linalg.solve(P, g)
        explained = float(h @ P @ h)
        l = explained / (S - explained)  # noqa: E741
        eta_i = min(eta, l / (1 + l)) if bounded else eta
        inflated = P + (1 / (1 - eta_i) - 1) * torch.outer(g, g) / explained
        S += float(h @ inflated @ h) - explained
        expected = inflated - torch.outer(inflated @ h, inflated @ h) / S
        assert ktd.step(*transition).innovation_variance == pytest.approx(S, rel=1e-6)
        torch.testing.assert_close(ktd.covariance, expected, rtol=0, atol=1e-7)
