"""KFAC against dense Fisher matrices that are written naively here, and against bad input."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from kova_rl.baselines import KFAC, KFACInfo
from kova_rl.baselines.kfac_factors import decomposed, natural_gradient
from kova_rl.errors import InvalidBatch, KovaError, NonFiniteBatch, StateMismatch

SIZES = st.integers(1, 5)


def network(seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2)).double()


class Gaussian(nn.Module):
    """A policy as Stable-Baselines3's: a mean and a free ``log_std``."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        self.mean = nn.Linear(3, actions)
        self.log_std = nn.Parameter(torch.linspace(-1, 0.5, actions))
        self.double()

    def forward(self, x: Tensor) -> Normal:
        return Normal(self.mean(x), self.log_std.exp())


def draw(outputs: Tensor | Normal, kind: str = "softmax") -> Tensor:
    """Log-likelihoods of samples from the model's own distribution."""
    if isinstance(outputs, Normal):
        return outputs.log_prob(outputs.sample()).sum(1)
    if kind == "softmax":
        found = Categorical(logits=outputs)
        return found.log_prob(found.sample())
    return Normal(outputs, 1.0).log_prob(Normal(outputs, 1.0).sample()).sum(1)


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


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


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


# ---------------------------------------------------------------------- staying finite


def test_factors_that_are_indefinite_by_rounding_cannot_turn_a_gradient() -> None:
    """Eigenvalues of -1e-3 times 1e3 would make the denominators negative, with damping 0.01."""
    memory = {"A": torch.diag(torch.tensor([-1e-3, 1.0])).double(), "G": torch.tensor([[1e3]]).double()}
    eigen = decomposed(memory)
    assert eigen["values_A"].tolist() == [0.0, 1.0]
    D = torch.ones(1, 2).double()
    torch.testing.assert_close(
        natural_gradient(D, eigen, 0.01), torch.tensor([[100.0, 1 / 1000.01]]).double()
    )
    eigen = decomposed({"A": memory["G"], "G": memory["A"]})
    assert eigen["values_G"].tolist() == [0.0, 1.0]


def test_five_thousand_updates_with_dead_units_and_empty_inputs_stay_finite() -> None:
    dtype = torch.float32
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    with torch.no_grad():
        net[0].bias[:4] = -100.0  # dead for all inputs
        net[2].bias[:] = -100.0  # and one whole layer: its successors' inputs and its gradients are zero
        net[2].bias[0] = 1.0
    optimizer = KFAC(net, refresh=5)
    kls = []
    for t in range(5000):
        x = torch.randn(5, 6, dtype=dtype) * 10 ** (t % 7 - 3)
        x[:, 3:] = 0.0
        if t % 11 == 0:
            x.zero_()
        with optimizer.recording():
            logits = net(x)
            log_likelihoods = draw(logits)
        optimizer.observe(log_likelihoods, retain_graph=True)
        optimizer.zero_grad()
        (-1e3 * logits.log_softmax(1)[:, t % 3].mean()).backward()
        before = weights(net)
        info = optimizer.step()
        kls.append(info.kl)
        assert float((weights(net) - before).norm()) <= math.sqrt(0.001 / 0.01) * (1 + 1e-4)
    assert torch.isfinite(weights(net)).all()
    assert max(kls) <= 0.001 * (1 + 1e-9)
    memory = optimizer.state_dict()["state"][0]
    tensors = [value for block in memory.values() for value in block.values() if isinstance(value, Tensor)]
    assert all(torch.isfinite(value).all() for value in tensors)
    assert all((block["values_A"] >= 0).all() and (block["values_G"] >= 0).all() for block in memory.values())


# ---------------------------------------------------------------------- state


