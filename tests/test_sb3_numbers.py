"""What is logged, what a NaN does, and what a file keeps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from kova_rl import NonFiniteBatch, covariance
from kova_rl.sb3 import (
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaTD3,
    KovaTRPO,
)
from tests.hosts import ALL, small

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


# ---------------------------------------------------------------------- diagnostics


KEYS = {
    *("kova/innovation_mean", "kova/innovation_std", "kova/nis", "kova/update_norm"),
    *("kova/variance_max", "kova/variance_mean", "train/value_loss"),
}


@pytest.mark.parametrize("cls", [KovaPPO, KovaA2C, KovaTRPO, KovaDQN, KovaDDPG, KovaSAC])
def test_the_hosts_logger_gets_the_filters_numbers(cls: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = small(cls, tensorboard_log=str(tmp_path))
    model.learn(410 if cls in (KovaDDPG, KovaSAC) else 120, log_interval=1)
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    scalars = set(events.Tags()["scalars"])
    wanted = set(KEYS) | {"train/explained_variance"}
    if cls not in (KovaDQN, KovaDDPG):
        wanted.add("train/entropy")
    assert wanted <= scalars
    for key in wanted:
        values = [event.value for event in events.Scalars(key)]
        assert np.isfinite(values).all() or key == "train/explained_variance", key


@pytest.mark.filterwarnings("ignore:the first innovations:UserWarning")  # of Pendulum's rewards
@pytest.mark.parametrize("kova", [None, {}])
def test_trpo_logs_its_policys_entropy_with_either_critic(kova: Any) -> None:
    model = KovaTRPO("MlpPolicy", "Pendulum-v1", kova=kova, n_steps=70, batch_size=32, seed=0)
    model.learn(70)
    log_std = model.policy.log_std.item()  # of a Gaussian whose entropy is the same in every state
    expected = 0.5 * (1 + np.log(2 * np.pi)) + log_std
    assert log_std != 0
    assert model.logger.name_to_value["train/entropy"] == pytest.approx(expected, rel=1e-5)


def test_the_value_loss_is_the_mean_squared_innovation() -> None:
    model = small(KovaPPO, n_epochs=1, n_steps=16, batch_size=16)
    model.learn(16)
    noted = model.logger.name_to_value["train/value_loss"]
    model._record_filters()
    assert model.logger.name_to_value["train/value_loss"] == pytest.approx(noted)
    critic = small(KovaPPO, n_epochs=1, n_steps=16, batch_size=16).policy  # as it was before the one update
    returns = torch.as_tensor(model.rollout_buffer.returns.flatten())
    obs = torch.as_tensor(model.rollout_buffer.observations.reshape(16, -1))
    expected = (returns - critic.predict_values(obs).flatten()).square().mean().item()
    assert model.logger.name_to_value["train/value_loss"] == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------------- bad numbers


class Poisoned(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a NaN reward or observation at one step."""

    def __init__(self, env: gym.Env[Any, Any], at: int, what: str) -> None:
        super().__init__(env)
        self.at, self.what, self.count = at, what, 0
        self.before: Any = lambda: None

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.count += 1
        if self.count == self.at:
            self.before()
            return (
                (obs, float("nan"), terminated, truncated, info)
                if self.what == "reward"
                else (obs * np.float32("nan"), reward, terminated, truncated, info)
            )
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_nan_from_an_environment_changes_nothing(cls: Any, normalised: bool, what: str) -> None:
    name = "Pendulum-v1" if cls in (KovaSAC, KovaDDPG, KovaTD3) else "CartPole-v1"
    env: Any = DummyVecEnv([lambda: Poisoned(gym.make(name), 50, what)])
    poisoned = env.envs[0]
    if normalised:
        env = VecNormalize(env)
    model = small(cls, env)
    before: list[Any] = []
    poisoned.before = lambda: before.append(copy.deepcopy(model.get_parameters()))
    with pytest.raises(NonFiniteBatch, match=f"gave the {what}"):
        model.learn(200)
    assert any(name.startswith("filters.") for name in before[0])
    assert same(model.get_parameters(), before[0])
    if normalised:
        assert np.isfinite(env.ret_rms.var)
        assert env.ret_rms.count == pytest.approx(49 + 1e-4)  # the steps before it, and no more
        assert np.isfinite(env.obs_rms.mean).all()


@pytest.mark.parametrize("cls", [KovaPPO, KovaA2C, KovaTRPO, KovaDQN])
def test_observations_may_be_numbers(cls: Any) -> None:
    """Of a discrete space, whose last observation of an episode is a scalar."""
    model = small(cls, "FrozenLake-v1").learn(64)
    assert model.num_timesteps >= 64


@pytest.mark.parametrize("cls", [KovaPPO, KovaTRPO, KovaDQN, KovaSAC])
def test_a_bad_buffer_changes_nothing(cls: Any) -> None:
    """If a NaN gets past the guard, for example from a buffer that was filled by hand."""
    model = small(cls).learn(64)
    buffer = model.replay_buffer if cls in (KovaDQN, KovaSAC) else model.rollout_buffer
    (buffer.rewards if cls in (KovaDQN, KovaSAC) else buffer.returns)[:] = np.nan
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    arguments = (1, 16) if cls in (KovaDQN, KovaSAC) else ()
    with pytest.raises(NonFiniteBatch):
        model.train(*arguments)
    assert all(torch.equal(value, model.policy.state_dict()[key]) for key, value in before.items())


# ---------------------------------------------------------------------- saving


@pytest.mark.parametrize("cls", ALL)
def test_going_on_after_a_load_is_going_on(cls: Any, tmp_path: Path) -> None:
    name = "Pendulum-v1" if cls in (KovaSAC, KovaDDPG, KovaTD3) else "CartPole-v1"
    off = cls in (KovaSAC, KovaDDPG, KovaTD3, KovaDQN)

    def environment() -> VecNormalize:
        return VecNormalize(make_vec_env(name, n_envs=2, seed=9))

    kova = {"covariance": covariance.LowRank(8, dtype=torch.float64), "eta": 0.01}
    model = small(cls, environment(), kova=kova).learn(100)
    model.save(tmp_path / "model.zip")
    if off:
        model.save_replay_buffer(tmp_path / "buffer")
    loaded = cls.load(tmp_path / "model.zip", env=environment())
    if off:
        loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.kova == model.kova
    ends = []
    for each in (model, loaded):
        normalisation = each.get_vec_normalize_env()
        normalisation.seed(4)
        each._last_obs = None
        each.set_random_seed(5)
        each.learn(80, reset_num_timesteps=False)
        ends.append(each)
    one, two = (each.get_parameters() for each in ends)
    assert one.keys() == two.keys()
    assert any(key.startswith("filters.") for key in one)
    for key in one:
        assert same(one[key], two[key]), key
    assert ends[0].num_timesteps == ends[1].num_timesteps >= 180
    assert np.array_equal(*(each.get_vec_normalize_env().ret_rms.var for each in ends))


def same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)
