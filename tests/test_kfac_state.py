"""K-FAC stays finite, goes on from its state, and refuses bad input."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from kova_rl.baselines import KFAC
from kova_rl.baselines.kfac_factors import decomposed, natural_gradient
from kova_rl.errors import InvalidBatch, KovaError, NonFiniteBatch, StateMismatch
from tests.kfac_models import Gaussian, draw, network, weights

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


def test_many_updates_with_dead_units_and_empty_inputs_stay_finite() -> None:
    dtype = torch.float32
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    with torch.no_grad():
        net[0].bias[:4] = -100.0  # dead for all inputs
        net[2].bias[:] = -100.0  # and one whole layer: its successors' inputs and its gradients are zero
        net[2].bias[0] = 1.0
    optimizer = KFAC(net, decay=0.97, refresh=5)  # 45 times as many updates as it remembers
    kls = []
    for t in range(1500):
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
