"""The tasks of policy evaluation, against hand-made oracles."""

from __future__ import annotations

import numpy as np
import pytest

from kova_rl.lab.evaluation import control, evaluate_one
from kova_rl.lab.evaluation.tasks import CLASSIC, TASKS, conditions_of, phases
from kova_rl.lab.evaluation.walk import Walker

EVERY = [(task, condition) for task in TASKS for condition in conditions_of(task)]


@pytest.mark.parametrize(("name", "condition"), EVERY)
def test_a_task_is_an_mdp_with_features(name: str, condition: str) -> None:
    parts = phases(name, condition)
    assert len(parts) == (2 if condition == "switch" else 1)
    for task in parts:
        states, actions = task.policy.shape
        assert task.moves.shape == task.rewards.shape == (actions, states, states + 1)
        for probabilities in (task.moves, task.policy, task.behaviour, task.start):
            assert (probabilities >= 0).all()
            np.testing.assert_allclose(probabilities.sum(-1), 1.0)
        assert task.features.shape[0] == states
        if name in CLASSIC:
            assert 0 <= task.linear_floor() < 0.5 * task.values().std()
        assert (task.behaviour[task.policy > 0] > 0).all()  # else no weight could correct it


def test_values_are_those_solved_by_hand() -> None:
    (walk,) = phases("boyan", "on-policy")
    np.testing.assert_allclose(walk.values(), -0.2 * np.arange(13), atol=1e-12)
    assert walk.linear_floor() < 1e-12
    (right,) = phases("chain", "deterministic")
    np.testing.assert_allclose(right.values(), 0.98 ** np.arange(30)[::-1], atol=1e-12)
    (way,) = phases("grid", "deterministic")
    steps = [12 - i - j for i in range(7) for j in range(7) if (i, j) not in ((6, 6), (3, 3))]
    np.testing.assert_allclose(way.values(), 0.95 ** (np.array(steps) - 1.0), atol=1e-12)
    (even,) = phases("chain", "on-policy")
    values = even.values()
    np.testing.assert_allclose(values, -values[::-1], atol=1e-12)
    np.testing.assert_allclose(values[1:-1], 0.98 * (values[:-2] + values[2:]) / 2, atol=1e-12)
    turned = phases("chain", "switch")[1]
    np.testing.assert_allclose(turned.values(), -values, atol=1e-12)


@pytest.mark.parametrize("name", list(CLASSIC))
def test_values_are_the_mean_of_long_walks(name: str) -> None:
    """Returns of each episode's first state, weighted by the ratios, estimate the value of the start."""
    (task,) = phases(name, "off-policy")
    seen = Walker(task, np.random.default_rng(0)).walk(150_000)
    returns, total, weight, scale = [], 0.0, 1.0, 1.0
    for reward, ratio, over in zip(seen.rewards, seen.weights, seen.terminated, strict=True):
        weight *= ratio
        total += scale * weight * reward
        scale *= task.gamma
        if over:
            returns.append(total)
            total, weight, scale = 0.0, 1.0, 1.0
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - task.start @ task.values()) < 4 * error + 1e-9
    np.testing.assert_allclose(seen.weights.mean(), 1.0, atol=0.02)


def test_ratios_are_policy_over_behaviour() -> None:
    (task,) = phases("boyan", "off-policy")
    np.testing.assert_allclose(task.ratios(), np.tile([0.5 / 0.8, 0.5 / 0.2], (13, 1)))
    (same,) = phases("boyan", "deterministic")
    np.testing.assert_array_equal(same.ratios(), np.tile([1.0, 0.0], (13, 1)))


def test_a_walk_goes_on_where_it_was() -> None:
    (task,) = phases("chain", "on-policy")
    whole = Walker(task, np.random.default_rng(1)).walk(64)
    same = ~whole.terminated[:-1]
    np.testing.assert_array_equal(whole.next_states[:-1][same], whole.states[1:][same])
    assert (whole.next_states[whole.terminated] == 0).all()


def test_bairds_values_are_nothing_and_semi_gradient_td_diverges_on_its_features() -> None:
    (task,) = phases("baird", "off-policy")
    np.testing.assert_array_equal(task.values(), np.zeros(7))
    np.testing.assert_array_equal(np.unique(task.ratios()), [0.0, 7.0])
    weights, walker = np.ones(8), Walker(task, np.random.default_rng(0))
    seen = walker.walk(3_000)
    rows = zip(seen.states, seen.rewards, seen.next_states, seen.weights, strict=True)
    for before, reward, after, ratio in rows:
        weights = weights + 0.01 * ratio * (reward + (task.gamma * after - before) @ weights) * before
    assert np.abs(weights).max() > 10
    assert evaluate_one("baird", "off-policy", "kova-head", 0, 2_000)["error"][-1] < 1e-3


def test_states_of_the_aliasing_chain_look_alike_and_differ_in_value() -> None:
    (task,) = phases("aliased", "on-policy")
    assert len(np.unique(task.features, axis=0)) == 25
    assert (np.diff(task.values()) > 0).all()


def test_a_garnet_is_the_same_for_all_seeds_and_of_order_one() -> None:
    one, two = (phases("garnet-100", "on-policy")[0] for _ in range(2))
    np.testing.assert_array_equal(one.moves, two.moves)
    assert ((one.moves[:, :, :-1] > 0).sum(2) == 5).all()
    assert 0.1 < np.abs(one.values()).max() < 5


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_control_tasks_have_a_truth_from_rollouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STATES", 6)
    monkeypatch.setattr(control, "ROLLOUTS", 4)
    control._own.cache_clear()
    curves = evaluate_one(name, "on-policy", "kova-head", 0, samples=400)
    assert curves["truth"].shape == curves["mean"].shape == curves["std"].shape
    assert np.isfinite(curves["coverage"]).all()
    again = evaluate_one(name, "on-policy", "lstd", 0, samples=400)
    np.testing.assert_array_equal(curves["truth"], again["truth"])
    control._own.cache_clear()
    with pytest.raises(ValueError, match="condition must be one of 'on-policy', got 'switch'"):
        evaluate_one(name, "switch", "kova", 0)
