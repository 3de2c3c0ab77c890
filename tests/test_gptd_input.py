"""What GPTD is fed, and how it refuses and carries on: shapes, dtypes, bad input, state dicts."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kova_rl.baselines.gptd import GPTD
from kova_rl.baselines.gptd_kernel import Gaussian, KernelGPTD
from kova_rl.baselines.gptd_linear import LinearGPTD
from kova_rl.errors import InvalidBatch, NonFiniteBatch, NotPositiveDefinite, StateMismatch
from tests.gptd_models import BOTH, close, dot, feed, quadratic, random_steps

NAN, INF = float("nan"), float("inf")


# shapes, dtypes, odd trajectories


def forms(monte_carlo: bool, dtype: torch.dtype = torch.float64, gamma: float = 0.9) -> list[GPTD]:
    return [
        LinearGPTD(quadratic, gamma, 2.0, 0.3, monte_carlo, dtype=dtype),
        LinearGPTD(3, gamma, 2.0, 0.3, monte_carlo, dtype=dtype),
        KernelGPTD(Gaussian(), gamma, 0.3, 1e-3, monte_carlo, dtype=dtype),
    ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    monte_carlo=st.booleans(),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    queries=st.integers(0, 5),
    to=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_any_trajectory_gives_finite_beliefs_that_only_sharpen(
    seed: int,
    lengths: list[int],
    monte_carlo: bool,
    gamma: float,
    dtype: torch.dtype,
    queries: int,
    to: torch.dtype,
) -> None:
    steps = [
        s._replace(state=s.state.to(to), next_state=s.next_state.to(to))
        for s in random_steps(seed, tuple(lengths))
    ]
    x = torch.randn(queries, 3).to(to)
    for gptd in forms(monte_carlo, dtype, gamma):
        prior_mean, before = gptd.value(x)
        assert not prior_mean.any()
        for step in steps:
            feed(gptd, [step])
            mean, std = gptd.value(x)
            assert mean.shape == std.shape == (queries,)
            assert mean.dtype == std.dtype == dtype
            assert torch.isfinite(mean).all()
            assert (std <= before + 1e-3).all()
            before = std


@BOTH
def test_images_lists_and_arrays_are_states(monte_carlo: bool) -> None:
    image = torch.rand(4, 2, 2, dtype=torch.float64)
    results = []
    for convert in (lambda x: x, lambda x: x.numpy(), lambda x: x.tolist()):
        for gptd in (
            LinearGPTD(lambda x: x.flatten(1), monte_carlo=monte_carlo),
            KernelGPTD(Gaussian(), monte_carlo=monte_carlo),
        ):
            gptd.observe(convert(image[0]), torch.tensor([1.0]), convert(image[1]), torch.tensor(False))
            gptd.observe(convert(image[1]), 2, convert(image[2]), 1)
            results.append(torch.stack(gptd.value(convert(image))))
    assert all(torch.equal(results[i], results[i % 2]) for i in range(6))


def test_a_network_may_give_the_features() -> None:
    network = torch.nn.Linear(3, 4)
    gptd = LinearGPTD(network)
    gptd.observe(torch.ones(3), 1.0, torch.zeros(3), False)
    mean, _ = gptd.value(torch.ones(2, 3))
    assert not mean.requires_grad
    assert mean.dtype == torch.float64


@BOTH
def test_what_follows_a_termination_is_never_looked_at(monte_carlo: bool) -> None:
    x = torch.ones(3, dtype=torch.float64)
    for left, right in zip(forms(monte_carlo), forms(monte_carlo), strict=True):
        left.observe(x, 1.0, None, True)
        right.observe(x, 1.0, torch.full((3,), NAN), True)
        assert torch.equal(*(torch.cat(g.value(x[None])) for g in (left, right)))


def test_states_are_copied() -> None:
    buffer = torch.ones(3, dtype=torch.float64)
    for gptd in forms(True):
        here = buffer.clone()
        gptd.observe(here, 1.0, buffer, False)
        expected = gptd.state_dict()
        here.zero_()
        changed = buffer.clone()
        assert_same(gptd.state_dict(), expected)
        gptd.observe(changed, 1.0, None, True)


@BOTH
def test_a_belief_stays_what_it_was(monte_carlo: bool) -> None:
    steps, queries = random_steps(0), torch.randn(4, 3, dtype=torch.float64)
    for early, late in zip(forms(monte_carlo), forms(monte_carlo), strict=True):
        feed(early, steps[:3])
        feed(late, steps[:3])
        asked = queries.clone()
        belief, expected = late.belief(asked), early.belief(queries).covariance
        feed(late, steps[3:])
        asked.zero_()
        assert torch.equal(belief.covariance, expected)
        close(belief.covariance.diagonal().sqrt(), belief.std)


def test_numbers_of_numpy_are_settings() -> None:
    one = np.float32(0.5)
    assert LinearGPTD(np.int64(2), gamma=one, prior=one, noise=one).gamma == 0.5
    assert len(KernelGPTD(Gaussian(one, one), one, one, one, capacity=np.int64(3))) == 0


@BOTH
def test_many_updates_with_little_noise_leave_a_covariance(monte_carlo: bool) -> None:
    gptd = LinearGPTD(6, 0.99, 1e4, 1e-6, monte_carlo, dtype=torch.float32)
    x = torch.randn(3000, 6) @ torch.diag(torch.logspace(0, -4, 6))
    for here, there in pairwise(x):
        gptd.observe(here, 1.0, there, False)
    assert float(torch.linalg.eigvalsh(gptd.covariance.double())[0]) > -1e-12
    mean, std = gptd.value(x)
    assert torch.isfinite(mean).all()
    assert (std > 0).all()


# errors


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        same = torch.equal(value, right[key]) if isinstance(value, Tensor) else value == right[key]
        assert same, key


GOOD = torch.ones(3, dtype=torch.float64)


BAD_CALLS = [
    ((GOOD * NAN, 0.0, GOOD, False), NonFiniteBatch, "state has NaN"),
    ((GOOD, 0.0, GOOD * INF, False), NonFiniteBatch, "next_state has NaN"),
    ((GOOD, NAN, GOOD, False), NonFiniteBatch, "reward has NaN"),
    ((GOOD, torch.zeros(2), GOOD, False), InvalidBatch, r"reward must be one number, got shape \(2,\)"),
    ((GOOD, None, GOOD, False), InvalidBatch, "reward must be numbers, got None"),
    ((GOOD, 0.0, None, False), InvalidBatch, "next_state must be numbers, got None"),
    ((GOOD, 0.0, GOOD[:2], False), InvalidBatch, r"next_state must have shape \(3,\), got \(2,\)"),
    ((GOOD, 0.0, GOOD, 0.5), InvalidBatch, "done must be boolean, or 0 and 1, got 0.5"),
    ((GOOD, 0.0, GOOD, NAN), InvalidBatch, "done"),
]


@BOTH
@pytest.mark.parametrize(("call", "kind", "message"), BAD_CALLS)
def test_a_bad_transition_changes_nothing(
    call: tuple[Any, ...], kind: type[Exception], message: str, monte_carlo: bool
) -> None:
    for gptd in forms(monte_carlo):
        feed(gptd, random_steps(0, (3, 2)))
        gptd.restart()
        before = copy.deepcopy(gptd.state_dict())
        with pytest.raises(kind, match=message):
            gptd.observe(*call)
        assert_same(gptd.state_dict(), before)


@BOTH
def test_an_update_that_overflows_changes_nothing(monte_carlo: bool) -> None:
    linear, kernel = LinearGPTD(3, monte_carlo=monte_carlo), KernelGPTD(Gaussian(1e-300), noise=1e-300)
    calls = [(linear, (GOOD * 1e200, 1.0, GOOD, False)), (kernel, (GOOD, 1e308, GOOD / 2, False))]
    calls += [(LinearGPTD(3, dtype=torch.float32), (GOOD, 1e300, GOOD, False))]
    for gptd, call in calls:
        before = copy.deepcopy(gptd.state_dict())
        with pytest.raises(NonFiniteBatch, match="the update overflows"):
            gptd.observe(*call)
        assert_same(gptd.state_dict(), before)


def test_a_gap_in_a_trajectory_is_refused_where_noise_is_shared() -> None:
    for gptd in forms(True):
        gptd.observe(GOOD, 1.0, 2 * GOOD, False)
        before = copy.deepcopy(gptd.state_dict())
        with pytest.raises(InvalidBatch, match=r"next_state of the last call.*restart\(\)"):
            gptd.observe(3 * GOOD, 1.0, GOOD, False)
        assert_same(gptd.state_dict(), before)
        gptd.restart()
        gptd.observe(3 * GOOD, 1.0, GOOD, True)
        gptd.observe(GOOD / 2, 1.0, GOOD, False)
    for gptd in forms(False):  # each reward stands alone
        gptd.observe(GOOD, 1.0, 2 * GOOD, False)
        gptd.observe(3 * GOOD, 1.0, GOOD, False)


def test_bad_queries_are_refused() -> None:
    for gptd in forms(False):
        feed(gptd, random_steps(0))
        with pytest.raises(NonFiniteBatch, match="states has NaN"):
            gptd.value(torch.full((2, 3), NAN))
        with pytest.raises(InvalidBatch, match=r"got \(2, 4\)|shape \(2, 7\), got \(2, 9\)"):
            gptd.value(torch.zeros(2, 4))
        with pytest.raises(InvalidBatch, match=r"must have shape \(n, (3|\.\.\.)\), got \(\)"):
            gptd.value(torch.tensor(1.0))


def test_bad_features_and_kernels_are_refused() -> None:
    call = (GOOD, 0.0, 2 * GOOD, False)
    with pytest.raises(InvalidBatch, match=r"features must have shape \(1, k\), got \(1,\)"):
        LinearGPTD(lambda x: x.sum(1)).observe(*call)
    with pytest.raises(NonFiniteBatch, match="features has NaN"):
        LinearGPTD(lambda x: x * NAN).observe(*call)
    with pytest.raises(InvalidBatch, match=r"kernel must give shape \(1, 1\), got \(1,\)"):
        KernelGPTD(lambda a, b: (a * b).sum(1)).observe(*call)
    with pytest.raises(NonFiniteBatch, match="kernel has NaN"):
        KernelGPTD(lambda a, b: dot(a, b) * NAN).observe(*call)
    gptd = KernelGPTD(lambda a, b: 1 + torch.cdist(a, b))
    with pytest.raises(NotPositiveDefinite, match="kernel must be positive definite"):
        gptd.observe(*call)
    assert len(gptd) == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gamma": 1.1}, r"gamma must be a number in \[0, 1\], got 1.1"),
        ({"gamma": NAN}, "gamma must be"),
        ({"gamma": "0.9"}, "gamma must be"),
        ({"noise": 0.0}, "noise must be a number above 0, got 0.0"),
        ({"noise": INF}, "noise must be"),
        ({"monte_carlo": 1}, "monte_carlo must be True or False, got 1"),
        ({"dtype": torch.float16}, "dtype must be one of"),
        ({"prior": -1.0}, "prior must be a number above 0, got -1.0"),
        ({"features": 0}, "features must be a whole number, at least 1, got 0"),
        ({"features": "rbf"}, "features must be"),
        ({"kernel": "rbf"}, r"kernel must be callable, such as Gaussian\(\), got 'rbf'"),
        ({"threshold": -1e-3}, "threshold must be a number, at least 0, got -0.001"),
        ({"capacity": 0}, "capacity must be a whole number, at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    if setting.keys() & {"kernel", "threshold", "capacity", "gamma", "noise", "monte_carlo", "dtype"}:
        with pytest.raises(ValueError, match=message):
            KernelGPTD(**({"kernel": Gaussian()} | setting))
    if setting.keys() & {"features", "prior", "gamma", "noise", "monte_carlo", "dtype"}:
        with pytest.raises(ValueError, match=message):
            LinearGPTD(**({"features": 2} | setting))


def test_bad_kernel_settings_are_refused() -> None:
    for name in ("scale", "length"):
        with pytest.raises(ValueError, match=f"{name} must be a number above 0, got 0"):
            Gaussian(**{name: 0.0})


# state dicts


@BOTH
@pytest.mark.parametrize("stop", [0, 2, 5, 9])
def test_a_state_dict_carries_on_bit_for_bit(stop: int, monte_carlo: bool, tmp_path: Any) -> None:
    steps = random_steps(0)
    for whole, first, second in zip(*(forms(monte_carlo) for _ in range(3)), strict=True):
        feed(whole, steps)
        feed(first, steps[:stop])
        torch.save(first.state_dict(), tmp_path / "gptd.pt")
        saved = torch.load(tmp_path / "gptd.pt", weights_only=True)
        assert all(isinstance(v, (Tensor, float, int, bool)) for v in saved.values())
        second.load_state_dict(saved)
        feed(second, steps[stop:])
        assert_same(second.state_dict(), whole.state_dict())


def test_another_state_dict_is_refused() -> None:
    linear, kernel = LinearGPTD(3), KernelGPTD(Gaussian())
    feed(linear, random_steps(0))
    feed(kernel, random_steps(0))
    before = copy.deepcopy(linear.state_dict()), copy.deepcopy(kernel.state_dict())
    wrong: list[tuple[GPTD, GPTD, str]] = [
        (LinearGPTD(3, gamma=0.5), linear, "gamma: the state dict has 0.5, this GPTD has 0.95"),
        (LinearGPTD(3, noise=0.5), linear, "noise"),
        (LinearGPTD(3, monte_carlo=True), linear, "monte_carlo"),
        (LinearGPTD(3, prior=0.5), linear, "prior"),
        (feed(LinearGPTD(quadratic), random_steps(0)), linear, "has 7 features, this GPTD has 3"),
        (feed(LinearGPTD(3), random_steps(0)), kernel, "not of a KernelGPTD"),
        (kernel, linear, r"lacks \['prior'\]"),
        (feed(KernelGPTD(Gaussian(length=2.0)), random_steps(0)), kernel, "of another kernel"),
    ]
    for source, target, message in wrong:
        with pytest.raises(StateMismatch, match=message):
            target.load_state_dict(source.state_dict())
    broken = kernel.state_dict()
    broken["root"] = broken["root"][:-1]
    with pytest.raises(StateMismatch, match="expected the shapes"):
        kernel.load_state_dict(broken)
    assert_same(linear.state_dict(), before[0])
    assert_same(kernel.state_dict(), before[1])