def run(net: nn.Module, optimizer: KFAC, count: int) -> None:
    for _ in range(count):
        x = torch.randn(5, 3).double().to(next(net.parameters()).dtype)
        with optimizer.recording():
            out = net(x)
            log_likelihoods = draw(out)
        optimizer.observe(log_likelihoods, retain_graph=True)
        optimizer.zero_grad()
        (out.mean if isinstance(out, Normal) else out).square().mean().sub(log_likelihoods.mean()).backward()
        optimizer.step()


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return bool(one == two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [network, Gaussian])
def test_a_run_goes_on_to_the_bit_from_its_state_dict(
    build: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    net = build().to(dtype)
    optimizer = KFAC(net, lr=0.1, refresh=4)
    run(net, optimizer, 6)  # between two refreshes
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved_net, saved = torch.load(file, weights_only=True)
    other = build().to(dtype)
    loaded = KFAC(other)
    other.load_state_dict(saved_net)
    loaded.load_state_dict(saved)
    assert equal(loaded.state_dict(), optimizer.state_dict())
    assert loaded.param_groups[0]["refresh"] == 4
    for each, module in ((optimizer, net), (loaded, other)):
        torch.manual_seed(4)
        run(module, each, 7)
    assert torch.equal(weights(net), weights(other))
    assert equal(loaded.state_dict(), optimizer.state_dict())
    assert not equal(loaded.state_dict()["state"], saved["state"])  # a copy, which going on did not change


def test_a_copy_goes_on_by_itself() -> None:
    net = network()
    optimizer = KFAC(net)
    run(net, optimizer, 3)
    twin = copy.deepcopy(optimizer)
    before = weights(net)
    run(twin.module, twin, 3)
    assert torch.equal(weights(net), before)
    assert not torch.equal(weights(twin.module), before)


def test_states_of_others_are_refused_and_nothing_is_loaded() -> None:
    net = network()
    optimizer = KFAC(net)
    run(net, optimizer, 2)
    before = optimizer.state_dict()
    broken = copy.deepcopy(before)
    broken["state"][0]["0"]["A"] = broken["state"][0]["0"]["A"].float()
    missing = copy.deepcopy(before)
    del missing["state"][0]["2"]["momentum"]
    others = [
        torch.optim.SGD(net.parameters()).state_dict(),
        KFAC(nn.Linear(3, 2).double()).state_dict(),
        KFAC(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))).state_dict(),
        broken,
        missing,
    ]
    for other in others:
        with pytest.raises(StateMismatch):
            optimizer.load_state_dict(other)
    assert equal(optimizer.state_dict(), before)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lr", 0.0),
        ("lr", math.nan),
        ("momentum", 1.0),
        ("damping", 0.0),
        ("kl_clip", -1.0),
        ("decay", 1.0),
        ("refresh", 0),
        ("weight_decay", -0.1),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be"):
        KFAC(nn.Linear(2, 1), **{setting: value})


def test_modules_without_factors_are_refused_by_name() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"0\.weight belongs to a Conv2d.*nn\.Linear"):
        KFAC(conv)
    KFAC(conv[2])
    with pytest.raises(ValueError, match=r"1\.weight of Embedding must have at most 1000.*got 1001"):
        KFAC(nn.Sequential(nn.Linear(1, 1), nn.Embedding(1001, 1)))
    KFAC(nn.Sequential(nn.Linear(1, 1), nn.Embedding(1000, 1)))
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.weight = one.weight
    with pytest.raises(ValueError, match=r"0\.weight is shared with 1"):
        KFAC(nn.Sequential(one, two))
    with pytest.raises(ValueError, match="no trainable parameters"):
        KFAC(nn.Tanh())
    with pytest.raises(ValueError, match="the network itself"):
        KFAC(nn.Linear(1, 1).parameters())  # type: ignore[arg-type]


