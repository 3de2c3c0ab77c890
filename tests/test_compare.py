"""Which of two policies is better, and how good one is from data: against values that are solved for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kova_rl import InvalidBatch
from kova_rl.lab.evaluation import compare, evaluate_data
from kova_rl.lab.evaluation.compare import Comparison
from kova_rl.lab.evaluation.environment import collect
from kova_rl.lab.evaluation.estimate import Estimate

SIZE, GAMMA, SLIP = 7, 0.9, 0.2


class Corridor(gymnasium.Env[Any, Any]):
    """A step left or right slips at 0.2; out on the right for +1, on the left for -1, from anywhere."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (SIZE,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(SIZE))
        return self.seen(), {}

    def seen(self) -> Any:
        return np.eye(SIZE, dtype=np.float32)[min(max(self.place, 0), SIZE - 1)]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = bool(action) != (self.np_random.random() < SLIP)
        self.place += 1 if right else -1
        out = not 0 <= self.place < SIZE
        return self.seen(), (1.0 if right else -1.0) if out else 0.0, out, False, {}


def right(observation: Any) -> int:
    return 1


def to_the_nearer_end(observation: Any) -> int:
    return int(np.argmax(observation) >= SIZE // 2)


def values(policy: Any) -> Any:
    """Of each place, solved for."""
    moves, rewards = np.zeros((SIZE, SIZE)), np.zeros(SIZE)
    for place in range(SIZE):
        up = 1 - SLIP if policy(np.eye(SIZE)[place]) else SLIP
        for after, share, reward in ((place + 1, up, 1.0), (place - 1, 1 - up, -1.0)):
            if 0 <= after < SIZE:
                moves[place, after] += share
            else:
                rewards[place] += share * reward
    return np.linalg.solve(np.eye(SIZE) - GAMMA * moves, rewards)


AHEAD = values(right) - values(to_the_nearer_end)


@pytest.mark.parametrize(
    ("samples", "seeds"), [(400, 20), pytest.param(1_000, 100, marks=pytest.mark.slow, id="slow")]
)
def test_intervals_of_the_difference_hold_over_seeds_and_name_the_better_one(
    samples: int, seeds: int
) -> None:
    held, right_ones = 0, 0
    for seed in range(seeds):
        found = compare(Corridor, right, to_the_nearer_end, gamma=GAMMA, samples=samples, walks=1, seed=seed)
        low, high = found.difference.interval()
        held += low <= AHEAD.mean() <= high
        right_ones += str(found).startswith("A is better")
    assert held >= (16 if seeds == 20 else 88)  # at 95% fewer come once in 400 times
    assert right_ones >= 0.8 * seeds  # and they are narrow enough to decide


def test_a_policy_is_not_better_than_itself() -> None:
    wrong = 0
    for seed in range(10):
        found = compare(Corridor, right, right, gamma=GAMMA, samples=400, walks=1, seed=seed)
        wrong += not str(found).startswith("It is open")
    assert wrong <= 2


@pytest.mark.parametrize("place", [1, 5])
def test_in_one_state(place: int) -> None:
    state = np.eye(SIZE, dtype=np.float32)[place]
    found = compare(Corridor, right, to_the_nearer_end, gamma=GAMMA, samples=800, walks=2, at=state)
    assert "in this state" in str(found)
    assert found.difference.value == pytest.approx(AHEAD[place], abs=4 * found.difference.std)
    assert found.difference.std < 0.3
    assert (found.sure > 0.99) == (place == 1)  # where the policies part; at 5 they do the same


def test_data_that_were_collected_say_how_good_their_policy_is() -> None:
    seen = collect(Corridor(), right, 2_000, seed=0)
    columns = (seen.states, seen.rewards, seen.next_states, seen.terminated)
    worth = evaluate_data(*columns, gamma=GAMMA)
    assert worth.value == pytest.approx(values(right).mean(), abs=3 * worth.std)
    assert worth.std < 0.1
    assert worth == evaluate_data(*columns, seen.truncated, np.ones(2_000), gamma=GAMMA)
    last = evaluate_data(*columns, gamma=GAMMA, at=np.eye(SIZE)[-1:])
    assert last.value == pytest.approx(values(right)[-1], abs=3 * last.std)


def test_importance_weights_turn_data_of_one_policy_into_those_of_another() -> None:
    rng = np.random.default_rng(0)

    steps: list[tuple[Any, float, Any, bool, float]] = []
    env = Corridor()
    now, _ = env.reset(seed=0)
    for _ in range(4_000):
        action = int(rng.random() < 0.5)
        after, reward, over, _, _ = env.step(action)
        steps.append((now, reward, after, over, 2.0 * action))  # always right, over even chances
        now = env.reset()[0] if over else after
    before, rewards, after, over, weights = (np.array(column) for column in zip(*steps, strict=True))
    worth = evaluate_data(before, rewards, after, over, None, weights, gamma=GAMMA)
    assert worth.value == pytest.approx(values(right).mean(), abs=3 * worth.std)
    assert abs(worth.value) > 3 * worth.std  # the walker's own value is 0


def test_what_is_wrong_is_said() -> None:
    ones = np.ones((10, 2))
    with pytest.raises(InvalidBatch, match=r"rewards must have shape \(10,\)"):
        evaluate_data(ones, np.ones(9), ones, np.zeros(10))
    with pytest.raises(InvalidBatch, match="next_observations must be as the observations"):
        evaluate_data(ones, np.ones(10), ones[:, :1], np.zeros(10))
    with pytest.raises(InvalidBatch, match="observations must be rows of numbers"):
        evaluate_data(np.ones(10), np.ones(10), np.ones(10), np.zeros(10))
    with pytest.raises(ValueError, match="gamma must be a number in"):
        compare(Corridor, right, right, gamma=2.0)


def test_one_line() -> None:
    line = str(Comparison(Estimate(3.0, 0.3), Estimate(1.0, 0.4)))
    assert line == (
        "A is better than B: A less B is 2 at the beginning of an episode (discounted), 95% interval 1.02 to "
        "2.98; A is better with probability 99.99%."
    )
    assert str(Comparison(Estimate(1.0, 1.0), Estimate(2.0, 1.0))).startswith("It is open: A less B is -1")
    assert Comparison(Estimate(1.0, 0.0), Estimate(1.0, 0.0)).sure == 0.5
