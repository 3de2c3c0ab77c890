"""Worlds that change: which step sees which physics, copies, bad input, and runs in one segment or ten."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_sb3

from kova_rl.envs import Change, ChangingPhysics
from kova_rl.envs.physics import Schedule
from kova_rl.lab.run import make
from kova_rl.lab.training.config import RunConfig

pytest.importorskip("mujoco")

TASKS = ("kova/ChangingHopper-v0", "kova/ChangingHalfCheetah-v0")
CHANGES = [Change(at=3, gravity=2.0, motors=0.5), Change(at=5, over=2, friction=0.0), Change(at=9, gravity=1)]


def arrays(env: gymnasium.Env) -> dict[str, np.ndarray]:
    model = env.unwrapped.model
    found = {"friction": model.geom_friction, "gravity": model.opt.gravity, "motors": model.actuator_gear}
    return {name: array.copy() for name, array in found.items()}


def physics_of(env: gymnasium.Env, steps: int) -> list[dict[str, float]]:
    """What ``info`` says of each step; the model must have exactly that, of what a new task has."""
    own, said = arrays(gymnasium.make("Hopper-v5")), []
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, info = env.step(np.zeros(env.action_space.shape))
        for name, array in arrays(env).items():
            np.testing.assert_array_equal(array, info["physics"][name] * own[name])
        said.append(info["physics"])
        if terminated or truncated:
            env.reset()
    return said


def test_each_step_has_the_physics_that_info_says() -> None:
    said = physics_of(ChangingPhysics(gymnasium.make("Hopper-v5"), CHANGES), 12)
    assert [one["gravity"] for one in said] == [1] * 3 + [2] * 6 + [1] * 3
    assert [one["motors"] for one in said] == [1] * 3 + [0.5] * 9
    assert [one["friction"] for one in said] == [1] * 5 + [0.5] + [0] * 6


@pytest.mark.parametrize("changed", [{"gravity": 2.0}, {"friction": 0.1}, {"motors": 0.3}])
def test_the_world_is_the_same_up_to_the_change_and_another_after_it(changed: dict[str, float]) -> None:
    own = gymnasium.make("HalfCheetah-v5")
    env = ChangingPhysics(gymnasium.make("HalfCheetah-v5"), [Change(at=40, **changed)])
    own.reset(seed=0)
    env.reset(seed=0)
    action = np.full(6, 0.7)
    same = [np.array_equal(own.step(action)[0], env.step(action)[0]) for _ in range(80)]
    assert all(same[:40])
    assert not any(same[45:])


def test_steps_are_counted_across_episodes_and_a_reset_says_what_comes() -> None:
    env = ChangingPhysics(gymnasium.make("Hopper-v5", max_episode_steps=4), [Change(at=6, gravity=3.0)])
    infos = []
    for _ in range(3):
        infos.append(env.reset(seed=0)[1])
        infos += [env.step(env.action_space.sample())[-1] for _ in range(3)]
    assert [info["physics"]["gravity"] for info in infos] == [1] * 8 + [3] * 4
    assert env.steps == 9


def test_it_starts_where_another_copy_was() -> None:
    whole = physics_of(ChangingPhysics(gymnasium.make("Hopper-v5"), CHANGES), 12)
    assert physics_of(ChangingPhysics(gymnasium.make("Hopper-v5"), CHANGES, start=5), 7) == whole[5:]
    env = ChangingPhysics(gymnasium.make("Hopper-v5"), CHANGES)
    env.start_at(8)
    assert physics_of(env, 4) == whole[8:]


def test_closing_puts_the_physics_back_and_a_new_one_has_its_own() -> None:
    task, own = gymnasium.make("Hopper-v5"), arrays(gymnasium.make("Hopper-v5"))
    env = ChangingPhysics(task, [Change(at=0, gravity=2.0, friction=0.5, motors=0.5)])
    env.reset(seed=0)
    assert arrays(task)["gravity"][2] == -2 * 9.81
    env.close()
    for changed in (task, gymnasium.make("Hopper-v5")):
        for name, array in arrays(changed).items():
            np.testing.assert_array_equal(array, own[name])


def test_draws_follow_from_the_seed_of_the_world_and_not_of_the_reset() -> None:
    def drawn(seed: int, reset: int) -> tuple[float, float]:
        change = Change(at=0, gravity=(0.5, 1.5), motors=(0.2, 0.4))
        env = ChangingPhysics(gymnasium.make("Hopper-v5"), [change], seed=seed)
        physics = env.reset(seed=reset)[1]["physics"]
        return physics["gravity"], physics["motors"]

    assert drawn(1, 0) == drawn(1, 5) != drawn(2, 0)
    assert 0.5 <= drawn(1, 0)[0] <= 1.5
    assert 0.2 <= drawn(1, 0)[1] <= 0.4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_with_the_steps_and_the_physics(copied: Any) -> None:
    env = gymnasium.make(TASKS[0], at=2, over=4, gravity=2.0)
    physics_of(env, 3)
    other = copied(env)
    assert physics_of(other, 4) == physics_of(env, 4)
    assert arrays(other)["gravity"][2] == -2 * 9.81


@pytest.mark.parametrize("name", TASKS)
def test_gymnasium_and_stable_baselines_accept_the_tasks(name: str) -> None:
    env = gymnasium.make(name, disable_env_checker=True).env.env
    assert isinstance(env, ChangingPhysics)
    with pytest.warns(UserWarning, match="different from the unwrapped|infinity"):
        check_env(env, skip_render_check=True)
    check_sb3(env, warn=False)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_made_again_from_its_spec(name: str) -> None:
    env = gymnasium.make(name, at=1, friction=0.5, seed=3)
    for spec in (env.spec, type(env.spec).from_json(env.spec.to_json())):
        again = gymnasium.make(spec)
        assert str(again) == str(env)
        again.reset(seed=0)
        again.step(again.action_space.sample())
        assert again.step(again.action_space.sample())[-1]["physics"]["friction"] == 0.5


def test_each_of_several_copies_counts_its_own_steps() -> None:
    envs = gymnasium.make_vec(TASKS[0], num_envs=3, vectorization_mode="sync", at=2, gravity=2.0)
    envs.reset(seed=0)
    said = [envs.step(envs.action_space.sample())[-1]["physics"]["gravity"].tolist() for _ in range(4)]
    assert said == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
    envs.close()


@given(st.integers(0, 40), st.integers(1, 20), st.floats(0, 4), st.integers(0, 80))
def test_a_slow_change_moves_evenly(at: int, over: int, factor: float, step: int) -> None:
    share = min(max((step - at + 1) / over, 0), 1)
    found = Schedule([Change(at=at, over=over, motors=factor)], 0).at(step)
    assert found == {"friction": 1, "gravity": 1, "motors": pytest.approx(1 + share * (factor - 1))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "at least one Change"),
        (Change(at=1, gravity=2), "a list of Change"),
        ([{"at": 1, "gravty": 2}], "a mapping with at and some of"),
        ([{"gravity": 2}], "a mapping with at"),
        ([{"at": 1}], "must say what changes"),
        ([{"at": -1, "gravity": 2}], "at must be a whole number, at least 0"),
        ([{"at": 1.5, "gravity": 2}], "at must be a whole number"),
        ([{"at": 1, "over": 0, "gravity": 2}], "over must be a whole number, at least 1"),
        ([{"at": 1, "gravity": -1}], "gravity must be a factor from 0"),
        ([{"at": 1, "gravity": float("nan")}], "gravity must be a factor from 0"),
        ([{"at": 1, "gravity": "2"}], "gravity must be a factor from 0"),
        ([{"at": 1, "motors": (2, 1)}], r"motors must be a factor, or \(lowest, highest\)"),
        ([{"at": 1, "motors": (1,)}], r"motors must be a factor, or \(lowest, highest\)"),
        ([{"at": 5, "over": 3, "motors": 2}, {"at": 7, "motors": 1}], "begins at step 7.*over at step 8"),
    ],
)
def test_bad_changes_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChangingPhysics(gymnasium.make("Hopper-v5"), changes)


def test_bad_worlds_are_refused() -> None:
    change, hopper = Change(at=1, gravity=2), gymnasium.make("Hopper-v5")
    with pytest.raises(ValueError, match=r"CartPole.*must be a MuJoCo task"):
        ChangingPhysics(gymnasium.make("CartPole-v1"), [change])
    with pytest.raises(ValueError, match="give one wrapper all the changes"):
        ChangingPhysics(gymnasium.wrappers.TimeLimit(ChangingPhysics(hopper, [change]), 5), [change])
    with pytest.raises(ValueError, match="start must be a whole number, at least 0"):
        ChangingPhysics(hopper, [change], start=-1)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        ChangingPhysics(hopper, [change], seed=None)
    hopper.unwrapped.model.opt.gravity[:] = 0
    with pytest.raises(ValueError, match="has no gravity to change"):
        ChangingPhysics(hopper, [change])


def test_the_package_and_its_environments_do_not_need_mujoco() -> None:
    code = "import sys; sys.modules['mujoco'] = None; import kova_rl, kova_rl.envs"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------- in the lab

SEEN: list[float] = []


class Watched(gymnasium.Wrapper):
    """Notes the gravity that each step was made with."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        SEEN.append(-self.unwrapped.model.opt.gravity[2] / 9.81)
        return result


