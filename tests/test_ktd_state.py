"""KTD stays bounded or says so, starts, counts, saves, and refuses bad input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kova_rl import CovarianceWindup, Kova, NonFiniteBatch, NotPositiveDefinite, covariance, evolution
from kova_rl.baselines import KTD, Evaluation, Sarsa
from kova_rl.errors import InvalidBatch, StateMismatch
from tests import members
from tests.ktd_models import Wrapped, q_network, transitions

BOUNDED = [
    evolution.PriorAnchored(0.01),
    evolution.Leakage(0.01),
    evolution.DirectionalForgetting(0.1),
    evolution.Stationary(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", BOUNDED, ids=members.name)
def test_bounded_evolutions_stay_below_the_prior(kind: evolution.Evolution, dtype: torch.dtype) -> None:
    ktd = KTD(q_network().to(dtype), prior=10.0, noise=1e-2, evolution=kind)
    for transition in transitions(1_500, 2):
        ktd.step(*transition)
    values = torch.linalg.eigvalsh(ktd.covariance.double())
    assert values[0] > 0
    assert values[-1] <= 10 * (1 + 1e-4)
    assert torch.equal(ktd.covariance, ktd.covariance.T)


# Wind-up.


def stuck() -> tuple[Any, ...]:
    """A transition that excites few directions."""
    return np.array([1.0, 0.0]), 1.0, np.array([1.0, 0.0]), False, 0, 1


def test_windup_raises_resets_or_is_ignored() -> None:
    raising, resetting, ignoring = (
        KTD(q_network(), evolution=evolution.FadingMemory(0.5, how)) for how in ("raise", "reset", "ignore")
    )
    for _ in range(39):
        raising.step(*stuck())
    before = raising.state_dict()
    with pytest.raises(CovarianceWindup, match=r"step 40: .* has wound up"):
        raising.step(*stuck())
    assert same(before, raising.state_dict())
    for _ in range(60):
        resetting.step(*stuck())
    assert resetting.covariance.diagonal().max() < 10 * 2.0**22
    for _ in range(60):
        ignoring.step(*stuck())
    assert ignoring.covariance.diagonal().max() > 10 * 2.0**45


def test_kova_without_the_guard() -> None:
    """``on_windup="ignore"`` is Algorithm 1 as printed, for the optimizer too."""
    torch.manual_seed(0)
    critic, x = nn.Linear(3, 1).double(), torch.zeros(4, 3, dtype=torch.float64)
    optimizer = Kova(
        critic, covariance=covariance.Full(), evolution=evolution.FadingMemory(0.5, on_windup="ignore")
    )
    for _ in range(60):  # only the bias is excited
        info = optimizer.step(lambda: critic(x).squeeze(-1), torch.ones(4, dtype=torch.float64))
    assert info.variance_max == pytest.approx(2.0**60, rel=1e-6)


def test_ignored_windup_ends_in_a_typed_error_that_changes_nothing() -> None:
    ktd = KTD(q_network().float(), evolution=evolution.FadingMemory(0.5, "ignore"))
    before = ktd.state_dict()

    def run() -> None:
        for _ in range(400):
            before.update(ktd.state_dict())
            ktd.step(*stuck())

    with pytest.raises((NotPositiveDefinite, NonFiniteBatch), match=r"step \d+: .*Nothing was changed"):
        run()
    assert same(before, ktd.state_dict())
    assert torch.equal(before["weights"], flat(ktd))


def test_lost_positive_definiteness() -> None:
    ktd = KTD(q_network())
    ktd._P[0, 0] = -1.0
    before = ktd.state_dict()
    ktd.evolution = evolution.Stationary()
    with pytest.raises(NotPositiveDefinite, match="step 1: the covariance is not positive definite"):
        ktd.step(*stuck())
    with pytest.raises(NotPositiveDefinite):
        ktd.posterior(np.zeros((1, 2)))
    assert same(before, ktd.state_dict())


# Start, counts, saving.


def flat(ktd: KTD) -> Tensor:
    return nn.utils.parameters_to_vector(ktd._network.parameters).detach().clone()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_start_from_zeros_moves_only_the_last_biases() -> None:
    """All weights 0: a sigma point moves one weight alone, so the product of two layers stays 0."""
    net = q_network()
    ktd = KTD(net, start="zeros")
    assert not ktd.mean.any()
    assert not flat(ktd).any()
    for transition in transitions(50, 2):
        ktd.step(*transition)
    assert not ktd.mean[:-3].any()
    assert ktd.mean[-3:].all()
    grown = (1.01**50) * 10 * torch.ones(len(ktd.mean) - 3, dtype=torch.float64)
    torch.testing.assert_close(ktd.covariance.diagonal()[:-3], grown)


def test_start_from_the_network_keeps_its_weights() -> None:
    net = q_network()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    assert torch.equal(KTD(net).mean, before)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()).detach(), before)


def test_counts_forward_passes() -> None:
    ktd = KTD(q_network())
    d = len(ktd.mean)
    for t, transition in enumerate(transitions(8, 2), 1):
        ktd.step(*transition)
        assert ktd.forward_passes == t * 2 * (2 * d + 1)
    ktd.posterior(np.zeros((3, 2)))
    assert ktd.forward_passes == 8 * 2 * (2 * d + 1)
    assert ktd.steps == 8


@pytest.mark.parametrize("kind", members.EVOLUTIONS, ids=members.name)
def test_resumes_bit_for_bit(kind: evolution.Evolution, tmp_path: Any) -> None:
    one = KTD(q_network(), evolution=kind, prior=0.5)
    for transition in transitions(15, 2):
        one.step(*transition)
    torch.save(one.state_dict(), tmp_path / "ktd.pt")
    other = KTD(q_network(seed=9), evolution=kind, prior=0.5)
    other.load_state_dict(torch.load(tmp_path / "ktd.pt", weights_only=True))
    assert same(one.state_dict(), other.state_dict())
    assert torch.equal(flat(one), flat(other))
    for transition in transitions(15, 2, seed=1):
        assert one.step(*transition) == other.step(*transition)
    assert same(one.state_dict(), other.state_dict())
    assert torch.equal(flat(one), flat(other))


def test_saved_state_does_not_follow_the_filter() -> None:
    ktd = KTD(q_network())
    saved = ktd.state_dict()
    kept = copy.deepcopy(saved)
    ktd.step(*stuck())
    assert same(saved, kept)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: KTD(q_network(outputs=2)).state_dict(), "the state dict is of"),
        (lambda: KTD(q_network(), prior=1.0).state_dict(), "the state dict is of"),
        (
            lambda: KTD(q_network(), dtype=torch.float32).state_dict(),
            "weights: the state dict has torch.float32",
        ),
        (lambda: KTD(q_network(), evolution=evolution.VariableLeakage()).state_dict(), "remembered"),
        (dict, "not a state dict of KTD"),
    ],
)
def test_state_of_another_filter_loads_nothing(other: Callable[[], dict[str, Any]], message: str) -> None:
    ktd = KTD(q_network())
    before = ktd.state_dict()
    with pytest.raises(StateMismatch, match=message):
        ktd.load_state_dict(other())
    assert same(before, ktd.state_dict())


# Bad input.


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"state": np.array([math.nan, 0.0])}, NonFiniteBatch, "state or next_state is not finite"),
        ({"next_state": np.array([math.inf, 0.0])}, NonFiniteBatch, "state or next_state is not finite"),
        ({"state": np.array([1e300, 0.0])}, NonFiniteBatch, "predict no finite reward"),
        ({"reward": math.nan}, NonFiniteBatch, "the reward is nan"),
        ({"reward": torch.tensor(math.inf)}, NonFiniteBatch, "the reward is inf"),
        ({"reward": np.zeros(2)}, InvalidBatch, "reward must be one number"),
        ({"state": np.zeros(3)}, InvalidBatch, "of one shape"),
        ({"state": np.zeros(3), "next_state": np.zeros(3)}, InvalidBatch, "observations of length 2"),
        ({"state": np.zeros((1, 2)), "next_state": np.zeros((1, 2))}, InvalidBatch, "length 2"),
        ({"state": 1.0, "next_state": 1.0}, InvalidBatch, "without a batch dimension"),
        ({"action": None}, InvalidBatch, r"action must be a whole number in \[0, 3\), got None"),
        ({"action": 3}, InvalidBatch, "action must be"),
        ({"action": -1}, InvalidBatch, "action must be"),
        ({"action": 0.5}, InvalidBatch, "action must be"),
        ({"next_action": None}, InvalidBatch, "next_action must be"),
    ],
)
def test_bad_transitions_change_nothing(change: dict[str, Any], error: type[Exception], message: str) -> None:
    ktd = KTD(q_network(), Sarsa())
    good = {
        "state": np.ones(2),
        "reward": 1.0,
        "next_state": np.ones(2),
        "terminated": False,
        "action": 0,
        "next_action": 1,
    }
    ktd.step(**good)
    before, weights = ktd.state_dict(), flat(ktd)
    with pytest.raises(error, match=message):
        ktd.step(**(good | change))
    assert issubclass(error, ValueError)
    assert same(before, ktd.state_dict())
    assert torch.equal(weights, flat(ktd))


def test_evaluation_needs_one_output() -> None:
    with pytest.raises(InvalidBatch, match="one output"):
        KTD(q_network(), Evaluation()).step(*stuck())


def test_sarsa_needs_no_next_action_at_the_end() -> None:
    KTD(q_network(), Sarsa()).step(np.ones(2), 1.0, np.ones(2), True, action=np.int64(1))


@pytest.mark.parametrize(
    ("states", "actions"),
    [
        (np.zeros(2), None),
        (np.full((1, 2), math.nan), None),
        (np.zeros((2, 2)), [0]),
        (np.zeros((2, 2)), [0, 3]),
        (np.zeros((2, 2)), [0.0, 1.0]),
    ],
)
def test_bad_questions(states: Any, actions: Any) -> None:
    with pytest.raises(InvalidBatch):
        KTD(q_network()).posterior(states, actions)


class Scalar(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_a_module_must_return_rows() -> None:
    with pytest.raises(InvalidBatch, match="one row of outputs"):
        KTD(Scalar(2, 1).double(), Evaluation()).step(*stuck())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"module": "net"}, "module must be a torch.nn.Module, got str"),
        ({"module": nn.ReLU()}, "no trainable parameters"),
        ({"equation": "sarsa"}, "equation must be"),
        ({"equation": Sarsa}, "equation must be"),
        ({"gamma": 1.5}, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"gamma": "1"}, "gamma must be"),
        ({"kappa": -23.0 - 4.0}, "kappa must be a number above -d = -27, got -27.0"),
        ({"kappa": math.nan}, "kappa must be"),
        ({"prior": 0.0}, "prior must be a number above 0"),
        ({"noise": -1.0}, "noise must be a number above 0"),
        ({"evolution": "fading"}, "evolution must be one of kova_rl.evolution's objects, got 'fading'"),
        ({"evolution": evolution.Stationary}, "evolution must be one of kova_rl.evolution's objects"),
        ({"start": "zero"}, "start must be one of 'network', 'zeros', got 'zero'"),
        ({"dtype": torch.float16}, "dtype must be"),
    ],
)
def test_wrong_settings_raise_at_construction(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KTD(**({"module": q_network()} | wrong))


# Shapes and dtypes.


@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(1, 4),
    width=st.integers(1, 4),
    actions=st.integers(1, 3),
    n=st.integers(1, 4),
    bias=st.booleans(),
    own=st.sampled_from([torch.float32, torch.float64]),
    kept=st.sampled_from([None, torch.float32, torch.float64]),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.ELU]),
)
def test_shapes_and_dtypes(
    inputs: int,
    width: int,
    actions: int,
    n: int,
    bias: bool,
    own: torch.dtype,
    kept: torch.dtype | None,
    activation: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, width, bias), activation(), nn.Linear(width, actions, bias)).to(own)
    ktd, hidden = KTD(net, dtype=kept), KTD(Wrapped(copy.deepcopy(net)), dtype=kept)
    tolerance = 1e-10 if ktd.mean.dtype == torch.float64 else 1e-2
    for transition in transitions(4, inputs, actions=actions):
        info, other = ktd.step(*transition), hidden.step(*transition)
        assert info.innovation_variance >= 1.0 - 1e-6
        assert other.innovation == pytest.approx(info.innovation, rel=tolerance, abs=tolerance)
    assert ktd.covariance.dtype == ktd.mean.dtype == (kept or own)
    assert all(p.dtype == own for p in net.parameters())
    assert torch.equal(flat(ktd), ktd.mean.to(own))
    belief = ktd.posterior(torch.randn(n, inputs))
    assert belief.mean.shape == belief.std.shape == ((n,) if actions == 1 else (n, actions))
    assert belief.std.dtype == (kept or own)
    assert belief.covariance.shape == (n * actions, n * actions)
    assert ktd.posterior(torch.randn(n, inputs), [actions - 1] * n).mean.shape == (n,)


def test_other_modules_take_the_general_path() -> None:
    """Frozen layers, buffers and convolutions."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 3)
    ).eval()
    net[0].bias.requires_grad_(False)
    frozen = net[0].bias.clone()
    ktd = KTD(net, dtype=torch.float64)
    for s, reward, t, done, a, b in transitions(5, 4):
        ktd.step(s[None], reward, t[None], done, a, b)
    assert torch.equal(net[0].bias, frozen)
    assert ktd.posterior(torch.randn(2, 1, 4)).mean.shape == (2, 3)
    assert len(ktd.mean) == sum(p.numel() for p in net.parameters()) - 2
