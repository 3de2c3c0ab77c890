"""Kronecker: against a naive filter that multiplies everything out, and what it must refuse."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import InvalidBatch, Kova, NonFiniteBatch, covariance, evolution, observation
from kova_rl.filter.covariance import kronecker
from tests import members
from tests.oracle import DenseFilter, jacobian


def predictions(module: nn.Module, states: Tensor) -> Tensor:
    return module(states).squeeze(-1)


def neuron_by_neuron(model: nn.Sequential, vectors: Tensor) -> list[Tensor]:
    """Rows in the order of ``parameters()`` as one rows x cols x anything block a Linear layer."""
    blocks, start = [], 0
    for layer in (m for m in model if isinstance(m, nn.Linear)):
        n, m = layer.weight.shape
        weight = vectors[start : start + n * m].view(n, m, -1)
        bias = vectors[start + n * m : start + n * m + n].view(n, 1, -1)
        blocks.append(torch.cat([weight, bias], 1))
        start += n * m + n
    return blocks


def pivots(C: Tensor) -> Tensor:
    """What Gauss divides by: the ratios of the leading minors."""
    minors = torch.stack([torch.linalg.det(C[:k, :k]) for k in range(len(C) + 1)])
    return minors[1:] / minors[:-1]


class Naive:
    """One layer: all of its information, traced and multiplied out, in float64."""

    def __init__(self, rows: int, cols: int) -> None:
        self.rows, self.cols, self.balance = rows, cols, 1.0
        self.information = torch.zeros(rows * cols, rows * cols).double()
        self.P = torch.eye(rows * cols).double()

    def learn(self, H: Tensor, inverse_noise: Tensor, eta: float) -> None:
        self.information = (1 - eta) * self.information + H @ inverse_noise @ H.T

    def refresh(self) -> None:
        F = self.information.view(self.rows, self.cols, self.rows, self.cols)
        A, B = torch.einsum("kakb->ab", F), torch.einsum("kaja->kj", F)
        trace = float(A.trace())
        if self.rows == 1:
            self.P = torch.linalg.inv(torch.eye(self.cols).double() + A)
            return
        x = kronecker.DAMPED * self.balance * math.sqrt(self.cols / self.rows / trace)
        y = kronecker.DAMPED**2 / x / trace
        inputs, outputs = torch.eye(self.cols).double() + x * A, torch.eye(self.rows).double() + y * B
        self.P = torch.linalg.inv(torch.kron(outputs, inputs))
        a, b = torch.linalg.eigvalsh(inputs), torch.linalg.eigvalsh(outputs)
        slopes = float((1 - 1 / pivots(inputs)).mean() + (1 - 1 / pivots(outputs)).mean())
        change = float(b.log().mean() - a.log().mean()) / max(slopes, 0.1)
        self.balance *= math.exp(min(2.0, max(-2.0, change)))


class NaiveFilter:
    def __init__(self, model: nn.Sequential, refresh: int, eta: float) -> None:
        self.layers = [Naive(len(m.weight), m.in_features + 1) for m in model if isinstance(m, nn.Linear)]
        self.refresh, self.eta, self.age, self.total, self.known = refresh, eta, 0, 0.0, 0.0

    def step(self, blocks: list[Tensor], innovation: Tensor, R: Tensor, lr: float) -> list[Tensor]:
        H = [block.flatten(0, 1) for block in blocks]
        S = R + sum(h.T @ layer.P @ h for h, layer in zip(H, self.layers, strict=True))
        z = torch.linalg.solve(S, innovation)
        self.nis = float(innovation @ z) / len(z)
        moved = [lr * layer.P @ h @ z for h, layer in zip(H, self.layers, strict=True)]
        W = lr * torch.linalg.inv(R)
        self.total = (1 - self.eta) * self.total + sum(float((h @ W @ h.T).trace()) for h in H)
        self.age += 1
        late = self.age >= self.refresh
        for h, layer in zip(H, self.layers, strict=True):
            layer.learn(h, W, self.eta)
        if late or not self.total / kronecker.GROWTH <= self.known <= self.total * kronecker.GROWTH:
            self.age, self.known = 0, self.total
            for layer in self.layers:
                layer.refresh()
        return [m.view(block.shape[:2]) for m, block in zip(moved, blocks, strict=True)]


def blocks_of(model: nn.Sequential) -> list[Tensor]:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return [block[:, :, 0].clone() for block in neuron_by_neuron(model, flat[:, None])]


@pytest.mark.parametrize("noise", [observation.PerSample(), observation.Correlated()], ids=members.name)
@pytest.mark.parametrize("lr", [1.0, 0.3])
@pytest.mark.parametrize("eta", [0.0, 0.05])
@pytest.mark.parametrize("refresh", [1, 3])
def test_it_follows_a_filter_that_multiplies_everything_out(
    refresh: int, eta: float, lr: float, noise: observation.Observation
) -> None:
    model = members.critic()
    kind = evolution.Leakage(eta) if eta else evolution.Stationary()
    optimizer = Kova(model, lr, covariance.Kronecker(refresh=refresh), kind, noise)
    oracle = NaiveFilter(model, refresh, eta)
    for n in (5, 1, 9, 4, 4, 6, 40):
        x, y = torch.randn(n, 3).double(), torch.randn(n).double()
        inputs = members.noise_inputs(noise, x)
        innovation = y - predictions(model, x).detach()
        R = noise.covariance({}, innovation, inputs)
        H = neuron_by_neuron(model, jacobian(model, lambda x=x: predictions(model, x)))
        before = blocks_of(model)
        moved = oracle.step(H, innovation, R if R.ndim == 2 else R.diag(), lr)
        info = optimizer.step(lambda x=x: predictions(model, x), y, **inputs)
        for was, change, now in zip(before, moved, blocks_of(model), strict=True):
            torch.testing.assert_close(now, was + change, rtol=1e-8, atol=1e-8)
        assert info.nis == pytest.approx(oracle.nis, rel=1e-8)
    H = neuron_by_neuron(model, jacobian(model, lambda: predictions(model, x)))
    expected = sum(
        h.flatten(0, 1).T @ layer.P @ h.flatten(0, 1) for h, layer in zip(H, oracle.layers, strict=True)
    )
    belief = optimizer.posterior(lambda: predictions(model, x))
    torch.testing.assert_close(belief.covariance, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(belief.std.square(), expected.diagonal(), rtol=1e-8, atol=1e-10)
    diagonal = torch.cat([layer.P.diagonal() for layer in oracle.layers])
    torch.testing.assert_close(optimizer.variances(), diagonal, rtol=1e-8, atol=1e-10)


def test_predictions_that_have_no_factors_have_the_same_posterior() -> None:
    model, x = members.critic(), torch.randn(7, 3).double()
    optimizer = Kova(model, covariance=covariance.Kronecker())
    for _ in range(3):
        optimizer.step(lambda: predictions(model, x), x[:, 0])
    weights = [p for p in model.parameters() if p.requires_grad]
    P = optimizer.posterior(lambda: torch.cat([p.flatten() for p in weights])).covariance
    H = jacobian(model, lambda: predictions(model, x))
    belief = optimizer.posterior(lambda: predictions(model, x))
    torch.testing.assert_close(belief.covariance, H.T @ P @ H, rtol=1e-9, atol=1e-12)
    assert float(torch.linalg.eigvalsh(P)[-1]) <= 1 + 1e-12


@pytest.mark.parametrize("noise", [observation.PerSample(), observation.Correlated()], ids=members.name)
def test_one_linear_layer_with_one_output_is_the_exact_filter(noise: observation.Observation) -> None:
    model = nn.Linear(4, 1).double()
    optimizer = Kova(model, 1.0, covariance.Kronecker(0.5, refresh=1), evolution.Stationary(), noise)
    oracle = DenseFilter(0.5 * torch.eye(5).double(), evolution.Stationary())
    for n in (5, 1, 9, 4):
        x, y = torch.randn(n, 4).double(), torch.randn(n).double()
        inputs = members.noise_inputs(noise, x)
        innovation = y - predictions(model, x).detach()
        R = noise.covariance({}, innovation, inputs)
        H = jacobian(model, lambda x=x: predictions(model, x))
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        expected = flat + oracle.step(H, innovation, R if R.ndim == 2 else R.diag())
        optimizer.step(lambda x=x: predictions(model, x), y, **inputs)
        found = torch.cat([p.detach().flatten() for p in model.parameters()])
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(optimizer.variances(), oracle.P.diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of inputs and targets that are out of scale, as they are
@given(
    n=st.integers(1, 12),
    width=st.integers(1, 7),
    refresh=st.integers(1, 9),
    size=st.sampled_from([1e-6, 1.0, 1e3]),
    duplicates=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape_and_size_stays_finite_and_below_the_prior(
    n: int, width: int, refresh: int, size: float, duplicates: bool, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width, bias=bias), nn.ReLU(), nn.Linear(width, 1, bias=bias))
    optimizer = Kova(
        model, 1.0, covariance.Kronecker(refresh=refresh), evolution.Leakage(0.1), observation.PerSample()
    )
    for variance in (1.0, 1e-9, 1e6):
        x = size * torch.randn(1 if duplicates else n, 3).expand(n, 3)
        y, noise = torch.randn(n), torch.full((n,), variance)
        optimizer.step(lambda x=x: predictions(model, x), y, variance=noise)
        found = optimizer.variances()
        assert bool((found > 0).all())
        assert float(found.max()) <= 1 + 1e-5
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize("wide", [False, True])
def test_a_batch_that_says_much_is_solved_as_float64_would(wide: bool) -> None:
    """256 targets with a noise of 1e-4: in float32 alone the noise would drown in rounding."""
    x = torch.randn(256, 17 if wide else 3)
    y = x[:, 0].sin()
    found = []
    for dtype in (torch.float32, torch.float64):
        model = members.critic(x.shape[1], 64 if wide else 8, torch.float32)
        structure = covariance.Kronecker(dtype=dtype)
        optimizer = Kova(model, 1.0, structure, evolution.Stationary(), observation.PerSample())
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        variance = torch.full((256,), 1e-4)
        info = optimizer.step(lambda m=model: predictions(m, x), y, variance=variance)
        assert info.jitter == 0.0
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - before)
    assert (found[0] - found[1]).norm() < 1e-3 * found[1].norm()


def test_float64_is_left_for_batches_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once P is small, the roots hold in float32 what is far below the rounding of ``H'P_0 H``."""
    model, doubled = members.critic(17, 64, torch.float32), []
    optimizer = Kova(model, covariance=covariance.Kronecker(), observation=observation.PerSample())
    variance, double = torch.full((256,), 1e-3), kronecker.Sides.double
    monkeypatch.setattr(kronecker.Sides, "double", lambda self: doubled.append(1) or double(self))
    for _ in range(30):
        x = torch.randn(256, 17)
        optimizer.step(lambda x=x: predictions(model, x), x[:, 0].sin(), variance=variance)
    assert doubled, "the first batches say more than float32 can hold"
    doubled.clear()

    twin, _ = both = copy.deepcopy((model, optimizer))
    optimizer.step(lambda: predictions(model, x), -x[:, 0].sin(), variance=variance)
    assert not doubled
    monkeypatch.setattr(kronecker._Batch, "fits", lambda self, variances: False)
    both[1].step(lambda: predictions(twin, x), -x[:, 0].sin(), variance=variance)
    assert len(doubled) == 3, "else it was exact enough with the inverses of P's factors"
    for mine, exact in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-3 * float(exact.detach().abs().max()))


