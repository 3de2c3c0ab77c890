"""Targets: against arrays worked out by hand, a naive double loop, and each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kova_rl import targets
from kova_rl.errors import InvalidBatch

NAN, INF = float("nan"), float("inf")
Rollout = dict[str, Tensor]


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def random_rollout(seed: int, shape: tuple[int, ...], ends: float = 0.2) -> Rollout:
    """Nothing here agrees by chance: next_values[t] is not values[t + 1]."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator)
        for name in ("rewards", "values", "next_values")
    }
    flags = {name: torch.rand(shape, generator=generator) < ends for name in ("terminated", "truncated")}
    return drawn | flags


def k_step(data: Rollout, gamma: float, k: int | None) -> Tensor:
    """The target of a rollout, which needs no values of its own states."""
    return targets.k_step(**{n: x for n, x in data.items() if n != "values"}, gamma=gamma, k=k)


rollouts = st.builds(
    random_rollout,
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1,), (2,), (7,), (12,), (6, 3), (5, 2, 2)]),
    ends=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)
discounts = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])


def k_step_by_loops(data: Rollout, gamma: float, k: int) -> Tensor:
    """For one environment, the sum as the paper writes it."""
    r, v, over, cut = (data[n].tolist() for n in ("rewards", "next_values", "terminated", "truncated"))
    result = []
    for m in range(len(r)):
        y = 0.0
        for i in range(k):
            y += gamma**i * r[m + i]
            if over[m + i]:
                break
            if i + 1 == k or cut[m + i] or m + i + 1 == len(r):
                y += gamma ** (i + 1) * v[m + i]
                break
        result.append(y)
    return tensor(*result)


def gae_by_loops(data: Rollout, gamma: float, lam: float) -> Tensor:
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    r, v, after, over, cut = (data[n].tolist() for n in names)
    result = []
    for m in range(len(r)):
        y = v[m]
        for j in range(m, len(r)):
            y += (gamma * lam) ** (j - m) * (r[j] + (0.0 if over[j] else gamma * after[j]) - v[j])
            if over[j] or cut[j]:
                break
        result.append(y)
    return tensor(*result)


def per_environment(data: Rollout, one: Callable[[Rollout], Tensor]) -> Tensor:
    """``one`` on each column of a rollout, put together again."""
    shape = data["rewards"].shape
    flat = {name: x.reshape(shape[0], -1) for name, x in data.items()}
    columns = [one({name: x[:, e] for name, x in flat.items()}) for e in range(flat["rewards"].shape[1])]
    return torch.stack(columns, 1).reshape(shape)


def test_q_learning_by_hand() -> None:
    next_q = torch.tensor([[1.0, 5.0, 2.0], [-3.0, -1.0, -2.0], [7.0, 8.0, 9.0]])
    y = targets.q_learning(torch.tensor([1.0, 0.0, 2.0]), next_q, torch.tensor([False, False, True]), 0.5)
    close(y, torch.tensor([3.5, -0.5, 2.0]))  # 1 + 5/2, 0 - 1/2, 2


def test_double_q_by_hand() -> None:
    online = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0], [0.0, 1.0, 0.0]])
    target = torch.tensor([[9.0, 2.0, 8.0], [-6.0, 7.0, 7.0], [5.0, 5.0, 5.0]])
    flags = torch.tensor([False, False, True])
    y = targets.double_q(torch.tensor([1.0, 0.0, 2.0]), online, target, flags, 0.5)
    close(y, torch.tensor([2.0, -3.0, 2.0]))  # 1 + 2/2 (action 1), 0 - 6/2 (action 0), 2


def test_double_q_with_one_network_is_q_learning() -> None:
    rewards, q, over = torch.randn(4, 5), torch.randn(4, 5, 3), torch.rand(4, 5) < 0.5
    close(targets.double_q(rewards, q, q, over, 0.9), targets.q_learning(rewards, q, over, 0.9))


def test_one_step_by_hand() -> None:
    y = targets.one_step(tensor(1, 2, 3), tensor(10, -10, 10), tensor(0, 0, 1), 0.9)
    close(y, tensor(10, -7, 3))


def test_soft_value_by_hand() -> None:
    q, log_prob = torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.tensor([[-1.0, 1.0], [-4.0, 2.0]])
    close(targets.soft_value(q, log_prob), torch.tensor([[2.0, 2.0], [6.0, -2.0]]))
    close(targets.soft_value(q, log_prob, 0.5), torch.tensor([[1.5, 2.5], [4.0, -1.0]]))
    close(targets.soft_value(q, log_prob, 0.5, dim=0), torch.tensor([2.75, 0.75]))
    close(targets.soft_value(q, log_prob, 0.5, dim=-1), torch.tensor([2.0, 1.5]))
    assert torch.equal(targets.soft_value(q, log_prob, 0.0), q)


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        # step 1 terminates, step 3 is cut with a value of 8, the rollout ends after step 5 with 16
        (1, [1 + 2, 2, 3 + 3, 4 + 4, 5 + 5, 6 + 8]),
        (2, [1 + 1, 2, 3 + 2 + 2, 4 + 4, 5 + 3 + 4, 6 + 8]),
        (None, [2, 2, 7, 8, 12, 14]),
    ],
)
def test_k_step_by_hand(k: int | None, expected: list[float]) -> None:
    rewards, values = tensor(1, 2, 3, 4, 5, 6), tensor(4, 99, 6, 8, 10, 16)
    over, cut = tensor(0, 1, 0, 0, 0, 0), tensor(0, 0, 0, 1, 0, 0)
    close(targets.k_step(rewards, values, over, cut, 0.5, k), tensor(*expected))


