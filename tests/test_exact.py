"""Right: against closed forms, a naive dense filter, and an independent library."""

from __future__ import annotations

import copy
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from filterpy.kalman import KalmanFilter
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import Kova, NonFiniteBatch, covariance, evolution, observation
from kova_rl.filter.covariance import low_rank
from tests import members
from tests.oracle import DenseFilter, flat, jacobian, predictor

DENSE = [s for s in members.STRUCTURES if isinstance(s, covariance.BlockDiagonal)]
FIXED = [e for e in members.EVOLUTIONS if not isinstance(e, evolution.VariableLeakage)]


def predictions(module: nn.Module, states: Tensor) -> Tensor:
    return module(states).squeeze(-1)


def mask_of(structure: covariance.Covariance, module: nn.Module) -> Tensor:
    """1 where two weights share a block, in the order of ``module.parameters()``."""
    labels: list[tuple[object, ...]] = []
    for layer, owner in enumerate(m for m in module.modules() if isinstance(m, nn.Linear)):
        for p in owner.parameters():
            for index in torch.arange(p.numel()).tolist():
                row = index // (p.numel() // len(p))
                match structure:
                    case covariance.Full():
                        labels.append(("all",))
                    case covariance.LayerBlocks():
                        labels.append((layer,))
                    case covariance.NeuronBlocks():
                        labels.append((layer, row))
                    case covariance.Diagonal():
                        labels.append((len(labels),))
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    vector = torch.tensor([codes[label] for label in labels])
    return (vector[:, None] == vector).double()


def matrix_of(optimizer: Kova) -> Tensor:
    """P in the order of ``module.parameters()``: the joint covariance of the weights as predictions."""
    tensors = [p for p in optimizer.module.parameters() if p.requires_grad]
    return optimizer.posterior(lambda: torch.cat([p.flatten() for p in tensors])).covariance


