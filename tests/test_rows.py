"""What a graph of autograd proves about rows is true, and what it can't prove is compared by numbers."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import InvalidBatch, Kova, covariance, evolution, observation
from kova_rl.jacobian import JacobianOf
from kova_rl.linear import LinearJacobian
from kova_rl.parameters import Parameters
from tests import members
from tests.oracle import jacobian

N = 4
"""As many rows as columns, so that no shape tells them apart."""


class Net(nn.Module):
    """Four inputs, four hidden units, four outputs, with any function in between and at the end."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.middle = nn.Linear(N, N), nn.Linear(N, N), middle

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.middle(self.one(x)))
        return out


def proven(model: nn.Module, predict: Callable[[], Tensor]) -> bool:
    """Whether the graph alone proves that rows are kept apart."""
    of = JacobianOf(model, Parameters(model, 1.0))
    predictions, calls = of._recorded(predict)
    layers = of._layers(calls, len(predictions))
    assert layers is not None
    return of._keeps_rows(predictions, layers)


ROWS = torch.arange(N)
INDEX = torch.tensor([2, 0, 3, 1])
ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "column": lambda q: q[:, 1],
    "from the end": lambda q: q[..., -1],
    "gather": lambda q: q.gather(1, INDEX[:, None]).squeeze(1),
    "arange": lambda q: q[ROWS, INDEX],
    "sum": lambda q: q.sum(1),
    "mean": lambda q: q.mean(-1),
    "max": lambda q: q.max(1).values,
    "amin": lambda q: q.amin(-1),
    "logsumexp": lambda q: q.logsumexp(1),
    "dueling": lambda q: (q[:, :1] + q[:, 1:] - q[:, 1:].mean(1, keepdim=True)).max(1).values,
    "split": lambda q: q.split(2, 1)[1].sum(-1),
    "flat": lambda q: q.sum(1, keepdim=True).flatten(),
    "scaled": lambda q: 3 * q.sum(1) / 2 + 1,
    "double": lambda q: q.double().sum(1),
    "probabilities": lambda q: (q.softmax(-1) * q).sum(1),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_critics_do_is_proven_without_a_comparison(name: str) -> None:
    model = Net(nn.functional.silu)
    x = torch.randn(N, N)
    assert proven(model, lambda: ENDINGS[name](model(x)))


@pytest.mark.parametrize(
    "kind",
    [nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Mish, nn.SELU,
     nn.Hardtanh, nn.Softsign, nn.Dropout, nn.Identity],
)  # fmt: skip
def test_usual_activations_are_proven(kind: type[nn.Module]) -> None:
    model = Net(kind())
    x = torch.randn(N, N)
    assert proven(model, lambda: model(x).sum(1))


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda q: q.flip(0),
    "permuted": lambda q: q[INDEX],
    "picked from elsewhere": lambda q: q[INDEX, ROWS].unsqueeze(1) * q,
    "picked by a table": lambda q: q[ROWS, ROWS[:, None].expand(N, N)],
    "transposed": lambda q: q.T,
    "permuted dimensions": lambda q: q.permute(1, 0),
    "mixed by a matrix": lambda q: torch.eye(N).roll(1, 0).to(q) @ q,
    "less the mean of the batch": lambda q: q - q.mean(0),
    "sum of a batch": lambda q: q + q.sum(),
    "softmax over rows": lambda q: q.softmax(0),
    "softmax over rows from the end": lambda q: q.softmax(-2),
    "gather over rows": lambda q: q.gather(0, INDEX[:, None].expand(N, N)),
    "rows turned into columns": lambda q: q + q.sum(1),
    "columns turned into rows": lambda q: q * q.sum(1).unsqueeze(0),
    "both ways": lambda q: (q.sum(1) + q.sum(1, keepdim=True)) * q,
    "first row for all": lambda q: q + q[0],
    "cumulated": lambda q: q.cumsum(0),
    "overwritten row": lambda q: q.clone().index_copy(0, torch.tensor([0]), q[1:2]),
    "reshaped": lambda q: q.reshape(2, 2, N).transpose(0, 1).reshape(N, N),
    "stacked": lambda q: torch.stack(q.unbind(1), 0),
    "normalised over the batch": lambda q: nn.functional.batch_norm(q, None, None, training=True),
    "covariance": lambda q: q @ q.T,
    "outer": lambda q: torch.einsum("ni,mi->nm", q, q),
}
KEEPING: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "residual": lambda q: q + torch.sin(q),
    "gate": lambda q: q * q.softmax(1),
    "centred": lambda q: q - q.mean(1, keepdim=True),
    "picked": lambda q: q[ROWS, INDEX].unsqueeze(1) * q,
    "reversed columns": lambda q: torch.cat([q[:, 2:], q[:, :2]], 1),
    "reshaped": lambda q: q.reshape(N, 2, 2).sum(1).repeat_interleave(2, 1),
    "squeezed": lambda q: q.unsqueeze(-1).squeeze(-1),
    "evaluation": lambda q: nn.functional.batch_norm(q, q[0].detach(), q[1].detach() ** 2),
}
STEPS = {**MIXING, **{f"{name}, rows kept": step for name, step in KEEPING.items()}}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("place", ["between", "after"])
def test_nothing_that_mixes_rows_is_proven(name: str, place: str) -> None:
    between = place == "between"
    model = Net(MIXING[name] if between else torch.tanh)
    x = torch.randn(N, N)
    assert not proven(model, lambda: (model(x) if between else MIXING[name](model(x))).sum(1))