@pytest.fixture
def watched() -> Iterator[str]:
    def task(**options: Any) -> gymnasium.Env:
        return Watched(gymnasium.make(TASKS[0], **options))

    gymnasium.register("WatchedHopper-v0", entry_point=task)
    yield "WatchedHopper-v0"
    del gymnasium.registry["WatchedHopper-v0"]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("over", [1, 150])
def test_a_run_sees_the_change_at_the_same_step_in_one_segment_and_in_ten(
    copies: int, over: int, watched: str, tmp_path: Path
) -> None:
    def seen(segments: int) -> list[float]:
        SEEN.clear()
        options = {"at": 333, "over": over, "gravity": 2.0}
        host = {"n_steps": 64 // copies, "batch_size": 64, "n_epochs": 1}
        config = RunConfig(
            *("ppo", watched, "adam"),
            steps=640 * copies,
            segments=segments,
            n_envs=copies,
            environment_options=options,
            host=host,
        )
        make(config, tmp_path)
        return list(SEEN)

    whole = seen(1)
    schedule = Schedule([Change(at=333, over=over, gravity=2.0)], 0)
    assert whole == pytest.approx([schedule.at(i // copies)["gravity"] for i in range(640 * copies)])
    assert whole[332 * copies] == 1 < whole[333 * copies]
    assert seen(10) == whole