def test_frozen_parameters_and_other_layers_find_their_block() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.Linear(2, 2)).double()
    net[0].bias.requires_grad_(False)
    net[2].weight.requires_grad_(False)
    net[3].requires_grad_(False)
    optimizer = KFAC(net, lr=0.1)
    sizes = {name: len(block["A"]) for name, block in optimizer.state_dict()["state"][0].items()}
    assert sizes == {"0": 3, "1.weight": 1, "1.bias": 1, "2.bias": 1}
    frozen, before = [p.clone() for p in net.parameters() if not p.requires_grad], weights(net)
    run(net, optimizer, 3)
    assert all(
        torch.equal(p, q)
        for p, q in zip((p for p in net.parameters() if not p.requires_grad), frozen, strict=True)
    )
    moved = (weights(net) - before).split([p.numel() for p in net.parameters()])
    assert all(bool(m.any()) == p.requires_grad for m, p in zip(moved, net.parameters(), strict=True))


def test_steps_out_of_order_say_what_to_do() -> None:
    net, x = network(), torch.randn(4, 3).double()
    optimizer = KFAC(net)
    with pytest.raises(KovaError, match=r"call loss\.backward"):
        optimizer.step()
    net(x).sum().backward()
    before = weights(net)
    with pytest.raises(KovaError, match=r"observe\(\) of 0.*optimizer\.recording"):
        optimizer.step()
    with pytest.raises(KovaError, match=r"optimizer\.recording"):
        optimizer.observe(draw(net(x)))
    with (
        pytest.raises(KovaError, match=r"recording\(\) inside"),
        optimizer.recording(),
        optimizer.recording(),
    ):
        pass
    with pytest.raises(KovaError, match="a second KFAC"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert torch.equal(weights(net), before)
    assert not any(layer._forward_hooks for layer in net)


def test_calls_that_have_no_factors_are_refused() -> None:
    layer, x = nn.Linear(3, 3).double(), torch.randn(4, 3).double()
    optimizer = KFAC(layer)
    with pytest.raises(InvalidBatch, match="linear was called twice"), optimizer.recording():
        layer(layer(x))
    with pytest.raises(InvalidBatch, match=r"got shape \(2, 4, 3\)"), optimizer.recording():
        layer(torch.stack([x, x]))
    for log_likelihoods, match in (
        (lambda out: out.sum(1)[:3], "4 samples, log_likelihoods has 3"),
        (lambda out: out, r"must be \(N,\).*got shape \(4, 3\)"),
        (lambda out: out.sum(1).detach(), "requires_grad=False"),
        (lambda out: torch.relu_(out).sum(1), "inplace=False"),
    ):
        with optimizer.recording():
            found = log_likelihoods(layer(x))
        with pytest.raises(InvalidBatch, match=match):
            optimizer.observe(found)
    with optimizer.recording(), torch.no_grad():
        layer(x)
    with pytest.raises(InvalidBatch, match=r"torch\.no_grad"):
        optimizer.observe(draw(layer(x)))
    assert optimizer.state_dict()["state"][0]["linear"]["observed"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_batches_that_are_not_finite_change_nothing(bad: float) -> None:
    net = network(activation=nn.ReLU)
    optimizer = KFAC(net)
    run(net, optimizer, 2)
    before, state = weights(net), optimizer.state_dict()
    with optimizer.recording():
        log_likelihoods = draw(net(torch.randn(4, 3).double()))
    with pytest.raises(NonFiniteBatch, match="log-likelihood"):
        optimizer.observe(log_likelihoods * torch.tensor([1.0, bad, 1.0, 1.0]))
    with optimizer.recording():  # finite log-likelihoods of an input whose square overflows
        out = net(torch.full((4, 3), 1e200, dtype=torch.float64))
    with pytest.raises(NonFiniteBatch, match="factors of 0"):
        optimizer.observe((out * 1e-200).sum(1))
    net[2].bias.grad[1] = bad
    with pytest.raises(NonFiniteBatch, match="gradient of 2"):
        optimizer.step()
    net[2].bias.grad[1] = 1e300
    with pytest.raises(NonFiniteBatch, match="overflow"):
        optimizer.step()
    assert torch.equal(weights(net), before)
    assert equal(optimizer.state_dict(), state)
    run(net, optimizer, 2)
    assert torch.isfinite(weights(net)).all()