@pytest.mark.parametrize("batches", [[4, 1, 7, 3, 32, 2]])
def test_linear_model_gives_the_bayesian_regression_posterior(batches: list[int]) -> None:
    model = nn.Linear(5, 1).double()
    prior = 0.7
    start = flat(model)
    optimizer = Kova(model, 1.0, covariance.Full(prior), evolution.Stationary(), observation.PerSample())
    precision, information = torch.eye(6).double() / prior, start / prior
    for n in batches:
        x, y = torch.randn(n, 5).double(), torch.randn(n).double()
        variance = torch.rand(n).double() + 0.1
        optimizer.step(lambda x=x: predictions(model, x), y, variance=variance)
        features = torch.cat([x, torch.ones(n, 1)], 1)
        precision += features.T @ (features / variance[:, None])
        information += features.T @ (y / variance)
    expected = torch.linalg.inv(precision)
    torch.testing.assert_close(flat(model), expected @ information, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(matrix_of(optimizer), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("noise", [observation.PerSample(), observation.Correlated()], ids=members.name)
@pytest.mark.parametrize("lr", [1.0, 0.3])
@pytest.mark.parametrize("kind", FIXED, ids=members.name)
@pytest.mark.parametrize("structure", DENSE, ids=members.name)
def test_blocks_follow_a_masked_dense_filter(
    structure: covariance.Covariance, kind: evolution.Evolution, lr: float, noise: observation.Observation
) -> None:
    model = members.critic()
    prior = {"0": 0.5, "2": 2.0, "4": 1.0}
    structure = type(structure)(prior)
    optimizer = Kova(model, lr, structure, kind, noise)
    P0 = torch.cat([torch.full((p.numel(),), prior[n.split(".")[0]]) for n, p in model.named_parameters()])
    oracle = DenseFilter(P0.double().diag(), kind, mask_of(structure, model))
    for n in (5, 1, 9, 4, 4, 6):
        x, y = torch.randn(n, 3).double(), torch.randn(n).double()
        inputs = members.noise_inputs(noise, x)
        H = jacobian(model, lambda x=x: predictions(model, x))
        innovation = y - predictions(model, x).detach()
        R = noise.covariance({}, innovation, inputs)
        expected = flat(model) + oracle.step(H, innovation, R if R.ndim == 2 else R.diag(), lr)
        info = optimizer.step(lambda x=x: predictions(model, x), y, **inputs)
        torch.testing.assert_close(flat(model), expected, rtol=1e-9, atol=1e-9)
        assert info.nis == pytest.approx(oracle.nis, rel=1e-9)
    if optimizer.posterior(lambda: predictions(model, x)).tracked:
        torch.testing.assert_close(matrix_of(optimizer), oracle.P, rtol=1e-9, atol=1e-9)
        assert info.variance_max == pytest.approx(float(oracle.P.diagonal().max()))
        assert info.variance_mean == pytest.approx(float(oracle.P.diagonal().mean()))


@pytest.mark.parametrize("kind", [evolution.Stationary(), evolution.Leakage(0.001)], ids=members.name)
@pytest.mark.parametrize(
    "structure", [*DENSE, covariance.LowRank(80), covariance.Kronecker()], ids=members.name
)
def test_float32_has_float64s_error_bars_after_thousands_of_samples(
    structure: covariance.Covariance, kind: evolution.Evolution
) -> None:
    """What keeps a stored P positive definite must not blow up its variances."""
    states = torch.randn(4, 3)
    found = []
    for dtype in (torch.float32, torch.float64):
        model = members.critic(dtype=torch.float64)
        optimizer = Kova(model, 1.0, replace(structure, dtype=dtype), kind, observation.PerSample())
        generator = torch.Generator().manual_seed(0)
        for _ in range(1_000):
            x = torch.randn(8, 3, generator=generator).double()
            y = x[:, 0].sin() + 0.17 * torch.randn(8, generator=generator).double()
            optimizer.step(lambda x=x, m=model: predictions(m, x), y, variance=torch.full((8,), 0.03))
        found.append(optimizer.posterior(lambda m=model: predictions(m, states.double())).std)
    assert (found[0] / found[1] - 1).abs().max() < 0.4


@pytest.mark.parametrize("noise", members.OBSERVATIONS[:6], ids=members.name)
@pytest.mark.parametrize("kind", [evolution.Leakage(0.05), evolution.Stationary()], ids=members.name)
def test_low_rank_of_full_rank_is_the_dense_filter(
    kind: evolution.Evolution, noise: observation.Observation
) -> None:
    model = members.critic()
    d = len(flat(model))
    optimizer = Kova(model, 1.0, covariance.LowRank(d, prior=1.5), kind, noise)
    oracle = DenseFilter(1.5 * torch.eye(d).double(), kind)
    for n in (5, 1, 9, 32, 4):
        x, y = torch.randn(n, 3).double(), torch.randn(n).double()
        inputs = members.noise_inputs(noise, x)
        innovation = y - predictions(model, x).detach()
        R = noise.covariance({}, innovation, inputs)
        H = jacobian(model, lambda x=x: predictions(model, x))
        expected = flat(model) + oracle.step(H, innovation, R if R.ndim == 2 else R.diag())
        info = optimizer.step(lambda x=x: predictions(model, x), y, **inputs)
        torch.testing.assert_close(flat(model), expected, rtol=1e-11, atol=1e-11)
        assert info.nis == pytest.approx(oracle.nis, rel=1e-10)
    unit = optimizer._tracker.unit(optimizer._memory())
    torch.testing.assert_close(matrix_of(optimizer), oracle.P * unit, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rank", [0, 1, 5, 20])
def test_low_rank_keeps_the_information_it_drops_on_the_diagonal(rank: int) -> None:
    """Whatever the rank, the diagonal of P^-1 is exact: nothing that was learned is thrown away."""
    model = members.critic()
    d, eta = len(flat(model)), 0.05
    optimizer = Kova(model, 1.0, covariance.LowRank(rank), evolution.Leakage(eta), observation.BatchSize())
    exact = torch.eye(d).double()
    for n in (5, 9, 3, 16):
        x, y = torch.randn(n, 3).double(), torch.randn(n).double()
        H = jacobian(model, lambda x=x: predictions(model, x))
        exact = (1 - eta) * exact + eta * torch.eye(d).double() + H @ H.T / n
        optimizer.step(lambda x=x: predictions(model, x), y)
    unit = optimizer._tracker.unit(optimizer._memory())
    kept = torch.linalg.inv(matrix_of(optimizer) / unit)
    torch.testing.assert_close(kept.diagonal(), exact.diagonal(), rtol=1e-9, atol=1e-9)


def test_low_rank_with_lr_below_one_tempers_the_information() -> None:
    model = members.critic()
    d, eta, lr = len(flat(model)), 0.05, 0.4
    optimizer = Kova(model, lr, covariance.LowRank(d), evolution.Leakage(eta), observation.BatchSize())
    information = torch.eye(d).double()
    for n in (5, 9, 3):
        x, y = torch.randn(n, 3).double(), torch.randn(n).double()
        H = jacobian(model, lambda x=x: predictions(model, x))
        information = (1 - eta) * information + eta * torch.eye(d).double()
        P = torch.linalg.inv(information)
        gain = P @ H @ torch.linalg.inv(H.T @ P @ H + n * torch.eye(n).double())
        expected = flat(model) + lr * gain @ (y - predictions(model, x).detach())
        information += lr * H @ H.T / n
        optimizer.step(lambda x=x: predictions(model, x), y)
        torch.testing.assert_close(flat(model), expected, rtol=1e-10, atol=1e-10)
    unit = optimizer._tracker.unit(optimizer._memory())
    torch.testing.assert_close(
        matrix_of(optimizer) / unit, torch.linalg.inv(information), rtol=1e-9, atol=1e-9
    )


def test_unbounded_directional_forgetting_has_fading_memorys_gain_on_the_first_step() -> None:
    one, x, y = members.critic(), torch.randn(6, 3).double(), torch.randn(6).double()
    two = copy.deepcopy(one)
    noise = observation.BatchSize()
    Kova(one, 1.0, covariance.Full(), evolution.FadingMemory(0.1), noise).step(lambda: predictions(one, x), y)
    kind = evolution.DirectionalForgetting(0.1, bounded=False)
    Kova(two, 1.0, covariance.Full(), kind, noise).step(lambda: predictions(two, x), y)
    torch.testing.assert_close(flat(one), flat(two), rtol=1e-11, atol=1e-11)


def test_filterpy_agrees_on_one_step() -> None:
    model, n = nn.Linear(4, 1).double(), 7
    x, y, R = torch.randn(n, 4).double(), torch.randn(n).double(), torch.rand(n).double() + 0.5
    other = KalmanFilter(dim_x=5, dim_z=n)
    other.x, other.P, other.Q = flat(model).numpy()[:, None], 2 * np.eye(5), 0.2 * np.eye(5)  # Q = q P_0
    other.H = torch.cat([x, torch.ones(n, 1)], 1).numpy()
    other.R = R.diag().numpy()
    other.predict()
    other.update(y.numpy()[:, None])
    optimizer = Kova(model, 1.0, covariance.Full(2.0), evolution.RandomWalk(0.1), observation.PerSample())
    optimizer.step(lambda: predictions(model, x), y, variance=R)
    torch.testing.assert_close(flat(model), torch.tensor(other.x[:, 0]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(matrix_of(optimizer), torch.tensor(other.P), rtol=1e-10, atol=1e-10)


@given(
    n=st.integers(1, 12),
    width=st.integers(1, 7),
    rank=st.integers(0, 20),
    duplicates=st.booleans(),
    single=st.booleans(),
    seed=st.integers(0, 99),
)
def test_low_rank_first_step_is_exact_for_any_shape(
    n: int, width: int, rank: int, duplicates: bool, single: bool, seed: int
) -> None:
    """From the prior, the gain does not depend on what is dropped afterwards."""
    dtype = torch.float32 if single else torch.float64
    model = members.critic(width=width, dtype=dtype, seed=seed)
    x, y = torch.randn(n, 3).to(dtype), torch.randn(n).to(dtype)
    if duplicates:
        x = x[:1].repeat(n, 1)
    H = jacobian(model, lambda: predictions(model, x)).double()
    innovation = (y - predictions(model, x).detach()).double()
    oracle = DenseFilter(torch.eye(len(H)).double(), evolution.Leakage(0.1))
    expected = flat(model).double() + oracle.step(H, innovation, n * torch.eye(n).double())
    optimizer = Kova(model, 1.0, covariance.LowRank(rank), evolution.Leakage(0.1), observation.BatchSize())
    optimizer.step(lambda: predictions(model, x), y)
    tolerance = 1e-4 if single else 1e-10
    torch.testing.assert_close(flat(model).double(), expected, rtol=tolerance, atol=tolerance)


def test_the_oracle_knows_every_evolution() -> None:
    for kind in FIXED:
        if not isinstance(kind, evolution.DirectionalForgetting):
            assert predictor(kind, torch.eye(2).double())(torch.eye(2).double()).shape == (2, 2)


@pytest.mark.parametrize("rank", [3, 200])
def test_low_rank_leaves_out_rows_of_dead_units_and_dark_inputs(rank: int) -> None:
    """Half of the weights have no gradient: the same numbers as with all rows, and exact at full rank."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 1)).double()
    with torch.no_grad():
        model[0].bias[:5] = -50.0  # dead units
    dense = copy.deepcopy(model)
    noise, kind = observation.PerSample(), evolution.Leakage(0.1)
    sparse = Kova(model, 1.0, covariance.LowRank(rank), kind, noise)
    # Full has the same evolution, by inversion; at a low rank compare with all rows instead.
    structure = covariance.Full() if rank == 200 else covariance.LowRank(rank)
    other = Kova(dense, 1.0, structure, kind, noise)
    for t in range(12):
        x = torch.randn(5, 8).double()
        x[:, : 3 if t < 8 else 0] = 0.0  # dark inputs, which light up later
        y, variance = torch.randn(5).double(), torch.rand(5).double() + 0.1
        sparse.step(lambda x=x: predictions(model, x), y, variance=variance)
        with mock.patch.object(low_rank._Rows, "WORTH", 0.0):
            other.step(lambda x=x: predictions(dense, x), y, variance=variance)
        torch.testing.assert_close(flat(model), flat(dense), rtol=1e-9, atol=1e-9)
    probe = torch.randn(6, 8).double()
    ours = sparse.posterior(lambda: predictions(model, probe)).covariance
    torch.testing.assert_close(
        ours, other.posterior(lambda: predictions(dense, probe)).covariance, rtol=1e-8, atol=1e-9
    )


def test_a_gradient_that_is_not_finite_is_not_taken_for_a_dark_row() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.good, self.bad = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.good + (x * self.bad).square().sum(1).sqrt().nan_to_num()  # gradient 0/0

    model, x = Two(), torch.randn(4, 3)
    before = flat(model)
    with pytest.raises(NonFiniteBatch):
        Kova(model).step(lambda: model(x), torch.randn(4))
    assert torch.equal(flat(model), before)


def test_rows_that_nothing_observes_do_not_become_subnormal() -> None:
    model = nn.Linear(4, 1)
    optimizer = Kova(model, 1.0, covariance.LowRank(2), evolution.Leakage(0.5), observation.BatchSize())
    x = torch.randn(200, 3, 4)
    x[3:, :, 0] = 0.0
    for batch in x:
        optimizer.step(lambda batch=batch: predictions(model, batch), batch.sum(1))
    factor = optimizer.state[model.weight]["covariance"]["factor"].abs()
    assert (factor[factor > 0] > torch.finfo(torch.float32).tiny).all()
