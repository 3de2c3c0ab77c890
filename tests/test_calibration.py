"""Calibrated: the error bars mean what they say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from kova_rl import Belief, Kova, calibration, covariance, evolution, observation
from tests import members


def linear_stream(
    structure: covariance.Covariance, seed: int, variance: float = 0.3
) -> tuple[Belief, Tensor]:
    """A truth drawn from the prior, a few noisy batches, and the belief at new states."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    model = nn.Linear(3, 1).double()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    truth = start + draw(4)
    optimizer = Kova(model, 1.0, structure, evolution.Stationary(), observation.PerSample())

    def true_values(x: Tensor) -> Tensor:
        return x @ truth[:3] + truth[3]

    for n in (2, 3):
        x = draw(n, 3)
        y = true_values(x) + math.sqrt(variance) * draw(n)
        optimizer.step(lambda x=x: model(x).squeeze(-1), y, variance=torch.full((n,), variance))
    x = draw(1, 3)
    return optimizer.posterior(lambda: model(x).squeeze(-1)), true_values(x)


@pytest.mark.parametrize("structure", [covariance.Full(), covariance.LowRank(4)], ids=members.name)
def test_intervals_cover_what_they_promise(structure: covariance.Covariance) -> None:
    found = calibration(linear_stream(structure, seed) for seed in range(1_000))
    assert 0.93 <= found.coverage[0.95] <= 0.97
    assert 0.77 <= found.coverage[0.8] <= 0.83
    assert 0.46 <= found.coverage[0.5] <= 0.54
    assert 0.9 <= found.nees <= 1.1
    assert found.count == 1_000


@pytest.mark.parametrize("structure", [covariance.Full(), covariance.LowRank(32)], ids=members.name)
@pytest.mark.parametrize("variance", [4.0, 0.01])
def test_adaptive_learns_the_noise(structure: covariance.Covariance, variance: float) -> None:
    model = nn.Linear(5, 1).double()
    truth = torch.randn(6).double()
    noise = observation.Adaptive()
    optimizer = Kova(model, 1.0, structure, evolution.Stationary(), noise)
    nis, learned = [], []
    for _ in range(2_000):
        x = torch.randn(16, 5).double()
        y = x @ truth[:5] + truth[5] + math.sqrt(variance) * torch.randn(16).double()
        nis.append(optimizer.step(lambda x=x: model(x).squeeze(-1), y).nis)
        (memory,) = optimizer.state.values()
        learned.append(float(noise.covariance(memory["observation"], torch.zeros_like(y), {})[0]))
    assert sum(learned[-100:]) / 100 == pytest.approx(variance, rel=0.1)
    assert 0.9 <= sum(nis[-1_000:]) / 1_000 <= 1.1


@pytest.mark.parametrize("width", [64, 256])
def test_a_prior_far_wider_than_the_targets_is_not_taken_for_noise_below_zero(width: int) -> None:
    """Values are expected to vary by ten times as much as they do, and the noise is 1 all the time."""
    torch.manual_seed(0)
    layers = nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    model = nn.Sequential(*layers)
    optimizer, noise = Kova(model), observation.Adaptive()
    nis, learned = [], []
    for _ in range(120):
        x = torch.randn(64, 8)
        y = torch.sin(2 * x[:, 0]) + torch.randn(64)
        nis.append(optimizer.step(lambda x=x: model(x).squeeze(-1), y).nis)
        (memory,) = optimizer.state.values()
        learned.append(float(noise.covariance(memory["observation"], torch.zeros_like(y), {})[0]))
    assert min(learned) > 0.1  # it was 0.001, the floor
    assert max(learned) < 2.0
    assert sum(nis[40:]) / 80 < 2.0
    x = torch.randn(500, 8)
    belief = optimizer.posterior(lambda: model(x).squeeze(-1))
    assert ((belief.mean - torch.sin(2 * x[:, 0])) / belief.std).square().mean() < 1.5


UNIT_FREE = [noise for noise in members.OBSERVATIONS if noise.unit_free]


