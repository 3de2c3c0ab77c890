"""Policy evaluation in an environment of one's own."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kova_rl.lab.evaluation import environment, evaluate, own, rollouts
from kova_rl.lab.evaluation.tasks import TASKS, conditions_of

EVERY = [(task, condition) for task in TASKS for condition in conditions_of(task)]


class Stairs(gymnasium.Env[Any, Any]):
    """Walks down n stairs, one a step unless the foot slips back; each step costs 1. V is known."""

    SLIP, STAIRS = 0.2, 5

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 10.0, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.STAIRS
        return np.array([float(self.left)]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if int(action) == 1 and self.np_random.random() >= self.SLIP:
            self.left -= 1
        return np.array([float(self.left)]), -1.0, self.left == 0, False, {}

    @classmethod
    def value(cls, left: Any, gamma: float) -> Any:
        """V(n) = -1 + gamma ((1 - slip) V(n-1) + slip V(n)), V(0) = 0."""
        known = [0.0]
        for _ in range(cls.STAIRS):
            known.append((-1 + gamma * (1 - cls.SLIP) * known[-1]) / (1 - gamma * cls.SLIP))
        return np.array(known)[np.asarray(left, dtype=int)]


class Uncopied(Stairs):
    """The same, but for its refusal to be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")


def down(observation: Any) -> int:
    return 1


def timed() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Stairs(), 4)


@pytest.mark.parametrize("make", [Stairs, timed])
def test_rollouts_of_copies_find_the_value_also_beyond_a_time_limit(make: Any) -> None:
    found = rollouts.truth(make(), down, 0.9, seed=3, states=20, rollouts=40)
    truth = Stairs.value(found.states[:, 0], 0.9)
    assert "40 rollouts" in found.note
    assert np.abs((found.values - truth) / found.doubt).mean() < 1.5
    assert len(set(found.values.round(6))) > 5  # copies have chance of their own


@pytest.mark.parametrize("name", ["Pendulum-v1", "Hopper-v5"])
def test_a_copy_is_where_the_original_is(name: str) -> None:
    """Deep copies of MuJoCo's environments, which are of EzPickle, would begin anew."""
    env = environment.make_env(name)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        env.step(env.action_space.sample())
    copy, action = rollouts.copied(env), env.action_space.sample()
    np.testing.assert_array_equal(copy.step(action)[0], env.step(action)[0])
    assert rollouts.can_copy(env, seed=0)


def test_without_copies_single_returns_are_the_truth() -> None:
    found = rollouts.truth(Uncopied(), down, 0.9, seed=3, states=40, rollouts=40)
    assert "one return" in found.note
    assert np.isnan(found.doubt).all()
    for left in range(1, 6):
        mean = found.values[found.states[:, 0] == left].mean()
        assert mean == pytest.approx(Stairs.value(left, 0.9), abs=0.15)


def test_a_return_that_was_cut_is_left_out() -> None:
    def limited() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Uncopied(), 40)

    stay = rollouts.from_episodes(limited(), lambda _: 0, 0.8, seed=0, states=2)
    np.testing.assert_allclose(stay.values, -5.0, rtol=rollouts.TAIL)  # -1/(1 - gamma), for ever
    with pytest.raises(ValueError, match="no return is known"):
        rollouts.from_episodes(limited(), lambda _: 0, 0.99, seed=0, states=2)


def test_a_policy_in_ones_own_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kova_rl.lab.terminal.EVERY", 0.0)
    critics = ("kova", "kova-head", "lstd")
    panel = evaluate(Stairs, down, gamma=0.9, samples=1_600, seeds=2, critics=critics, states=10, rollouts=20)
    assert panel.task == "Stairs"
    said = capsys.readouterr().out
    assert "Stairs, walking: 100 steps" in said
    assert "Stairs, Kova, seed 1: 1,600 of 1,600 samples" in said
    assert "standard error of the truth" in panel.note
    for name in critics:
        assert panel.stack(name, "error")[:, -1].mean() < 0.35
        assert panel.stack(name, "explained")[:, -1].mean() > 0.8
    assert np.isfinite(panel.stack("kova", "coverage")).any()
    middle, std = panel.stack("kova-head", "answer").mean(0)
    assert abs(middle - Stairs.value(5, 0.9)) < 4 * std
    assert std < 0.2
    low, high = (float(x) for x in re.findall(r"interval (\S+) to (\S+)\)", own.answer(panel))[0])
    assert low < Stairs.value(5, 0.9) < high


def test_discrete_observations_are_flattened() -> None:
    seen = environment.collect(gymnasium.make("FrozenLake-v1"), lambda _: 2, 50, seed=0)
    assert seen.states.shape == (50, 16)
    assert (seen.states.sum(1) == 1).all()