@given(
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    st.sampled_from(sorted(ENDINGS)),
)
@settings(max_examples=300)
def test_a_proof_is_never_wrong(between: list[str], after: list[str], ending: str) -> None:
    def run(names: list[str], q: Tensor) -> Tensor:
        for name in names:
            q = STEPS[name](q)
        return q

    model = Net(lambda q: run(between, q)).double()
    x = torch.randn(N, N, generator=torch.Generator().manual_seed(1)).double()

    def predict() -> Tensor:
        return ENDINGS[ending](run(after, model(x)))

    if proven(model, predict):
        of = JacobianOf(model, Parameters(model, 1.0))
        predictions, calls = of._recorded(predict)
        layers = of._layers(calls, N)
        assert layers is not None
        fast = of._fast(predictions, layers, torch.float64, keep_graph=True).dense()
        torch.testing.assert_close(
            fast, of._general(predictions, torch.float64).dense(), rtol=1e-9, atol=1e-12
        )


def test_a_weight_that_is_used_elsewhere_too_is_not_proven() -> None:
    model = Net(torch.tanh)
    x = torch.randn(N, N)
    assert not proven(model, lambda: model(x).sum(1) * model.two.bias)
    assert not proven(model, lambda: model(x).sum(1) * model.one.weight.sum())
    assert not proven(model, lambda: (model(x) + nn.functional.linear(x, model.two.weight)).sum(1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_finds_a_weight_that_is_used_elsewhere_too(copied: Callable[[Kova], Kova]) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(8, 3), nn.Linear(3, 1)
    optimizer = Kova(model, covariance=covariance.Full(), evolution=evolution.Stationary())
    for _ in range(4):  # the next call that is compared with autograd anyhow is the eighth
        optimizer.step(lambda: model(x).squeeze(-1), torch.ones(8))
    again = copied(optimizer)

    def mixed(module: nn.Linear) -> Tensor:
        out: Tensor = module(x).squeeze(-1) + torch.cumsum(module.weight.expand(8, 3), 0)[:, 0].cos()
        return out

    for each in (optimizer, again):
        assert isinstance(each.module, nn.Linear)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            each.step(lambda m=each.module: mixed(m), torch.ones(8))
    for one, other in zip(model.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_no_tracked_weight_lies_behind_may_mix_as_it_likes() -> None:
    """As convolutions or a batch normalisation below a head that alone is filtered."""
    body, scale = nn.Sequential(nn.Linear(N, N), nn.BatchNorm1d(N), nn.Tanh()), nn.Parameter(torch.ones(()))
    head = nn.Linear(N, 1)
    x = torch.randn(N, N)
    assert proven(head, lambda: head(body(x).flip(0)).squeeze(-1) * scale.exp())


def every(k: int, model: nn.Module, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """A closure that mixes rows at every k-th call."""
    calls = 0

    def predict() -> Tensor:
        nonlocal calls
        calls += 1
        out: Tensor = model(x).squeeze(-1)
        return mix(out) if calls % k == 0 else out

    return predict


@pytest.mark.parametrize(
    ("k", "mix"),
    [
        (3, lambda out: out.flip(0)),
        (3, lambda out: out[INDEX]),
        (3, lambda out: torch.eye(N).roll(1, 0) @ out),
        (1025, lambda out: out - out.mean()),
    ],
)
def test_a_closure_that_mixes_rows_at_times_is_found_at_the_call(
    k: int, mix: Callable[[Tensor], Tensor]
) -> None:
    model = members.critic(dtype=torch.float32)
    x = torch.randn(N, 3)
    of = JacobianOf(model, Parameters(model, 1.0))
    predict = every(k, model, x, mix)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for _ in range(k - 1):
            assert isinstance(of(predict, torch.float32)[1], LinearJacobian)
    with pytest.warns(UserWarning, match="falling back"), torch.no_grad():
        _, found = of(predict, torch.float32)
    reference = jacobian(model, lambda: mix(model(x).squeeze(-1)))
    torch.testing.assert_close(found.gram(), reference.T @ reference, rtol=1e-4, atol=1e-5)


def test_a_permutation_that_changes_from_call_to_call_is_found_though_the_graph_does_not_change() -> None:
    model = members.critic(dtype=torch.float32)
    x = torch.randn(N, 3)
    order = [ROWS, ROWS, INDEX]
    of = JacobianOf(model, Parameters(model, 1.0))
    with torch.no_grad():
        for index in order[:2]:
            assert isinstance(of(lambda i=index: model(x).squeeze(-1)[i], torch.float32)[1], LinearJacobian)
        with pytest.warns(UserWarning, match="falling back"):
            of(lambda: model(x).squeeze(-1)[order[2]], torch.float32)


def test_a_submodule_put_into_training_mode_is_found_at_the_call() -> None:
    norm = nn.BatchNorm1d(6, affine=False).eval()
    model = nn.Sequential(nn.Linear(3, 6), norm, nn.Tanh(), nn.Linear(6, 1))
    x = torch.randn(8, 3)
    optimizer = Kova(model, 1.0, covariance.LowRank(), evolution.Stationary(), observation.BatchSize())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):  # the next comparison of numbers would be at the fourth call
            optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
        optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
    norm.train()
    with pytest.warns(UserWarning, match="falling back") as found:
        optimizer.step(lambda: model(x).squeeze(-1), x[:, 0])
    assert found[0].filename == __file__, "the warning points at the user's own line"


def test_an_input_that_the_closure_overwrites_is_refused_and_nothing_changes() -> None:
    model = members.critic(dtype=torch.float32)
    optimizer = Kova(model)
    x, buffer = torch.randn(8, 3), torch.empty(8, 3)

    def predict() -> Tensor:
        buffer.copy_(x)  # before it is read: harmless
        out: Tensor = model(buffer).squeeze(-1)
        if spoil:
            buffer.zero_()
        return out

    spoil = False
    for _ in range(5):
        optimizer.step(predict, x[:, 0])
    spoil = True
    before = [p.detach().clone() for p in model.parameters()]
    for act in (lambda: optimizer.step(predict, x[:, 0]), lambda: optimizer.posterior(predict)):
        with pytest.raises(InvalidBatch, match=r"overwrote the input of Linear.*clone"):
            act()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