@pytest.mark.parametrize("noise", UNIT_FREE, ids=members.name)
@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
def test_rewards_a_thousand_times_larger_have_error_bars_a_thousand_times_larger(
    structure: covariance.Covariance, noise: observation.Observation
) -> None:
    def std(unit: float) -> Tensor:
        torch.manual_seed(1)
        model = nn.Linear(3, 1).double()
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = Kova(model, 1.0, structure, evolution.Stationary(), noise)
        for _ in range(30):
            x = torch.randn(8, 3).double()
            y = unit * (x.sum(1) + 0.1 * torch.randn(8).double())
            optimizer.step(lambda x=x: model(x).squeeze(-1), y, **members.noise_inputs(noise, x))
        return optimizer.posterior(lambda: model(torch.eye(3).double()).squeeze(-1)).std

    torch.testing.assert_close(std(1000.0), 1000.0 * std(1.0), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("c", [0.5, 1.0, 1.5, 3.0])
def test_robusts_scale_is_that_of_the_noise_without_its_outliers(c: float) -> None:
    noise = observation.Robust(c)
    memory = noise.init(torch.zeros(0))
    noise.observe(memory, torch.zeros(8), torch.zeros(8))  # a first batch without any innovation
    for t in range(3_000):
        innovation = (2.0 if t < 1_500 else 0.5) * torch.randn(16)
        if t % 2:
            innovation[0] = 1e3
        noise.observe(memory, innovation, torch.zeros(16))
        if t == 1_499:
            assert 2.0 < float(memory["variance"].sqrt()) < 2.6
    assert 0.5 < float(memory["variance"].sqrt()) < 0.65


@pytest.mark.parametrize("structure", [covariance.LowRank(), covariance.NeuronBlocks()], ids=members.name)
def test_a_function_that_changes_is_not_taken_for_noise(structure: covariance.Covariance) -> None:
    """Targets a hundred times larger: the critic follows, and knows the noise again."""
    critic, generator = members.critic(4, 16, torch.float32), torch.Generator().manual_seed(0)
    optimizer = Kova(critic, covariance=structure, evolution=evolution.Leakage(0.001))
    for t in range(1_500):
        x = torch.randn(64, 4, generator=generator)
        scale, truth = (1.0 if t < 500 else 100.0), x[:, 0].sin() + 0.5 * x[:, 1] * x[:, 2]
        y = scale * (truth + 0.1 * torch.randn(64, generator=generator))
        optimizer.step(lambda x=x: critic(x).squeeze(-1), y)
    error = (critic(x).squeeze(-1).detach() / scale - truth).square().mean() / truth.square().mean()
    assert error < 0.3  # 0.8 if it is taken for noise
    (memory,) = optimizer.state.values()
    assert 50 < float(memory["observation"]["variance"]) < 2_000  # 100; all of it is 7,000


def test_noise_that_grows_is_not_taken_for_a_change() -> None:
    critic, generator = members.critic(4, 16, torch.float32), torch.Generator().manual_seed(0)
    optimizer = Kova(critic)
    for t in range(1_200):
        x = torch.randn(64, 4, generator=generator)
        y = x[:, 0].sin() + (0.1 if t < 600 else 3.0) * torch.randn(64, generator=generator)
        optimizer.step(lambda x=x: critic(x).squeeze(-1), y)
    error = (critic(x).squeeze(-1).detach() - x[:, 0].sin()).square().mean()
    assert error < 0.02
    (memory,) = optimizer.state.values()
    assert 7 < float(memory["observation"]["variance"]) < 11


def test_robust_protects_a_learned_noise() -> None:
    model, noise = nn.Linear(3, 1).double(), observation.Robust(3.0, base=observation.Adaptive())
    optimizer = Kova(model, 1.0, covariance.Full(), evolution.Stationary(), noise)
    for _ in range(2_000):
        x = torch.randn(32, 3).double()
        y = x.sum(1) + 0.1 * torch.randn(32).double()
        y[torch.rand(32) < 0.02] += 100.0
        optimizer.step(lambda x=x: model(x).squeeze(-1), y)
    (memory,) = optimizer.state.values()
    assert 0.005 < float(memory["observation"]["base"]["variance"]) < 0.05
    torch.testing.assert_close(model.weight, torch.ones(1, 3).double(), atol=0.02, rtol=0)


def test_uncertainty_falls_where_there_is_data_and_not_elsewhere() -> None:
    model = members.critic(inputs=1, width=32, dtype=torch.float32)
    optimizer = Kova(model, covariance=covariance.LowRank(64), evolution=evolution.Leakage(1e-3))
    prior = optimizer.posterior(lambda: model(torch.tensor([[0.0], [4.0]])).squeeze(-1))
    for _ in range(300):
        x = torch.rand(32, 1) * 2 - 1
        optimizer.step(lambda x=x: model(x).squeeze(-1), torch.sin(3 * x[:, 0]))
    near, far = optimizer.posterior(lambda: model(torch.tensor([[0.0], [4.0]])).squeeze(-1)).std
    assert near < 0.3 * far
    assert near < 0.1 * prior.std[0]


@pytest.mark.parametrize("structure", members.STRUCTURES, ids=members.name)
def test_draws_have_the_posteriors_mean_and_covariance(structure: covariance.Covariance) -> None:
    model = nn.Linear(4, 1).double()
    optimizer = Kova(model, 1.0, structure, evolution.Stationary())
    x = torch.randn(12, 4).double()
    for _ in range(5):
        optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
    before = [p.detach().clone() for p in model.parameters()]
    belief = optimizer.posterior(lambda: model(x[:3]).squeeze(-1))
    generator, draws = torch.Generator().manual_seed(0), []
    for _ in range(4_000):
        with optimizer.sampled(generator):
            draws.append(model(x[:3]).squeeze(-1).detach())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    found = torch.stack(draws)
    assert ((found.mean(0) - belief.mean) / belief.std).abs().max() < 4 / math.sqrt(4_000)
    scale = belief.std[:, None] * belief.std
    assert ((found.T.cov() - belief.covariance) / scale).abs().max() < 0.1
    torch.testing.assert_close(belief.covariance.diagonal().sqrt(), belief.std)


def test_the_belief_reads_like_a_distribution() -> None:
    covariance_ = torch.tensor([[4.0, 1.0], [1.0, 1.0]])
    belief = Belief.from_covariance(torch.tensor([1.0, -1.0]), covariance_)
    low, high = belief.interval(0.95)
    torch.testing.assert_close(high - low, 2 * 1.959964 * torch.tensor([2.0, 1.0]))
    draws = belief.sample(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.T.cov(), covariance_, rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match="level"):
        belief.interval(1.0)


def test_calibration_against_hand_computed_numbers() -> None:
    belief = Belief.from_covariance(torch.zeros(2), torch.diag(torch.tensor([1.0, 4.0])))
    found = calibration([(belief, torch.tensor([1.0, -6.0]))])
    assert found.coverage == {0.5: 0.0, 0.8: 0.5, 0.95: 0.5}
    assert found.nees == pytest.approx((1 + 9) / 2)
    expected = (0.5 * (1 + 9) + math.log(2)) / 2 + 0.5 * math.log(2 * math.pi)
    assert found.nll == pytest.approx(expected)
    assert "50.0% in 80%" in str(found)
    with pytest.raises(ValueError, match="shape"):
        calibration([(belief, torch.zeros(3))])
    with pytest.raises(ValueError, match="at least one"):
        calibration([])


def test_later_updates_do_not_change_an_earlier_belief() -> None:
    for structure in members.STRUCTURES:
        model = members.critic()
        optimizer = Kova(model, covariance=structure, evolution=evolution.Stationary())
        x = torch.randn(4, 3).double()
        optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])  # noqa: B023 - called at once
        belief = optimizer.posterior(lambda: model(x).squeeze(-1))  # noqa: B023
        mean, std, joint = belief.mean.clone(), belief.std.clone(), belief.covariance.clone()
        optimizer.step(lambda: model(x).squeeze(-1), -x[:, 0])  # noqa: B023
        assert torch.equal(belief.mean, mean)
        assert torch.equal(belief.std, std)
        assert torch.equal(belief.covariance, joint)
