"""What people do by habit of another optimizer is answered at once, by one sentence that says what to do."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kova_rl import InvalidBatch, Kova, KovaError, covariance, evolution, observation
from tests import members

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].sin()


def network(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 1))


def loss_of(critic: nn.Module) -> Tensor:
    return nn.functional.mse_loss(critic(X).squeeze(-1), Y)


def torch_closure(critic: nn.Module) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = loss_of(critic)
        loss.backward()
        return loss

    return closure


def after_backward(critic: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss_of(critic).backward()
    optimizer.step()


def with_a_scaler(critic: nn.Module, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(critic)).backward()
    scaler.step(optimizer)


CALLS: dict[str, tuple[Callable[[nn.Module, Any], object], str]] = {
    "nothing": (lambda c, o: o.step(), "needs the predictions and their targets: step(lambda: critic(obs)"),
    "after a backward": (after_backward, "leave out zero_grad(), loss.backward() and a GradScaler"),
    "a scaler": (with_a_scaler, "leave out zero_grad(), loss.backward() and a GradScaler"),
    "a tensor": (
        lambda c, o: o.step(c(X).squeeze(-1), Y),
        "predict must be a function that calls the critic, got Tensor: step(lambda: critic(obs)",
    ),
    "the critic itself": (
        lambda c, o: o.step(c, Y),
        "predict must be a function that calls the critic, got Sequential: step(lambda: critic(obs)",
    ),
    "no squeeze": (
        lambda c, o: o.step(lambda: c(X), Y),
        "predict() must return one prediction a sample, shape (N,), got shape (16, 1): use .squeeze(-1)",
    ),
    "a sequence": (
        lambda c, o: o.step(lambda: c(X.reshape(4, 4, 3)).squeeze(-1), Y.reshape(4, 4)),
        "got shape (4, 4): pick one output a sample, as with .gather(1, actions).squeeze(1); or, if each has "
        "a target, as the steps of a sequence have, flatten both",
    ),
    "targets in a column": (
        lambda c, o: o.step(lambda: c(X).squeeze(-1), Y[:, None]),
        "shape (16,), got shape (16, 1): use targets.flatten()",
    ),
    "targets of NumPy": (
        lambda c, o: o.step(lambda: c(X).squeeze(-1), Y.numpy()),
        "targets must be a tensor, got ndarray: use torch.as_tensor(targets)",
    ),
    "the posterior of a tensor": (
        lambda c, o: o.posterior(c(X).squeeze(-1)),
        "got Tensor: posterior(lambda: critic(obs)",
    ),
    "the posterior of the critic itself": (
        lambda c, o: o.posterior(c),
        "got Sequential: posterior(lambda: critic(obs)",
    ),
    "a closure of torch": (
        lambda c, o: o.step(torch_closure(c)),
        "targets are missing: step(lambda: critic(obs).squeeze(-1), targets). The closure returns the",
    ),
    "targets alone": (lambda c, o: o.step(targets=Y), "predict must be a function"),
    "a loss": (lambda c, o: o.step(torch_closure(c), Y), "got a single number. If that is a loss"),
}


def test_a_scaler_that_has_no_gradients_of_the_critic_is_told_why() -> None:
    """Torch would say "No inf checks were recorded for this optimizer", which is no help."""
    critic, actor = network(), network()
    optimizer = Kova(critic)
    before = copy.deepcopy(critic.state_dict())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(actor)).backward()
    with pytest.raises(KovaError, match=r"optimizer.step\(predict, targets\) without the scaler"):
        scaler.step(optimizer, lambda: critic(X).squeeze(-1), Y)
    for name, value in critic.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_as_of_another_optimizer_says_how_to_call_this_one(name: str) -> None:
    call, message = CALLS[name]
    critic = network()
    optimizer = Kova(critic)
    before = copy.deepcopy(critic.state_dict())
    with pytest.raises(InvalidBatch, match=re.escape(message)):
        call(critic, optimizer)
    assert all(torch.equal(before[key], value) for key, value in critic.state_dict().items())


@pytest.mark.parametrize(
    "critic",
    [network(), nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))],
    ids=["fast", "any"],
)
def test_a_closure_over_another_network_is_refused(critic: nn.Module) -> None:
    target = copy.deepcopy(critic)
    optimizer = Kova(critic)

    def called_in_vain() -> Tensor:
        critic(X)
        out: Tensor = target(X).squeeze(-1)
        return out

    for predict in (lambda: target(X).squeeze(-1), called_in_vain):
        for act in (lambda p=predict: optimizer.step(p, Y), lambda p=predict: optimizer.posterior(p)):
            with pytest.raises(InvalidBatch, match=r"does not use the weights.*target's"):
                act()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 8}, "'rank' is written covariance=covariance.LowRank(rank=...). There are module, lr, cov"),
        ({"q": 1e-4}, "'q' is written evolution=evolution.RandomWalk(q=...)"),
        ({"convention": "paper"}, "observation=observation.MaxRatio(convention=...)"),
        ({"betas": (0.9, 0.999)}, "there is no 'betas'. There are module, lr, covariance"),
        ({"weight_decay": 0.1, "rank": 8}, "there is no 'weight_decay'; 'rank' is written"),
        ({"priors": 0.1}, "did you mean prior?"),
    ],
)
def test_an_argument_that_there_is_not_says_where_it_belongs(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        Kova(network(), **arguments)


def test_a_dtype_belongs_to_the_covariance() -> None:
    with pytest.raises(TypeError, match=r"'dtype' is written covariance=covariance\.\w+\(dtype=\.\.\.\)"):
        Kova(network(), dtype=torch.float64)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [None, observation.BatchSize()], ids=str)
def test_eta_and_prior_are_short_for_the_defaults_with_that_number(noise: Any) -> None:
    plain = Kova(network(), observation=noise)
    short = Kova(network(), observation=noise, eta=0.03, prior=0.1)
    assert (short.evolution.eta, short.covariance.prior) == (0.03, 0.1)  # type: ignore[attr-defined]
    assert (type(short.covariance), type(short.evolution)) == (type(plain.covariance), type(plain.evolution))
    assert short.observation == plain.observation
    with pytest.raises(ValueError, match="eta and evolution both say the same"):
        Kova(network(), evolution=evolution.Leakage(), eta=0.1)
    with pytest.raises(ValueError, match="prior and covariance both say the same"):
        Kova(network(), covariance=covariance.Diagonal(), prior=0.1)
    with pytest.raises(ValueError, match="eta must be a number in"):
        Kova(network(), eta=1.5)


def test_what_is_printed_of_a_step_has_the_loss() -> None:
    critic = network()
    info = Kova(critic).step(lambda: critic(X).squeeze(-1), Y)
    assert repr(info).startswith(f"StepInfo(loss={info.loss:.4g}, innovation_mean=")


# ------------------------------------------------------------------ warnings


def warned(critic: nn.Module, inputs: float, values: float, steps: int = 3, **settings: Any) -> list[str]:
    """What a few steps warned of, each by a line of this file."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        optimizer = Kova(critic, **settings)
        for _ in range(steps):
            optimizer.step(lambda: critic(inputs * X).squeeze(-1), values * Y)
    assert all(w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


NOISES = [observation.Adaptive(), observation.BatchSize()]


@pytest.mark.parametrize("noise", NOISES, ids=members.name)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("inputs", [1e4, 100.0, 1e-4])
def test_inputs_out_of_scale_warn_once(
    noise: observation.Observation, activation: type[nn.Module], inputs: float
) -> None:
    (message,) = warned(network(activation), inputs, 1.0, observation=noise)
    assert re.match(r"the inputs of Linear\(in_features=3.*far from order 1.*VecNormalize", message)


@pytest.mark.parametrize("noise", NOISES, ids=members.name)
def test_targets_out_of_scale_warn_once(noise: observation.Observation) -> None:
    (message,) = warned(network(), 1.0, 1e4, observation=noise)
    assert re.match(
        r"the first innovations.*far larger than the prior expects.*Normalise the rewards", message
    )


@pytest.mark.parametrize("noise", NOISES, ids=members.name)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize(("inputs", "values"), [(1.0, 1.0), (5.0, 5.0), (0.1, 0.1)])
def test_numbers_of_order_one_do_not_warn(
    noise: observation.Observation, activation: type[nn.Module], inputs: float, values: float
) -> None:
    assert warned(network(activation), inputs, values, observation=noise) == []


def test_a_network_that_can_not_learn_from_the_first_batch_warns() -> None:
    critic = nn.Sequential(nn.Linear(3, 1), nn.ReLU())
    nn.init.constant_(critic[0].bias, -100.0)
    (message,) = warned(critic, 1.0, 1.0, covariance=covariance.LowRank(64))
    assert "every gradient is 0" in message


@pytest.mark.parametrize("lr", [3e-4, 1e-3])
def test_the_learning_rate_of_adam_warns_once(lr: float) -> None:
    (message,) = warned(network(), 1.0, 1.0, lr=lr)
    assert re.match(r"lr=.*barely learn: lr=1, the default, is the filter", message)
    assert warned(network(), 1.0, 1.0, lr=0.1) == []


# ------------------------------------------------------------------ the price


def wide(units: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), nn.Linear(units, 1)
    )


@pytest.mark.parametrize(
    ("structure", "units", "named"),
    [
        (
            covariance.LowRank(64),
            256,
            "a step of LowRank with 67,073 weights and batches of 16 will cost about",
        ),
        (covariance.LayerBlocks(), 64, "a step of LayerBlocks with 4,481 weights"),
        (covariance.LowRank(32), 64, None),
        (covariance.NeuronBlocks(), 16, None),
        (covariance.Kronecker(covariance.FanIn()), 256, None),
        (None, 256, None),
    ],
)
def test_a_step_above_ten_of_adams_is_said_once(structure: Any, units: int, named: str | None) -> None:
    found = warned(wide(units), 1.0, 1.0, covariance=structure, evolution=evolution.Stationary())
    if named is None:
        assert not found
    else:
        (message,) = found
        assert message.startswith(named)
        assert "covariance.Kronecker() costs two to four" in message


def test_a_dear_critic_of_other_layers_is_not_sent_to_kronecker() -> None:
    critic = nn.Sequential(*wide(256)[:2], nn.LayerNorm(256), *wide(256)[2:])
    (message,) = warned(critic, 1.0, 1.0, covariance=covariance.LowRank(64))
    assert "smaller batches" in message
    assert "Kronecker" not in message
