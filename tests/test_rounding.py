"""Right and positive definite in float32, whatever is rounded, and how: no processor's luck decides."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from benchmarks.stress import DeadCritic, extremes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kova_rl import Kova, covariance, evolution, observation
from tests import members
from tests.oracle import flat

PRODUCTS = {
    torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.mv, Tensor.matmul, Tensor.__matmul__,
    Tensor.addmm_, Tensor.addmv_, Tensor.baddbmm_, torch.linalg.vecdot, torch.linalg.solve_triangular,
}  # fmt: skip
EXACT = [covariance.Full(), covariance.LayerBlocks(), covariance.NeuronBlocks(), covariance.LowRank(32)]


class Rounding(TorchFunctionMode):
    """Every product of matrices comes out a few units in the last place off, each entry for itself."""

    def __init__(self, seed: int, ulps: float = 4.0) -> None:
        super().__init__()
        self.generator, self.ulps, self.count = torch.Generator().manual_seed(seed), ulps, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in PRODUCTS and not out.requires_grad:
            self.count += 1
            noise = torch.rand(out.shape, generator=self.generator, dtype=out.dtype).sub_(0.5)
            out.addcmul_(out, noise, value=2 * self.ulps * torch.finfo(out.dtype).eps)
        return out


def regression(
    structure: covariance.Covariance, n: int, variance: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights after 60 batches of a linear model, and mean and precision of their exact posterior."""
    torch.manual_seed(seed)
    model, truth = nn.Linear(10, 1), torch.randn(11)
    optimizer = Kova(model, 1.0, structure, evolution.Stationary(), observation.PerSample())
    variances = torch.full((n,), variance)
    precision, information = torch.eye(11).double(), flat(model).double()
    for _ in range(60):
        x = torch.randn(n, 10)
        y = x @ truth[:10] + truth[10] + variance**0.5 * torch.randn(n)
        optimizer.step(lambda x=x: model(x).squeeze(-1), y, variance=variances)
        features = torch.cat([x, torch.ones(n, 1)], 1).double()
        precision += features.T @ features / float(variances[0])
        information += features.T @ y.double() / float(variances[0])
    return flat(model).double(), torch.linalg.solve(precision, information), precision


@pytest.mark.parametrize(
    ("n", "variance", "bar"),
    [(32, 1e-2, 0.1), (256, 1e-2, 0.1), (256, 1e-4, 0.1), (1024, 1e-4, 0.1), (256, 1e-8, 0.5)],
)
@pytest.mark.parametrize("structure", EXACT, ids=members.name)
def test_batches_that_say_more_than_float32_can_hold(
    structure: covariance.Covariance, n: int, variance: float, bar: float
) -> None:
    """The mean of a linear regression, in deviations of its exact posterior."""
    for seed in range(1 if n > 256 else 3):
        got, mean, precision = regression(structure, n, variance, seed)
        distance = ((got - mean) @ precision @ (got - mean) / 11).sqrt()
        assert distance < bar


def test_rounding_is_not_taken_for_information() -> None:
    """A direction that no batch has ever observed keeps the prior's deviation."""
    model, generator = nn.Linear(6, 1, bias=False), torch.Generator().manual_seed(1)
    kind = evolution.Leakage(0.001)
    optimizer = Kova(model, 1.0, covariance.LowRank(32), kind, observation.PerSample())
    for _ in range(2_000):
        x = torch.randn(64, 6, generator=generator)
        x[:, 1] = x[:, 0]
        optimizer.step(lambda x=x: model(x).squeeze(-1), x.sum(1), variance=torch.full((64,), 0.01))
    unseen = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0, 0.0]]) / 2**0.5
    assert optimizer.posterior(lambda: model(unseen).squeeze(-1)).std == pytest.approx(1.0, abs=0.02)


