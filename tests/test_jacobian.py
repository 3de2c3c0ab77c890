"""Both ways to the Jacobian give the same numbers, and the fast one knows when it does not hold."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import Kova, covariance, evolution
from kova_rl.filter.evidence import DenseJacobian
from kova_rl.jacobian import JacobianOf
from kova_rl.linear import LinearJacobian
from kova_rl.parameters import Parameters
from tests import members
from tests.oracle import flat, jacobian


def both(
    module: nn.Module, predict: Callable[[], Tensor], prior: object = 1.0
) -> tuple[JacobianOf, Parameters, object, Tensor]:
    parameters = Parameters(module, prior)  # type: ignore[arg-type]
    of = JacobianOf(module, parameters)
    with torch.no_grad():
        _, found = of(predict, torch.float64)
        general = of._general(predict_with_grad(predict), torch.float64).dense()
    return of, parameters, found, general


def predict_with_grad(predict: Callable[[], Tensor]) -> Tensor:
    with torch.enable_grad():
        return predict()


@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    n=st.integers(1, 9),
    bias=st.booleans(),
    prior=st.sampled_from([1.0, 0.3, covariance.FanIn(2.0)]),
    inplace=st.booleans(),
)
def test_fast_and_general_paths_give_the_same_numbers(
    widths: list[int], n: int, bias: bool, prior: object, inplace: bool
) -> None:
    torch.manual_seed(0)
    sizes = [3, *widths, 1]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU(inplace=inplace)]
    model = nn.Sequential(*layers[:-1]).double()
    x = torch.randn(n, 3).double()
    _, parameters, found, general = both(model, lambda: model(x).squeeze(-1), prior)
    assert isinstance(found, LinearJacobian)
    torch.testing.assert_close(found.dense(), general, rtol=1e-12, atol=1e-12)
    z = torch.rand(n).double()
    torch.testing.assert_close(found.dense(z), general * z, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.gram(), general.T @ general, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.times(z[:, None]), general @ z, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.squares(z), general.square() @ z, rtol=1e-12, atol=1e-12)
    assert found.size == len(parameters) == len(general)


def test_the_dense_jacobian_does_what_the_structured_one_does() -> None:
    H, z = torch.randn(7, 4).double(), torch.rand(4).double()
    dense = DenseJacobian(H)
    out = torch.empty_like(H)
    assert dense.dense(z, out=out) is out
    torch.testing.assert_close(out, H * z)
    torch.testing.assert_close(dense.gram(), H.T @ H)
    torch.testing.assert_close(dense.times(z[:, None]), H @ z)
    torch.testing.assert_close(dense.squares(z), H.square() @ z)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(torch.tanh(self.one(x))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(torch.tanh(self.body(x))))


class Scaled(nn.Module):
    """Parameters of its own, of no, one and three dimensions, beside a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.randn(3))
        self.cube, self.out = nn.Parameter(torch.randn(2, 3, 4)), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.einsum("ni,oij->noj", x * self.scale + self.shift, self.cube)
        return self.out(torch.tanh(mixed).flatten(1))


OTHERS = {
    "tied": Tied(),
    "called twice": Twice(),
    "own parameters": Scaled(),
    "convolution": nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(4, 1)),
    "layer norm": nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)),
    "three dimensions": nn.Sequential(
        nn.Unflatten(1, (3, 1)), nn.Linear(1, 2), nn.Flatten(), nn.Linear(6, 1)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_module_takes_the_general_path(name: str) -> None:
    model = OTHERS[name].double()
    x = torch.randn(5, 3).double()
    _, parameters, found, general = both(model, lambda: model(x).squeeze(-1))
    assert isinstance(found, DenseJacobian)
    d = len(flat(model))
    assert general.shape == (d, 5)
    assert len(parameters) == d
    reference = jacobian(model, lambda: model(x).squeeze(-1))
    torch.testing.assert_close(general.T @ general, reference.T @ reference, rtol=1e-10, atol=1e-12)
    before = flat(model)
    with torch.no_grad():
        parameters.add_(general.sum(1))
    torch.testing.assert_close(flat(model), before + reference.sum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the prior's variance", "ignore:the first innovations")
@pytest.mark.parametrize("name", OTHERS)
def test_every_structure_works_on_any_module(name: str) -> None:
    for structure in (s for s in members.STRUCTURES if not s.factored):
        model = copy.deepcopy(OTHERS[name]).float()
        optimizer = Kova(model, covariance=structure, evolution=evolution.Stationary())
        x = torch.randn(6, 3)
        first = optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])  # noqa: B023 - called at once
        for _ in range(20):
            last = optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])  # noqa: B023
        assert last.loss < first.loss
        with optimizer.sampled(torch.Generator().manual_seed(0)):
            assert torch.isfinite(model(x)).all()