def test_a_surprise_refreshes_at_once_and_so_does_the_beginning() -> None:
    model, x = members.critic(), torch.randn(8, 3).double()
    structure = covariance.Kronecker(refresh=1_000)
    optimizer = Kova(model, 1.0, structure, evolution.Stationary(), observation.PerSample())
    ages = []
    for t in range(40):
        variance = torch.full((8,), 1e-6 if t == 35 else 1.0)
        optimizer.step(lambda: predictions(model, x), x[:, 0], variance=variance)
        ages.append(optimizer._memory()["covariance"]["age"])
    assert ages[:2] == [0, 0]
    assert ages[25] > 5
    assert ages[35] == 0


def test_roots_of_another_age_would_go_on_differently() -> None:
    """What the age is saved for: two filters that differ in nothing else part ways."""
    model, x = members.critic(), torch.randn(8, 3).double()
    optimizer = Kova(model, covariance=covariance.Kronecker(refresh=4))
    for _ in range(30):
        optimizer.step(lambda: predictions(model, x), x[:, 0])
    state = optimizer.state_dict()
    state["state"][0]["covariance"]["age"] = (state["state"][0]["covariance"]["age"] + 2) % 4
    twin = copy.deepcopy(model)
    other = Kova(twin, covariance=covariance.Kronecker(refresh=4))
    other.load_state_dict(state)
    for _ in range(4):
        optimizer.step(lambda: predictions(model, x), -x[:, 0])
        other.step(lambda: predictions(twin, x), -x[:, 0])
    assert not torch.equal(model[0].weight, twin[0].weight)


