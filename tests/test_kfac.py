"""K-FAC's factors and steps against dense matrices."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl.baselines import KFAC, KFACInfo
from tests.kfac_models import Gaussian, draw, network, weights

SIZES = st.integers(1, 5)


def observe(optimizer: KFAC, x: Tensor, kind: str = "softmax") -> None:
    with optimizer.recording():
        log_likelihoods = draw(optimizer.module(x), kind)
    optimizer.observe(log_likelihoods)


def factors(optimizer: KFAC, name: str) -> tuple[Tensor, Tensor]:
    memory = optimizer.state_dict()["state"][0][name]
    return memory["A"], memory["G"]


def scores(module: nn.Module, log_likelihoods: Tensor) -> Tensor:
    """One row a sample: the gradient of its log-likelihood, parameter by parameter."""
    rows = []
    for one in log_likelihoods:
        parts = torch.autograd.grad(one, list(module.parameters()), retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def gradient(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def dense(A: Tensor, G: Tensor, bias: bool = True) -> Tensor:
    """The block's Fisher matrix in the order of the parameters: the weight by rows, then the bias."""
    whole = torch.kron(G, A)
    if not bias:
        return whole
    columns, rows = len(A), len(G)
    index = torch.arange(rows * columns).view(rows, columns)
    order = torch.cat([index[:, :-1].flatten(), index[:, -1]])
    return whole[order][:, order]


# ---------------------------------------------------------------------- the factors


@pytest.mark.parametrize("kind", ["softmax", "gaussian"])
@given(inputs=SIZES, outputs=SIZES, bias=st.booleans(), seed=st.integers(0, 99))
def test_one_sample_gives_the_exact_empirical_fisher(
    kind: str, inputs: int, outputs: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=bias).double()
    optimizer = KFAC(layer)
    with optimizer.recording():
        log_likelihoods = draw(layer(torch.randn(1, inputs).double()), kind)
    score = scores(layer, log_likelihoods)
    optimizer.observe(log_likelihoods)
    torch.testing.assert_close(dense(*factors(optimizer, "linear"), bias), score.T @ score)


@given(batch=st.integers(1, 33), inputs=SIZES, outputs=SIZES, seed=st.integers(0, 99))
def test_a_batch_gives_the_naive_averages_in_every_layer(
    batch: int, inputs: int, outputs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, outputs)).double()
    x, optimizer = torch.randn(batch, inputs).double(), KFAC(net)
    with optimizer.recording():
        log_likelihoods = draw(net(x))
    rows = scores(net, log_likelihoods)
    optimizer.observe(log_likelihoods)
    hidden = net[1](net[0](x)).detach()
    biases = rows.split([p.numel() for p in net.parameters()], 1)[1::2]  # a bias' gradient is the output's
    for name, a, g in zip("02", (x, hidden), biases, strict=True):
        ones = torch.cat([a, torch.ones(batch, 1).double()], 1)
        A, G = factors(optimizer, name)
        torch.testing.assert_close(A, sum(torch.outer(v, v) for v in ones) / batch)
        torch.testing.assert_close(G, sum(torch.outer(v, v) for v in g) / batch)
        assert torch.equal(A, A.T)
        assert torch.equal(G, G.T)


def test_many_samples_of_a_unit_gaussian_give_the_exact_fisher_of_a_linear_layer() -> None:
    """F = mean a a' (x) I, whatever the inputs: the Kronecker product is no approximation there."""
    layer, x = nn.Linear(3, 2).double(), torch.randn(7, 3).double()
    optimizer = KFAC(layer, decay=0.9999)
    for _ in range(400):
        observe(optimizer, x.repeat(20, 1), "gaussian")
    ones = torch.cat([x, torch.ones(7, 1).double()], 1)
    exact = dense(ones.T @ ones / 7, torch.eye(2).double())
    found = dense(*factors(optimizer, "linear"))
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0.0)
    assert (exact - torch.diag(exact.diagonal())).abs().max() > 0.1  # so that the tolerance means something


def test_many_samples_of_a_softmax_give_its_closed_form() -> None:
    """With one input, G is the expected Fisher of the logits, diag(p) - p p'."""
    layer, x = nn.Linear(2, 3).double(), torch.randn(1, 2).double()
    optimizer = KFAC(layer, decay=0.9999)
    for _ in range(200):
        observe(optimizer, x.expand(100, 2))
    p = layer(x).softmax(1)[0].detach()
    torch.testing.assert_close(
        factors(optimizer, "linear")[1], torch.diag(p) - torch.outer(p, p), atol=0.01, rtol=0.0
    )