def test_directional_forgetting_does_not_explode_on_batches_that_say_much() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 1)
    kind = evolution.DirectionalForgetting(0.01)
    optimizer = Kova(model, 1.0, covariance.Full(), kind, observation.PerSample())
    for _ in range(40):
        x = torch.randn(256, 10)
        y = x.sum(1) + 0.01 * torch.randn(256)
        optimizer.step(lambda x=x: model(x).squeeze(-1), y, variance=torch.full((256,), 1e-4))
        assert 0.0 < optimizer.variances().min() <= optimizer.variances().max() <= 1.0
    torch.testing.assert_close(model.weight.detach(), torch.ones(1, 10), rtol=0, atol=1e-3)


def test_blocks_go_on_learning_where_float32_has_digits_left() -> None:
    """Four directions in 40 are observed, 3,000 times: their deviations fall to 2e-4, not to 3e-3."""
    model = nn.Linear(40, 1, bias=False)
    optimizer = Kova(model, 1.0, covariance.NeuronBlocks(), evolution.Stationary(), observation.PerSample())
    x = torch.randn(4, 40).sign() / 40**0.5
    for _ in range(3_000):
        optimizer.step(lambda: model(x).squeeze(-1), torch.zeros(4), variance=torch.full((4,), 1e-4))
    H = x.double()
    exact = torch.linalg.inv(torch.eye(40).double() + 3_000 * H.T @ H / 1e-4)
    expected = (H @ exact @ H.T).diagonal().sqrt()
    found = optimizer.posterior(lambda: model(x).squeeze(-1)).std.double()
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0.0)


PERTURBED = [
    (structure, kind)
    for structure in (*EXACT[:3], covariance.Diagonal(), covariance.LowRank(8))
    for kind in (
        evolution.Stationary(),
        evolution.PriorAnchored(0.01),
        evolution.Leakage(0.01),
        evolution.DirectionalForgetting(0.01),
    )
    if members.works(structure, kind, members.critic())
]


@pytest.mark.parametrize("variance", [1e-14, 1.0])
@pytest.mark.parametrize(("structure", "kind"), PERTURBED, ids=members.name)
def test_positive_definite_and_symmetric_whatever_the_rounding(
    structure: covariance.Covariance, kind: evolution.Evolution, variance: float
) -> None:
    for seed in range(3):
        critic = DeadCritic(seed)
        optimizer = Kova(critic, 1.0, structure, kind, observation.PerSample())
        with Rounding(seed) as rounding:
            for t in range(150):
                x, y = critic.batch(32)
                if t % 2:
                    x, y = x.flip(0), y.flip(0)  # another order of summation
                optimizer.step(partial(critic, x), y, variance=torch.full((32,), variance))
        assert rounding.count > 150
        found = extremes(optimizer)
        assert found.finite
        assert found.asymmetry == 0.0
        assert found.smallest > 0.0
        assert found.largest <= 1.0 + 1e-4
        assert optimizer.variances().max() <= 1.0 + 1e-6


@pytest.mark.parametrize(
    "kind", [evolution.Stationary(), evolution.PriorAnchored(0.01), evolution.DirectionalForgetting(0.01)]
)
def test_a_large_matrix_stays_positive_definite_too(kind: evolution.Evolution) -> None:
    """Above 512 a block is kept as a matrix."""
    torch.manual_seed(0)
    model = nn.Linear(599, 1)
    optimizer = Kova(model, 1.0, covariance.Full(), kind, observation.PerSample())
    with Rounding(0):
        for _ in range(60):
            x = torch.randn(32, 599)
            optimizer.step(lambda x=x: model(x).squeeze(-1), x[:, 0], variance=torch.full((32,), 1e-6))
    found = extremes(optimizer)
    assert found.asymmetry == 0.0
    assert 0.0 < found.smallest < found.largest <= 1.0 + 1e-4


@pytest.mark.parametrize("structure", EXACT[2:], ids=members.name)
def test_one_thread_or_two(structure: covariance.Covariance) -> None:
    """Threads may round otherwise, and change no more than that."""
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got, mean, precision = regression(structure, 16, 1e-3, 0)
            found.append(got)
            assert ((got - mean) @ precision @ (got - mean) / 11).sqrt() < 0.01
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
