"""Critics of other kinds than a stack of linear layers: compiled, recurrent, convolutional, shared."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kova_rl import InvalidBatch, Kova, covariance

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].sin()


def network(hidden: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def learned(optimizer: Kova, predict: Callable[[], Tensor], steps: int = 30) -> tuple[float, float]:
    """The loss at the first and at the last step."""
    losses = [optimizer.step(predict, Y).loss for _ in range(steps)]
    return losses[0], losses[-1]


@pytest.mark.parametrize("tracked", ["plain", "compiled"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_critic_learns_what_the_plain_one_does(tracked: str, backend: str) -> None:
    plain, twin = network(), network()
    compiled = torch.compile(twin, backend=backend)
    one, other = Kova(plain), Kova(twin if tracked == "plain" else compiled)
    for _ in range(5):
        one.step(lambda: plain(X).squeeze(-1), Y)
        other.step(lambda: compiled(X).squeeze(-1), Y)
    for mine, its in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(its, mine, rtol=1e-4, atol=1e-5)


def test_compiling_changes_no_names() -> None:
    plain, twin = network(), network()
    compiled = torch.compile(twin, backend="eager")
    named = {"0": 0.1, "2": 1.0}
    saved = Kova(compiled, prior=named)
    saved.step(lambda: compiled(X).squeeze(-1), Y)
    loaded = Kova(plain, prior=named)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded.variances(), saved.variances())


class Recurrent(nn.Module):
    """The value after a sequence, or after each of its steps."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.core, self.head = kind(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, sequences: Tensor) -> Tensor:
        values: Tensor = self.head(self.core(sequences)[0]).squeeze(-1)
        return values


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_critic_is_filtered_whole(kind: type[nn.Module]) -> None:
    critic, sequences = Recurrent(kind), X[:, None].repeat(1, 4, 1)
    optimizer = Kova(critic)
    assert isinstance(optimizer.covariance, covariance.LowRank)
    with pytest.raises(InvalidBatch, match="one prediction a sample"):
        optimizer.step(lambda: critic(sequences), Y)
    first, last = learned(optimizer, lambda: critic(sequences)[:, -1])
    assert last < 0.1 * first
    every = optimizer.step(lambda: critic(sequences).flatten(), Y[:, None].expand(-1, 4).flatten())
    assert every.loss < first
    assert bool((optimizer.posterior(lambda: critic(sequences)[:, -1]).std > 0).all())


def test_the_head_of_a_recurrent_critic_can_be_filtered_alone() -> None:
    critic, sequences = Recurrent(nn.LSTM), X[:, None].repeat(1, 4, 1)
    core = copy.deepcopy(critic.core.state_dict())
    first, last = learned(Kova(critic.head), lambda: critic(sequences)[:, -1])
    assert last < 0.7 * first
    assert all(torch.equal(core[name], value) for name, value in critic.core.state_dict().items())


def test_a_convolutional_critic_is_filtered_whole() -> None:
    torch.manual_seed(0)
    pictures = X[:, :1, None, None] * torch.rand(16, 1, 6, 6)
    critic = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 1))
    optimizer = Kova(critic)
    assert isinstance(optimizer.covariance, covariance.LowRank)
    first, last = learned(optimizer, lambda: critic(pictures).squeeze(-1))
    assert last < 0.1 * first


def test_with_a_shared_trunk_the_head_is_filtered_and_the_rest_is_adams() -> None:
    torch.manual_seed(0)
    trunk, policy, head = nn.Sequential(nn.Linear(3, 16), nn.Tanh()), nn.Linear(16, 2), nn.Linear(16, 1)
    optimizer = Kova(head)
    adam = torch.optim.Adam([*trunk.parameters(), *policy.parameters()], lr=1e-3)
    before = copy.deepcopy(trunk.state_dict())
    first, last = learned(optimizer, lambda: head(trunk(X)).squeeze(-1))
    assert last < 0.5 * first
    assert all(torch.equal(before[name], value) for name, value in trunk.state_dict().items())
    assert all(p.grad is None for p in (*trunk.parameters(), *head.parameters()))
    (policy(trunk(X)).square().mean() + (head(trunk(X)).squeeze(-1) - Y).square().mean()).backward()
    weight = head.weight.detach().clone()
    adam.step()
    assert torch.equal(head.weight, weight)
    assert not torch.equal(before["0.weight"], trunk[0].weight)


def test_autocast_is_for_the_network_and_not_for_the_filter() -> None:
    critic = network()
    optimizer = Kova(critic)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, last = learned(optimizer, lambda: critic(X).squeeze(-1))
    assert last < 0.1 * first
    assert optimizer.variances().dtype == torch.float32
    with pytest.raises(ValueError, match=r"weights are torch.bfloat16.*dtype=torch.float32"):
        Kova(network().bfloat16())