def test_the_full_block_of_log_std_is_the_naive_one_and_tends_to_two() -> None:
    policy, x = Gaussian(), torch.randn(301, 3).double()  # more than two chunks, the last one odd
    optimizer = KFAC(policy, decay=0.999)
    with optimizer.recording():
        log_likelihoods = draw(policy(x))
    size = policy.log_std.numel()
    score = scores(policy, log_likelihoods)
    names = [name for name, _ in policy.named_parameters()]
    assert names[0] == "log_std"
    optimizer.observe(log_likelihoods)
    torch.testing.assert_close(factors(optimizer, "log_std")[1], score[:, :size].T @ score[:, :size] / 301)
    for _ in range(150):
        observe(optimizer, x)
    torch.testing.assert_close(
        factors(optimizer, "log_std")[1], 2 * torch.eye(2).double(), atol=0.1, rtol=0.0
    )


@given(decay=st.floats(0.0, 0.999), count=st.integers(1, 8))
def test_the_average_weighs_t_batches_by_their_age(decay: float, count: int) -> None:
    layer = nn.Linear(2, 1, bias=False).double()
    optimizer = KFAC(layer, decay=decay)
    batches = [torch.randn(3, 2).double() for _ in range(count)]
    for x in batches:
        observe(optimizer, x, "gaussian")
    ages = torch.tensor([decay ** (count - 1 - i) for i in range(count)]).double()
    expected = sum(w * x.T @ x / 3 for w, x in zip(ages / ages.sum(), batches, strict=True))
    torch.testing.assert_close(factors(optimizer, "linear")[0], expected, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------- the step


@given(batch=st.integers(1, 9), inputs=SIZES, outputs=SIZES, bias=st.booleans(), seed=st.integers(0, 99))
def test_the_step_is_a_dense_solve(batch: int, inputs: int, outputs: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=bias).double()
    optimizer = KFAC(layer, lr=0.3, momentum=0.0, damping=0.05, kl_clip=1e9)
    x = torch.randn(batch, inputs).double()
    observe(optimizer, x)
    layer(x).pow(3).mean().backward()
    before, g = weights(layer), gradient(layer)
    info = optimizer.step()
    fisher = dense(*factors(optimizer, "linear"), bias)
    natural = torch.linalg.solve(fisher + 0.05 * torch.eye(len(g)).double(), g)
    torch.testing.assert_close(weights(layer), before - 0.3 * natural)
    assert info == optimizer.info
    assert info == KFACInfo(1.0, pytest.approx(0.09 * float(g @ natural)))


def test_a_full_block_steps_by_a_dense_solve_too() -> None:
    policy, x = Gaussian(), torch.randn(20, 3).double()
    optimizer = KFAC(policy, lr=0.5, momentum=0.0, kl_clip=1e9)
    observe(optimizer, x)
    policy(x).scale.square().sum().backward()
    before, g = policy.log_std.detach().clone(), policy.log_std.grad
    assert g is not None
    optimizer.step()
    F = factors(optimizer, "log_std")[1] + 0.01 * torch.eye(2).double()
    torch.testing.assert_close(policy.log_std.detach(), before - 0.5 * torch.linalg.solve(F, g))
    assert policy.mean.weight.grad is None  # a block without gradient stays where it is


@given(scale=st.floats(1e-4, 1e6), kl_clip=st.floats(1e-5, 1.0))
def test_the_quadratic_kl_of_a_step_reaches_the_clip_and_no_more(scale: float, kl_clip: float) -> None:
    net, x = network(), torch.randn(9, 3).double()
    optimizer = KFAC(net, lr=0.25, momentum=0.0, kl_clip=kl_clip)
    observe(optimizer, x)
    net(x).square().mean().mul(scale).backward()
    before = weights(net)
    info = optimizer.step()
    change = weights(net) - before
    blocks = [dense(*factors(optimizer, name)) for name in "02"]
    F = torch.block_diag(*blocks) + 0.01 * torch.eye(len(change)).double()
    quadratic = float(change @ F @ change)
    assert quadratic <= kl_clip * (1 + 1e-6)
    assert quadratic == pytest.approx(info.kl, rel=1e-6)
    assert 0 < info.nu <= 1
    if info.nu < 1:
        assert quadratic == pytest.approx(kl_clip, rel=1e-6)
    unclipped = 0.25**2 * float(gradient(net) @ torch.linalg.solve(F, gradient(net)))
    assert (info.nu < 1) == (unclipped > kl_clip)


def test_the_kl_is_that_of_the_policy() -> None:
    """Twice the KL from the old to the new policy, up to the damping and the third order."""
    layer, x = nn.Linear(2, 3).double(), torch.randn(1, 2).double()
    optimizer = KFAC(layer, momentum=0.0, damping=1e-5, kl_clip=1e-4, decay=0.9999)
    for _ in range(100):
        observe(optimizer, x.expand(200, 2))
    before = layer(x).log_softmax(1).detach()
    before_loss = -before[0, 0]
    (-layer(x).log_softmax(1)[0, 0]).backward()
    info = optimizer.step()
    after = layer(x).log_softmax(1).detach()
    assert info.nu < 1
    assert -after[0, 0] < before_loss
    assert 2 * float((before.exp() * (before - after)).sum()) == pytest.approx(1e-4, rel=0.1)


def test_momentum_averages_the_clipped_natural_gradients() -> None:
    torch.manual_seed(1)
    net = network()
    plain = copy.deepcopy(net)
    optimizer, single = KFAC(net, lr=0.1, refresh=1), KFAC(plain, lr=0.1, momentum=0.0, refresh=1)
    buffer = torch.zeros_like(weights(net))
    for _ in range(6):
        x = torch.randn(5, 3).double()
        plain.load_state_dict(net.state_dict())
        state = torch.get_rng_state()
        observe(optimizer, x)
        torch.set_rng_state(state)
        observe(single, x)
        for each, module in ((optimizer, net), (single, plain)):
            each.zero_grad()
            module(x).square().mean().backward()
        before = weights(net)
        optimizer.step()
        single.step()
        buffer = 0.9 * buffer + (before - weights(plain))
        torch.testing.assert_close(weights(net), before - 0.1 * buffer)


def test_momentum_cannot_leave_the_trust_region() -> None:
    """A gradient that never turns: the step tends to the clip, from below."""
    layer, x = nn.Linear(3, 1).double(), torch.randn(50, 3).double()
    optimizer = KFAC(layer, decay=0.0, refresh=10**9)
    observe(optimizer, x, "gaussian")
    F = dense(*factors(optimizer, "linear")) + 0.01 * torch.eye(4).double()
    for t in range(100):
        optimizer.zero_grad()
        layer(x).sum().backward()
        before = weights(layer)
        optimizer.step()
        change = weights(layer) - before
        assert float(change @ F @ change) == pytest.approx(0.001 * (1 - 0.9 ** (t + 1)) ** 2, rel=1e-6)


def test_weight_decay_is_the_gradient_of_the_penalty() -> None:
    net = network()
    other, x = copy.deepcopy(net), torch.randn(6, 3).double()
    decayed, penalised = KFAC(net, weight_decay=0.1, kl_clip=10.0), KFAC(other, kl_clip=10.0)
    for optimizer, module, weight in ((decayed, net, 0.0), (penalised, other, 0.05)):
        torch.manual_seed(0)
        observe(optimizer, x)
        (module(x).sum() + weight * sum(p.square().sum() for p in module.parameters())).backward()
        optimizer.step()
    torch.testing.assert_close(weights(net), weights(other))


def test_eigenvectors_are_refreshed_when_they_should() -> None:
    net, optimizer = (net := network()), KFAC(net, refresh=3)
    seen = []
    for _ in range(7):
        x = torch.randn(5, 3).double()
        observe(optimizer, x)
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        seen.append(optimizer.state_dict()["state"][0]["0"]["values_A"])
    changed = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changed == [False, False, True, False, False, True]


def test_it_minimises_better_than_gradient_descent() -> None:
    """A badly scaled least squares, where the Fisher matrix is the Hessian."""
    scales = torch.tensor([10.0, 1.0, 0.1]).double()
    x = torch.randn(200, 3).double() * scales
    y = x @ (torch.ones(3).double() / scales)
    losses = {}
    for name in ("kfac", "sgd"):
        torch.manual_seed(0)
        layer = nn.Linear(3, 1).double()
        kfac = KFAC(layer, kl_clip=10.0, damping=1e-4)
        sgd = torch.optim.SGD(layer.parameters(), lr=0.005)
        for _ in range(150):
            observe(kfac, x, "gaussian")
            kfac.zero_grad()
            loss = 0.5 * (layer(x).squeeze(1) - y).square().mean()
            loss.backward()
            (kfac if name == "kfac" else sgd).step()
        losses[name] = loss.item()
    assert losses["kfac"] < 1e-3 * losses["sgd"]
