"""KTD against a closed-form Kalman filter, against naive unscented filters, and against bad input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from filterpy.kalman import MerweScaledSigmaPoints, UnscentedKalmanFilter
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import CovarianceWindup, Kova, NonFiniteBatch, NotPositiveDefinite, covariance, evolution
from kova_rl.baselines import KTD, Equation, Evaluation, Optimality, Sarsa
from kova_rl.errors import InvalidBatch, StateMismatch
from tests import members
from tests.oracle import DenseFilter

PRINTED = evolution.FadingMemory(0.01 / 1.01, on_windup="ignore")
FORGETFUL = [*members.EVOLUTIONS, PRINTED, evolution.FadingMemory(0.01 / 1.01)]


def transitions(count: int, size: int, seed: int = 0, actions: int = 3) -> list[tuple[Any, ...]]:
    """State, reward, next state, terminated, action, next action; every seventh one ends an episode."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(size=size),
            rng.normal(),
            rng.normal(size=size),
            t % 7 == 6,
            *rng.integers(actions, size=2),
        )
        for t in range(count)
    ]


def q_network(activation: type[nn.Module] = nn.ReLU, seed: int = 0, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, outputs)).double()


class Wrapped(nn.Module):
    """The same network, hidden from the fast path."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


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
    clone = copy.deepcopy(net)
    nn.utils.vector_to_parameters(torch.from_numpy(theta), clone.parameters())
    return np.asarray(clone(torch.from_numpy(x)).detach().numpy())


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


BOUNDED = [
    evolution.PriorAnchored(0.01),
    evolution.Leakage(0.01),
    evolution.DirectionalForgetting(0.1),
    evolution.Stationary(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", BOUNDED, ids=members.name)
def test_bounded_evolutions_stay_below_the_prior(kind: evolution.Evolution, dtype: torch.dtype) -> None:
    ktd = KTD(q_network().to(dtype), prior=10.0, noise=1e-2, evolution=kind)
    for transition in transitions(1_500, 2):
        ktd.step(*transition)
    values = torch.linalg.eigvalsh(ktd.covariance.double())
    assert values[0] > 0
    assert values[-1] <= 10 * (1 + 1e-4)
    assert torch.equal(ktd.covariance, ktd.covariance.T)


# Wind-up.


def stuck() -> tuple[Any, ...]:
    """A transition that excites few directions."""
    return np.array([1.0, 0.0]), 1.0, np.array([1.0, 0.0]), False, 0, 1


def test_windup_raises_resets_or_is_ignored() -> None:
    raising, resetting, ignoring = (
        KTD(q_network(), evolution=evolution.FadingMemory(0.5, how)) for how in ("raise", "reset", "ignore")
    )
    for _ in range(39):
        raising.step(*stuck())
    before = raising.state_dict()
    with pytest.raises(CovarianceWindup, match=r"step 40: .* has wound up"):
        raising.step(*stuck())
    assert same(before, raising.state_dict())
    for _ in range(60):
        resetting.step(*stuck())
    assert resetting.covariance.diagonal().max() < 10 * 2.0**22
    for _ in range(60):
        ignoring.step(*stuck())
    assert ignoring.covariance.diagonal().max() > 10 * 2.0**45


def test_kova_without_the_guard() -> None:
    """``on_windup="ignore"`` is Algorithm 1 as printed, for the optimizer too."""
    torch.manual_seed(0)
    critic, x = nn.Linear(3, 1).double(), torch.zeros(4, 3, dtype=torch.float64)
    optimizer = Kova(
        critic, covariance=covariance.Full(), evolution=evolution.FadingMemory(0.5, on_windup="ignore")
    )
    for _ in range(60):  # only the bias is excited
        info = optimizer.step(lambda: critic(x).squeeze(-1), torch.ones(4, dtype=torch.float64))
    assert info.variance_max == pytest.approx(2.0**60, rel=1e-6)


def test_ignored_windup_ends_in_a_typed_error_that_changes_nothing() -> None:
    ktd = KTD(q_network().float(), evolution=evolution.FadingMemory(0.5, "ignore"))
    before = ktd.state_dict()

    def run() -> None:
        for _ in range(400):
            before.update(ktd.state_dict())
            ktd.step(*stuck())

    with pytest.raises((NotPositiveDefinite, NonFiniteBatch), match=r"step \d+: .*Nothing was changed"):
        run()
    assert same(before, ktd.state_dict())
    assert torch.equal(before["weights"], flat(ktd))


def test_lost_positive_definiteness() -> None:
    ktd = KTD(q_network())
    ktd._P[0, 0] = -1.0
    before = ktd.state_dict()
    ktd.evolution = evolution.Stationary()
    with pytest.raises(NotPositiveDefinite, match="step 1: the covariance is not positive definite"):
        ktd.step(*stuck())
    with pytest.raises(NotPositiveDefinite):
        ktd.posterior(np.zeros((1, 2)))
    assert same(before, ktd.state_dict())


# Start, counts, saving.


def flat(ktd: KTD) -> Tensor:
    return nn.utils.parameters_to_vector(ktd._network.parameters).detach().clone()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_start_from_zeros_moves_only_the_last_biases() -> None:
    """All weights 0: a sigma point moves one weight alone, so the product of two layers stays 0."""
    net = q_network()
    ktd = KTD(net, start="zeros")
    assert not ktd.mean.any()
    assert not flat(ktd).any()
    for transition in transitions(50, 2):
        ktd.step(*transition)
    assert not ktd.mean[:-3].any()
    assert ktd.mean[-3:].all()
    grown = (1.01**50) * 10 * torch.ones(len(ktd.mean) - 3, dtype=torch.float64)
    torch.testing.assert_close(ktd.covariance.diagonal()[:-3], grown)


def test_start_from_the_network_keeps_its_weights() -> None:
    net = q_network()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    assert torch.equal(KTD(net).mean, before)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()).detach(), before)


def test_counts_forward_passes() -> None:
    ktd = KTD(q_network())
    d = len(ktd.mean)
    for t, transition in enumerate(transitions(8, 2), 1):
        ktd.step(*transition)
        assert ktd.forward_passes == t * 2 * (2 * d + 1)
    ktd.posterior(np.zeros((3, 2)))
    assert ktd.forward_passes == 8 * 2 * (2 * d + 1)
    assert ktd.steps == 8


@pytest.mark.parametrize("kind", members.EVOLUTIONS, ids=members.name)
def test_resumes_bit_for_bit(kind: evolution.Evolution, tmp_path: Any) -> None:
    one = KTD(q_network(), evolution=kind, prior=0.5)
    for transition in transitions(15, 2):
        one.step(*transition)
    torch.save(one.state_dict(), tmp_path / "ktd.pt")
    other = KTD(q_network(seed=9), evolution=kind, prior=0.5)
    other.load_state_dict(torch.load(tmp_path / "ktd.pt", weights_only=True))
    assert same(one.state_dict(), other.state_dict())
    assert torch.equal(flat(one), flat(other))
    for transition in transitions(15, 2, seed=1):
        assert one.step(*transition) == other.step(*transition)
    assert same(one.state_dict(), other.state_dict())
    assert torch.equal(flat(one), flat(other))


def test_saved_state_does_not_follow_the_filter() -> None:
    ktd = KTD(q_network())
    saved = ktd.state_dict()
    kept = copy.deepcopy(saved)
    ktd.step(*stuck())
    assert same(saved, kept)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: KTD(q_network(outputs=2)).state_dict(), "the state dict is of"),
        (lambda: KTD(q_network(), prior=1.0).state_dict(), "the state dict is of"),
        (
            lambda: KTD(q_network(), dtype=torch.float32).state_dict(),
            "weights: the state dict has torch.float32",
        ),
        (lambda: KTD(q_network(), evolution=evolution.VariableLeakage()).state_dict(), "remembered"),
        (dict, "not a state dict of KTD"),
    ],
)
def test_state_of_another_filter_loads_nothing(other: Callable[[], dict[str, Any]], message: str) -> None:
    ktd = KTD(q_network())
    before = ktd.state_dict()
    with pytest.raises(StateMismatch, match=message):
        ktd.load_state_dict(other())
    assert same(before, ktd.state_dict())


# Bad input.


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"state": np.array([math.nan, 0.0])}, NonFiniteBatch, "state or next_state is not finite"),
        ({"next_state": np.array([math.inf, 0.0])}, NonFiniteBatch, "state or next_state is not finite"),
        ({"state": np.array([1e300, 0.0])}, NonFiniteBatch, "predict no finite reward"),
        ({"reward": math.nan}, NonFiniteBatch, "the reward is nan"),
        ({"reward": torch.tensor(math.inf)}, NonFiniteBatch, "the reward is inf"),
        ({"reward": np.zeros(2)}, InvalidBatch, "reward must be one number"),
        ({"state": np.zeros(3)}, InvalidBatch, "of one shape"),
        ({"state": np.zeros(3), "next_state": np.zeros(3)}, InvalidBatch, "observations of length 2"),
        ({"state": np.zeros((1, 2)), "next_state": np.zeros((1, 2))}, InvalidBatch, "length 2"),
        ({"state": 1.0, "next_state": 1.0}, InvalidBatch, "without a batch dimension"),
        ({"action": None}, InvalidBatch, r"action must be a whole number in \[0, 3\), got None"),
        ({"action": 3}, InvalidBatch, "action must be"),
        ({"action": -1}, InvalidBatch, "action must be"),
        ({"action": 0.5}, InvalidBatch, "action must be"),
        ({"next_action": None}, InvalidBatch, "next_action must be"),
    ],
)
def test_bad_transitions_change_nothing(change: dict[str, Any], error: type[Exception], message: str) -> None:
    ktd = KTD(q_network(), Sarsa())
    good = {
        "state": np.ones(2),
        "reward": 1.0,
        "next_state": np.ones(2),
        "terminated": False,
        "action": 0,
        "next_action": 1,
    }
    ktd.step(**good)
    before, weights = ktd.state_dict(), flat(ktd)
    with pytest.raises(error, match=message):
        ktd.step(**(good | change))
    assert issubclass(error, ValueError)
    assert same(before, ktd.state_dict())
    assert torch.equal(weights, flat(ktd))


def test_evaluation_needs_one_output() -> None:
    with pytest.raises(InvalidBatch, match="one output"):
        KTD(q_network(), Evaluation()).step(*stuck())


def test_sarsa_needs_no_next_action_at_the_end() -> None:
    KTD(q_network(), Sarsa()).step(np.ones(2), 1.0, np.ones(2), True, action=np.int64(1))


@pytest.mark.parametrize(
    ("states", "actions"),
    [
        (np.zeros(2), None),
        (np.full((1, 2), math.nan), None),
        (np.zeros((2, 2)), [0]),
        (np.zeros((2, 2)), [0, 3]),
        (np.zeros((2, 2)), [0.0, 1.0]),
    ],
)
def test_bad_questions(states: Any, actions: Any) -> None:
    with pytest.raises(InvalidBatch):
        KTD(q_network()).posterior(states, actions)


class Scalar(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_a_module_must_return_rows() -> None:
    with pytest.raises(InvalidBatch, match="one row of outputs"):
        KTD(Scalar(2, 1).double(), Evaluation()).step(*stuck())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"module": "net"}, "module must be a torch.nn.Module, got str"),
        ({"module": nn.ReLU()}, "no trainable parameters"),
        ({"equation": "sarsa"}, "equation must be"),
        ({"equation": Sarsa}, "equation must be"),
        ({"gamma": 1.5}, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"gamma": "1"}, "gamma must be"),
        ({"kappa": -23.0 - 4.0}, "kappa must be a number above -d = -27, got -27.0"),
        ({"kappa": math.nan}, "kappa must be"),
        ({"prior": 0.0}, "prior must be a number above 0"),
        ({"noise": -1.0}, "noise must be a number above 0"),
        ({"evolution": "fading"}, "evolution must be one of kova_rl.evolution's objects, got 'fading'"),
        ({"evolution": evolution.Stationary}, "evolution must be one of kova_rl.evolution's objects"),
        ({"start": "zero"}, "start must be one of 'network', 'zeros', got 'zero'"),
        ({"dtype": torch.float16}, "dtype must be"),
    ],
)
def test_wrong_settings_raise_at_construction(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KTD(**({"module": q_network()} | wrong))


# Shapes and dtypes.


@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(1, 4),
    width=st.integers(1, 4),
    actions=st.integers(1, 3),
    n=st.integers(1, 4),
    bias=st.booleans(),
    own=st.sampled_from([torch.float32, torch.float64]),
    kept=st.sampled_from([None, torch.float32, torch.float64]),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.ELU]),
)
def test_shapes_and_dtypes(
    inputs: int,
    width: int,
    actions: int,
    n: int,
    bias: bool,
    own: torch.dtype,
    kept: torch.dtype | None,
    activation: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, width, bias), activation(), nn.Linear(width, actions, bias)).to(own)
    ktd, hidden = KTD(net, dtype=kept), KTD(Wrapped(copy.deepcopy(net)), dtype=kept)
    tolerance = 1e-10 if ktd.mean.dtype == torch.float64 else 1e-2
    for transition in transitions(4, inputs, actions=actions):
        info, other = ktd.step(*transition), hidden.step(*transition)
        assert info.innovation_variance >= 1.0 - 1e-6
        assert other.innovation == pytest.approx(info.innovation, rel=tolerance, abs=tolerance)
    assert ktd.covariance.dtype == ktd.mean.dtype == (kept or own)
    assert all(p.dtype == own for p in net.parameters())
    assert torch.equal(flat(ktd), ktd.mean.to(own))
    belief = ktd.posterior(torch.randn(n, inputs))
    assert belief.mean.shape == belief.std.shape == ((n,) if actions == 1 else (n, actions))
    assert belief.std.dtype == (kept or own)
    assert belief.covariance.shape == (n * actions, n * actions)
    assert ktd.posterior(torch.randn(n, inputs), [actions - 1] * n).mean.shape == (n,)


def test_other_modules_take_the_general_path() -> None:
    """Frozen layers, buffers and convolutions."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 3)
    ).eval()
    net[0].bias.requires_grad_(False)
    frozen = net[0].bias.clone()
    ktd = KTD(net, dtype=torch.float64)
    for s, reward, t, done, a, b in transitions(5, 4):
        ktd.step(s[None], reward, t[None], done, a, b)
    assert torch.equal(net[0].bias, frozen)
    assert ktd.posterior(torch.randn(2, 1, 4)).mean.shape == (2, 3)
    assert len(ktd.mean) == sum(p.numel() for p in net.parameters()) - 2
