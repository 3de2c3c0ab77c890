"""The mazes: hand-played episodes, Gymnasium's contract, bad input."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_sb3

from kova_rl.envs import MAZE4, MAZE10, Layout, MazeEnv
from kova_rl.envs.layout import MOVES

LEFT, UP, RIGHT, DOWN = range(4)


@pytest.mark.parametrize(
    ("name", "options"),
    [("kova/Maze4-v0", {}), ("kova/Maze10-v0", {}), ("kova/Maze-v0", {"size": (5, 7), "layout_seed": 3})],
)
@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
@pytest.mark.filterwarnings("ignore:.*render fps.*", "ignore:.*ansi.*")
def test_gymnasium_and_stable_baselines_accept_them(name: str, options: dict, render_mode: str) -> None:
    env = gymnasium.make(name, render_mode=render_mode, **options)
    check_env(env.unwrapped)
    check_sb3(env.unwrapped)


def play(env: MazeEnv, start: tuple[int, int], actions: list[int]) -> list[tuple[float, bool, bool, dict]]:
    env.reset(seed=0, options={"start": start})
    return [env.step(action)[1:] for action in actions]


def test_a_win_played_by_hand() -> None:
    env = MazeEnv(MAZE4)
    played = play(env, (0, 0), [DOWN, RIGHT, RIGHT, DOWN, DOWN, RIGHT])
    assert [step[0] for step in played] == [-0.04] * 5 + [1.0]
    assert [step[1] for step in played] == [False] * 5 + [True]
    assert not any(step[2] for step in played)
    assert played[-1][3]["is_success"] is True
    assert "is_success" not in played[-2][3]


def test_visited_cells_walls_and_borders_cost_a_quarter() -> None:
    env = MazeEnv(MAZE4)
    # against the wall, against the border, down to a new cell, back to the start, down again
    played = play(env, (0, 0), [RIGHT, UP, DOWN, UP, DOWN])
    assert [step[0] for step in played] == [-0.25, -0.25, -0.04, -0.25, -0.25]


def test_an_episode_is_lost_below_half_a_point_a_cell() -> None:
    env = MazeEnv(MAZE4)
    played = play(env, (0, 0), [UP] * 33)
    assert [step[1] for step in played] == [False] * 32 + [True]  # -8 exactly is not below -8
    assert played[-1][3]["is_success"] is False


def test_the_observation_is_the_maze_with_the_agent_at_one_half() -> None:
    env = MazeEnv(MAZE4)
    observation, _ = env.reset(options={"start": (3, 0)})
    picture = np.array([[float(c) for c in line] for line in MAZE4.split("\n")])
    picture[3, 0] = 0.5
    np.testing.assert_array_equal(observation, picture.ravel())
    observation[:] = 7  # a user's own copy
    again, _ = env.reset(options={"start": (3, 0)})
    np.testing.assert_array_equal(again, picture.ravel())


def test_masks_say_which_moves_are_free() -> None:
    env = MazeEnv(MAZE4)
    _, info = env.reset(options={"start": (1, 2)})
    assert info["action_mask"].tolist() == [1, 1, 0, 1]
    assert env.action_masks().tolist() == [True, True, False, True]
    *_, info = env.step(DOWN)
    assert info["action_mask"].tolist() == [0, 1, 0, 1]


def test_starts_are_all_free_cells_but_the_exit() -> None:
    env = MazeEnv(MAZE10)
    env.reset(seed=0)
    starts = {int(np.flatnonzero(env.reset()[0] == 0.5)[0]) for _ in range(3_000)}
    assert starts == set(env.layout.starts.tolist())
    assert env.layout.exit not in starts
    assert len(starts) == sum(c == "1" for c in MAZE10) - 1


def test_the_same_seed_starts_the_same() -> None:
    first, second = MazeEnv(MAZE10), MazeEnv(MAZE10)
    first.reset(seed=5)
    second.reset(seed=5)
    for _ in range(20):
        np.testing.assert_array_equal(first.reset()[0], second.reset()[0])


def test_the_papers_mazes() -> None:
    assert Layout(MAZE4).distances[0] == 6
    assert Layout(MAZE10).distances[0] == 42
    assert Layout(MAZE10).shape == (10, 10)


def test_pictures() -> None:
    text = MazeEnv(MAZE4, render_mode="ansi")
    play(text, (0, 0), [DOWN, RIGHT])
    assert text.render() == "o#..\noA.#\n##.#\n...X"
    pixels = MazeEnv(MAZE4, render_mode="rgb_array")
    play(pixels, (0, 0), [DOWN, RIGHT])
    image = pixels.render()
    assert image.shape == (128, 128, 3)
    assert image.dtype == np.uint8
    middle = image[16::32, 16::32].reshape(16, 3)  # the colour in the middle of each cell
    agent, visited, free, wall, way_out = (tuple(middle[c]) for c in (5, 4, 6, 1, 15))
    assert len({agent, visited, free, wall, way_out}) == 5
    assert tuple(middle[0]) == visited


@pytest.mark.parametrize(
    ("maze", "message"),
    [
        ("", "empty"),
        ("11\n1", r"not rectangular: row 1 has 1 cells and row 0 has 2.*column 1"),
        ("11\n1?", r"unknown character '\?' at row 1, column 1"),
        ("11\n10", r"exit is blocked: row 1, column 1"),
        ("101\n101\n001", r"no path to the exit.*row 0, column 0.*1 other"),
        ("00\n01", "nowhere to start"),
    ],
)
def test_bad_mazes_say_what_is_wrong_and_where(maze: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MazeEnv(maze)


@pytest.mark.parametrize(
    ("start", "message"),
    [((0, 1), "row 0, column 1 is a wall"), ((4, 0), "outside"), ((3, 3), "exit"), (3, r"\(row, column\)")],
)
def test_bad_starts(start: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MazeEnv(MAZE4).reset(options={"start": start})


def test_too_many_walls_are_refused_and_do_not_hang() -> None:
    with pytest.raises(ValueError, match=r"no maze of 30 x 30 with a share of 0\.6 walls"):
        MazeEnv(size=30, walls=0.6, layout_seed=0)


def test_misuse() -> None:
    env = MazeEnv(MAZE4, render_mode="ansi")
    for misuse in (lambda: env.step(0), env.action_masks, env.render):
        with pytest.raises(gymnasium.error.ResetNeeded):
            misuse()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be 0"):
        env.step(4)
    with pytest.raises(ValueError, match="render_mode"):
        MazeEnv(MAZE4, render_mode="human")
    with pytest.raises(ValueError, match="walls"):
        MazeEnv(walls=0.9)
    with pytest.raises(ValueError, match="size"):
        MazeEnv(size=1)


@given(st.integers(2, 9), st.integers(2, 9), st.floats(0, 0.3), st.integers(0, 2**32))
def test_random_mazes_always_have_a_way_out(rows: int, columns: int, walls: float, seed: int) -> None:
    layout = Layout.random((rows, columns), walls, np.random.default_rng(seed))
    assert layout.shape == (rows, columns)
    again = Layout.random((rows, columns), walls, np.random.default_rng(seed))
    assert again.text == layout.text
    cell = int(layout.starts[0])
    while cell != layout.exit:  # down the distances
        after = [int(to) for to in layout.moves[cell] if to >= 0]
        assert layout.distances[cell] == 1 + min(layout.distances[to] for to in after)
        cell = min(after, key=lambda to: int(layout.distances[to]))


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 10_000))
def test_every_episode_follows_the_rules(actions: list[int], seed: int) -> None:
    """Against a second, naive reading of the paper's rules."""
    env = MazeEnv(size=4, layout_seed=seed)
    observation, _ = env.reset(seed=seed)
    grid = [list(line) for line in env.layout.text.split("\n")]
    row, column = divmod(int(np.flatnonzero(observation == 0.5)[0]), 4)
    visited, total = {(row, column)}, 0.0
    for action in actions:
        down, right = MOVES[action]
        r, c = row + down, column + right
        if 0 <= r < 4 and 0 <= c < 4 and grid[r][c] == "1":
            row, column = r, c
        expected = 1.0 if (row, column) == (3, 3) else -0.25 if (row, column) in visited else -0.04
        visited.add((row, column))
        total += expected
        observation, reward, terminated, truncated, _ = env.step(action)
        assert reward == expected
        assert np.flatnonzero(observation == 0.5).tolist() == [4 * row + column]
        assert terminated == (expected == 1.0 or total < -8)
        assert not truncated
        if terminated:
            return