def mixing(model: nn.Module, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    norm = nn.BatchNorm1d(1, affine=False).double()
    return {
        "permuted": lambda: model(x).squeeze(-1).flip(0),
        "two rows swapped": lambda: model(x).squeeze(-1)[torch.tensor([0, 2, 1, 3, 4])],
        "mixed": lambda: norm(model(x)).squeeze(-1),
        "weight used again": lambda: model(x).squeeze(-1) * model[0].weight.sum(),
    }


@pytest.mark.parametrize("name", ["permuted", "two rows swapped", "mixed", "weight used again"])
def test_a_closure_that_mixes_rows_falls_back_with_one_warning(name: str) -> None:
    model = members.critic()
    x = torch.randn(5, 3).double()
    predict = mixing(model, x)[name]
    parameters = Parameters(model, 1.0)
    of = JacobianOf(model, parameters)
    with pytest.warns(UserWarning, match="falling back"), torch.no_grad():
        _, found = of(predict, torch.float64)
    assert isinstance(found, DenseJacobian)
    reference = jacobian(model, predict)
    torch.testing.assert_close(found.gram(), reference.T @ reference, rtol=1e-9, atol=1e-12)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        of(predict, torch.float64)


@pytest.mark.parametrize("name", ["permuted", "two rows swapped", "mixed"])
def test_another_closure_of_the_same_size_is_right_too(name: str) -> None:
    model = members.critic()
    x = torch.randn(5, 3).double()
    optimizer = Kova(model, covariance=covariance.Full(), evolution=evolution.Stationary())
    optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
    plain = optimizer.posterior(lambda: model(x).squeeze(-1))
    predict = mixing(model, x)[name]
    found = optimizer.posterior(predict)
    H = jacobian(model, predict)
    weights = optimizer.posterior(lambda: torch.cat([p.flatten() for p in model.parameters()])).covariance
    torch.testing.assert_close(found.covariance, H.T @ weights @ H, rtol=1e-8, atol=1e-12)
    assert not torch.allclose(found.std, plain.std)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
    assert optimizer._tracker.jacobian._may_be_fast


def test_a_head_that_starts_at_zero_does_not_hide_what_lies_behind_it() -> None:
    norm = nn.BatchNorm1d(6, affine=False).double()
    body, head = nn.Linear(3, 6).double(), nn.Linear(6, 1).double()
    nn.init.zeros_(head.weight)
    model = nn.Sequential(body, norm, head)
    parameters = Parameters(model, 1.0)
    of = JacobianOf(model, parameters)
    x = torch.randn(5, 3).double()
    with torch.no_grad():
        of(lambda: model(x).squeeze(-1), torch.float64)  # all agrees, but nothing reached the body
        nn.init.normal_(head.weight)
    with pytest.warns(UserWarning, match="falling back"), torch.no_grad():
        _, found = of(lambda: model(x).squeeze(-1), torch.float64)
    assert isinstance(found, DenseJacobian)


def test_a_forward_that_the_user_replaced_is_used_and_left_in_place() -> None:
    model = nn.Linear(3, 1).double()
    optimizer = Kova(model, covariance=covariance.LowRank(prior=1.0))

    def doubled(x: Tensor) -> Tensor:
        return 2 * nn.Linear.forward(model, x)

    model.forward = doubled  # type: ignore[method-assign]
    x = torch.randn(4, 3).double()
    belief = optimizer.posterior(lambda: model(x).squeeze(-1))
    torch.testing.assert_close(belief.mean, doubled(x).squeeze(-1).detach())
    torch.testing.assert_close(belief.std, 2 * (x.square().sum(1) + 1).sqrt())
    assert model.forward is doubled


def test_a_closure_that_asks_for_the_posterior_itself() -> None:
    model = members.critic()
    optimizer = Kova(model)
    x = torch.randn(4, 3).double()

    def predict() -> Tensor:
        optimizer.posterior(lambda: model(x).squeeze(-1))
        return model(x).squeeze(-1)

    optimizer.step(predict, x[:, 0])
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_gradients_that_can_not_be_batched_are_taken_one_by_one() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    optimizer = Kova(model, covariance=covariance.LowRank(prior=covariance.FanIn(1.0)))
    states = torch.tensor([0, 1, 1, 4])
    before = model[0].weight.detach().clone()
    optimizer.step(lambda: model(states).squeeze(-1), torch.ones(4))
    changed = (model[0].weight != before).any(1).tolist()
    assert changed == [True, True, False, False, True]


def test_a_critic_called_twice_in_the_closure_is_right() -> None:
    """As in KTD's V(s) - gamma V(s')."""
    model = members.critic()
    x, x2 = torch.randn(5, 3).double(), torch.randn(5, 3).double()

    def predict() -> Tensor:
        return (model(x) - 0.9 * model(x2)).squeeze(-1)

    _, _, found, general = both(model, predict)
    assert isinstance(found, DenseJacobian)
    reference = jacobian(model, predict)
    torch.testing.assert_close(general.T @ general, reference.T @ reference, rtol=1e-10, atol=1e-12)


def test_the_general_path_works_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OTHERS["layer norm"].double()
    x = torch.randn(7, 3).double()
    *_, whole = both(model, lambda: model(x).squeeze(-1))
    monkeypatch.setattr("kova_rl.jacobian.CHUNK_ELEMENTS", 2 * len(flat(model)))
    *_, parts = both(model, lambda: model(x).squeeze(-1))
    assert torch.equal(whole, parts)


def test_the_modules_forward_is_left_as_it_was() -> None:
    model = members.critic()
    optimizer = Kova(model)
    x = torch.randn(5, 3).double()
    optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])

    def broken() -> Tensor:
        model(x)
        raise RuntimeError("in the closure")

    with pytest.raises(RuntimeError, match="in the closure"):
        optimizer.step(broken, x[:, 0])
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_hooks_of_the_user_still_run_and_gradients_are_not_touched() -> None:
    model, seen = members.critic(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(5, 3).double()
    model(x).sum().backward()
    kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    Kova(model).step(lambda: model(x).squeeze(-1), x[:, 0])
    assert len(seen) == 2
    assert all(torch.equal(a, p.grad) for a, p in zip(kept, model.parameters(), strict=True))