def test_draws_have_the_covariance_of_the_posterior() -> None:
    model, x = members.critic(), torch.randn(12, 3).double()
    optimizer = Kova(model, covariance=covariance.Kronecker())
    for _ in range(3):
        optimizer.step(lambda: predictions(model, x), x[:, 0])
    (memory,) = optimizer.state.values()
    d = sum(p.numel() for p in model.parameters())
    draw = optimizer._tracker.structure.draw
    R = torch.stack([draw(memory["covariance"], e) for e in torch.eye(d).double()], 1)
    H = jacobian(model, lambda: predictions(model, x))
    coordinates = torch.cat([b.flatten(0, 1) for b in neuron_by_neuron(model, H)])
    belief = optimizer.posterior(lambda: predictions(model, x))
    torch.testing.assert_close(coordinates.T @ R @ R.T @ coordinates, belief.covariance)


def test_what_it_cannot_do_is_refused_and_nothing_changes() -> None:
    with pytest.raises(ValueError, match="refresh must be a whole number, at least 1, got 0"):
        covariance.Kronecker(refresh=0)
    convolution = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"nn\.Linear.*LowRank"):
        Kova(convolution, covariance=covariance.Kronecker())
    Kova(convolution, covariance=covariance.Kronecker(), evolution=evolution.Memoryless())
    model, x = members.critic(), torch.randn(5, 3).double()
    norm = nn.BatchNorm1d(1, affine=False).double()
    optimizer = Kova(model, covariance=covariance.Kronecker())
    optimizer.step(lambda: predictions(model, x), x[:, 0])
    before, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="one-backward"), pytest.raises(InvalidBatch, match="LowRank"):
        optimizer.step(lambda: norm(model(x)).squeeze(-1), x[:, 0])
    with pytest.raises(NonFiniteBatch):
        optimizer.step(lambda: predictions(model, x), x[:, 0] * torch.nan)
    huge = Kova(copy.deepcopy(model), covariance=covariance.Kronecker())
    with pytest.raises(NonFiniteBatch):
        huge.step(lambda: predictions(huge.module, x * 1e200), x[:, 0])
    from tests.test_resume import same

    assert same(before["state"][0]["covariance"], optimizer.state_dict()["state"][0]["covariance"])
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