def test_k_step_is_shorter_near_the_end_of_the_rollout() -> None:
    none = torch.zeros(4, dtype=torch.bool)
    y = targets.k_step(tensor(8, 8, 8, 8), tensor(0, 0, 16, 32), none, none, 0.5, 3)
    close(y, tensor(8 + 4 + 2 + 2, 8 + 4 + 2 + 4, 8 + 4 + 8, 8 + 16))  # k = 3, 3, 2, 1


def test_gae_by_hand() -> None:
    # gamma = 1/2, lambda = 1/2, so that differences decay by 1/4
    rewards, values, after = tensor(1, 2, 3, 4, 5), tensor(2, 4, 6, 8, 10), tensor(4, 99, 8, 20, 12)
    over, cut = tensor(0, 1, 0, 0, 0), tensor(0, 0, 0, 1, 0)
    # differences: 1+2-2 = 1; 2-4 = -2; 3+4-6 = 1; 4+10-8 = 6; 5+6-10 = 1
    # advantages: 1-2/4 = 1/2; -2; 1+6/4 = 5/2; 6; 1
    close(targets.gae(rewards, values, after, over, cut, 0.5, 0.5), tensor(2.5, 2.0, 8.5, 14.0, 11.0))


def test_a_termination_wins_over_a_truncation() -> None:
    one, both = tensor(1), torch.tensor([True])
    assert targets.k_step(one, tensor(5), both, both, 0.5, None).item() == 1
    assert targets.gae(one, tensor(3), tensor(5), both, both, 0.5, 0.5).item() == 1


@given(rollouts, discounts, st.integers(1, 15))
def test_k_step_is_the_double_loop(data: Rollout, gamma: float, k: int) -> None:
    close(k_step(data, gamma, k), per_environment(data, lambda d: k_step_by_loops(d, gamma, k)))


@given(rollouts, discounts, discounts)
def test_gae_is_the_double_loop(data: Rollout, gamma: float, lam: float) -> None:
    y = targets.gae(**data, gamma=gamma, lam=lam)
    close(y, per_environment(data, lambda d: gae_by_loops(d, gamma, lam)))


@given(rollouts, discounts)
def test_the_extremes_of_k_and_lambda_agree(data: Rollout, gamma: float) -> None:
    single = targets.one_step(data["rewards"], data["next_values"], data["terminated"], gamma)
    assert torch.equal(k_step(data, gamma, 1), single)
    close(targets.gae(**data, gamma=gamma, lam=0.0), single)
    # the sum of differences telescopes only where the next value is that of the next row
    going_on = ~(data["terminated"] | data["truncated"])[:-1]
    data["next_values"][:-1][going_on] = data["values"][1:][going_on]
    whole = k_step(data, gamma, None)
    close(whole, targets.gae(**data, gamma=gamma, lam=1.0))
    assert torch.equal(whole, k_step(data, gamma, 1000))


@pytest.mark.parametrize("k", [1, 3, None])
def test_environments_do_not_mix(k: int | None) -> None:
    data = random_rollout(3, (9, 2, 4))
    assert torch.equal(k_step(data, 0.9, k), per_environment(data, lambda d: k_step(d, 0.9, k)))
    y = targets.gae(**data, gamma=0.9, lam=0.8)
    assert torch.equal(y, per_environment(data, lambda d: targets.gae(**d, gamma=0.9, lam=0.8)))


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_what_follows_a_termination_is_never_looked_at(poison: float) -> None:
    clean, r = random_rollout(5, (10, 3)), tensor(1)
    assert clean["terminated"].any()
    dirty = clean | {"next_values": torch.where(clean["terminated"], poison, clean["next_values"])}
    assert torch.equal(targets.gae(**dirty, gamma=0.9, lam=0.8), targets.gae(**clean, gamma=0.9, lam=0.8))
    for k in (1, 2, None):
        assert torch.equal(k_step(dirty, 0.9, k), k_step(clean, 0.9, k))
    q, over = torch.full((1, 2), poison, dtype=torch.float64), tensor(1)
    assert torch.equal(targets.q_learning(r, q, over, 0.9), r)
    assert torch.equal(targets.double_q(r, q, q, over, 0.9), r)
    assert torch.equal(targets.one_step(r, q[:, 0], over, 0.9), r)


def test_a_nan_of_a_later_episode_stays_there() -> None:
    data = random_rollout(1, (6,), ends=0.0)
    data["truncated"][2], data["rewards"][4] = True, NAN
    hit = torch.tensor([False, False, False, True, True, False])
    assert torch.equal(targets.gae(**data, gamma=0.9, lam=0.8).isnan(), hit)
    assert all(torch.equal(k_step(data, 0.9, k).isnan(), hit) for k in (4, None))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("flags", [torch.bool, torch.float32, torch.int64])
def test_targets_are_constants_of_the_same_dtype(dtype: torch.dtype, flags: torch.dtype) -> None:
    data = {
        name: x.to(flags) if x.dtype == torch.bool else x.to(dtype).requires_grad_()
        for name, x in random_rollout(2, (5, 2)).items()
    }
    before = {name: x.detach().clone() for name, x in data.items()}
    r, v, over = data["rewards"], data["values"], data["terminated"]
    q = torch.randn(5, 2, 3).to(dtype).requires_grad_()
    results = [k_step(data, 0.9, k) for k in (1, 2, None)]
    results += [targets.q_learning(r, q, over, 0.9), targets.double_q(r, q, q, over, 0.9)]
    results += [targets.one_step(r, v, over, 0.9), targets.gae(**data, gamma=0.9, lam=0.8)]
    results += [targets.soft_value(r, v), targets.soft_value(r[None], v[None], dim=0)]
    assert {(y.dtype, y.shape, y.requires_grad) for y in results} == {(dtype, (5, 2), False)}
    assert all(torch.equal(x, before[name]) for name, x in data.items())


def test_an_empty_rollout_has_no_targets() -> None:
    data = random_rollout(0, (0, 3))
    assert targets.gae(**data, gamma=0.9, lam=0.8).shape == (0, 3)
    assert k_step(data, 0.9, 2).shape == (0, 3)


@pytest.mark.parametrize("name", ["values", "next_values", "terminated", "truncated"])
def test_nothing_is_broadcast_over_a_rollout(name: str) -> None:
    data = random_rollout(0, (4, 1))
    data[name] = data[name].squeeze(1)
    message = rf"{name} must have the shape of rewards, \(4, 1\), got \(4,\)"
    with pytest.raises(InvalidBatch, match=message):
        targets.gae(**data, gamma=0.9, lam=0.8)
    if name != "values":
        with pytest.raises(InvalidBatch, match=message):
            k_step(data, 0.9, 2)


def test_nothing_is_broadcast_over_a_batch() -> None:
    r, over = torch.zeros(4), torch.zeros(4)
    with pytest.raises(InvalidBatch, match=r"next_values .* \(4,\), got \(4, 1\)"):
        targets.one_step(r, torch.zeros(4, 1), over, 0.9)
    for shape in [(4,), (1, 3), (4, 0), (4, 1, 3)]:
        with pytest.raises(InvalidBatch, match=r"next_q .*\(4, actions\), got"):
            targets.q_learning(r, torch.zeros(shape), over, 0.9)
    with pytest.raises(InvalidBatch, match=r"next_q_target .* \(4, 3\), got \(4, 2\)"):
        targets.double_q(r, torch.zeros(4, 3), torch.zeros(4, 2), over, 0.9)
    with pytest.raises(InvalidBatch, match=r"log_prob .* of q, \(4,\), got \(1,\)"):
        targets.soft_value(r, torch.zeros(1))
    with pytest.raises(InvalidBatch, match="time-major"):
        targets.k_step(r[0], r[0], over[0], over[0], 0.9, None)


@pytest.mark.parametrize("bad", [-0.1, 1.1, NAN, INF, "0.9", None, True])
def test_settings_out_of_range_are_refused(bad: float) -> None:
    data = random_rollout(0, (4,))
    r, v, over = data["rewards"], data["values"], data["terminated"]
    with pytest.raises(ValueError, match=r"gamma must be a number in \[0, 1\], got"):
        targets.one_step(r, v, over, bad)
    with pytest.raises(ValueError, match="gamma must be"):
        targets.gae(**data, gamma=bad, lam=0.5)
    with pytest.raises(ValueError, match=r"lam must be a number in \[0, 1\], got"):
        targets.gae(**data, gamma=0.5, lam=bad)
    if bad != 1.1:
        with pytest.raises(ValueError, match="ent_coef must be a number, at least 0, got"):
            targets.soft_value(r, v, bad)


def test_a_bad_k_or_flag_is_refused() -> None:
    data = random_rollout(0, (4,))
    for k in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="k must be a whole number, at least 1, got"):
            k_step(data, 0.9, k)  # type: ignore[arg-type]
    with pytest.raises(InvalidBatch, match="truncated must be boolean, or 0 and 1"):
        k_step(data | {"truncated": tensor(0, 0.5, 0, 1)}, 0.9, 1)


def test_soft_value_takes_a_coefficient_that_is_tuned() -> None:
    coefficient = torch.tensor(0.5, requires_grad=True)
    found = targets.soft_value(torch.tensor([1.0]), torch.tensor([-2.0]), coefficient)
    assert found.tolist() == [2.0]
    assert not found.requires_grad
