"""Error bars of the Stable-Baselines3 classes: from the buffer that the model has, and against the truth."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kova_rl.sb3 import KovaA2C, KovaDQN, KovaPPO, KovaSAC, KovaTD3
from kova_rl.sb3.bars import Replayed, rolled_out
from kova_rl.sb3.collected import Cuts


class Coin(gymnasium.Env[Any, Any]):
    """Ten states at random, rewards of mean s whatever is done; V = s + gamma 4.5/(1 - gamma), for ever."""

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (10,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(10))
        return self.seen(), {}

    def seen(self) -> Any:
        return np.eye(10, dtype=np.float32)[self.state]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 0.1 * self.state + 0.3 * self.np_random.normal()
        self.state = int(self.np_random.integers(10))
        return self.seen(), float(reward), False, False, {}


GAMMA = 0.8
TRUTH = 0.1 * np.arange(10) + GAMMA * 0.45 / (1 - GAMMA)
EVERY = np.eye(10, dtype=np.float32)


def small() -> dict[str, Any]:
    """Settings of a small network; the host changes the dict that it is given."""
    return {"policy_kwargs": {"net_arch": [16]}, "seed": 0, "device": "cpu"}


@pytest.mark.filterwarnings("ignore:the first innovations:UserWarning")
@pytest.mark.parametrize("cls", [KovaPPO, KovaA2C])
@pytest.mark.parametrize("envs", [1, 3])
def test_a_rollout_is_read_as_it_was_walked(cls: Any, envs: int) -> None:
    model = cls("MlpPolicy", make_vec_env("CartPole-v1", envs), n_steps=64, **small()).learn(128 * envs)
    head = model._heads()
    stream = rolled_out(model, head, Cuts())
    assert stream is not None
    buffer = model.rollout_buffer
    starts = np.vstack([buffer.episode_starts[1:], model._last_episode_starts[None]])
    np.testing.assert_array_equal(stream.discounts.numpy(), np.where(starts.T.flatten(), 0.0, model.gamma))
    np.testing.assert_allclose(stream.rewards.numpy(), buffer.rewards.T.flatten())
    going = ~stream.borders[:-1]
    torch.testing.assert_close(stream.next_features[:-1][going], stream.features[1:][going])
    values = (stream.features @ head.weights).reshape(envs, -1)
    last = model.policy.predict_values(model.policy.obs_to_tensor(model._last_obs)[0]).flatten()
    after = (stream.next_features @ head.weights).reshape(envs, -1)
    # the host multiplies in float32, and values of 20 are rounded at 2e-6
    torch.testing.assert_close(after[:, -1], last.detach().double(), rtol=1e-6, atol=1e-5)
    assert values.shape == (envs, 64)
    assert bool(((stream.weights > 0) & (stream.weights <= 10)).all())


@pytest.mark.parametrize("envs", [1, 2])
def test_a_step_that_a_time_limit_cut_is_left_out(envs: int) -> None:
    env = make_vec_env(lambda: gymnasium.wrappers.TimeLimit(Coin(), 10), envs)
    model = KovaPPO("MlpPolicy", env, gamma=GAMMA, n_steps=64, **small()).learn(128 * envs)
    stream = rolled_out(model, model._heads(), model._cuts)
    assert stream is not None
    cut = np.vstack([model.rollout_buffer.episode_starts[1:], model._last_episode_starts[None]]).T > 0
    assert cut.sum() >= 6 * envs
    np.testing.assert_allclose(stream.rewards.numpy(), model.rollout_buffer.rewards.T[~cut])
    assert bool((stream.discounts == GAMMA).all())  # nothing ever terminates
    going = ~stream.borders[:-1]
    torch.testing.assert_close(stream.next_features[:-1][going], stream.features[1:][going])
    assert int(stream.borders.sum()) >= cut.sum()


def test_what_an_early_critic_believed_at_a_cut_does_not_move_the_bars() -> None:
    """The host has added a value of about 0, where 2.25 is true, to every tenth reward."""
    env = gymnasium.wrappers.TimeLimit(Coin(), 10)
    model = KovaPPO("MlpPolicy", env, gamma=GAMMA, n_steps=1024, n_epochs=1, **small()).learn(1024)
    with torch.no_grad():
        (solution,) = model._solutions()
        solved = solution.belief(model._heads()(torch.as_tensor(EVERY)))
    held = np.abs(solved.mean.numpy() - TRUTH) <= 1.96 * solved.std.numpy()
    assert held.mean() >= 0.8


def test_the_bars_of_ppo_hold_where_the_filters_own_are_too_narrow() -> None:
    model = KovaPPO("MlpPolicy", Coin(), gamma=GAMMA, n_steps=1024, **small()).learn(4096)
    solved, own = (model.value_distribution(EVERY, bars=bars) for bars in ("solved", "filter"))
    assert torch.equal(solved.mean, own.mean)
    held = np.abs(solved.mean.numpy() - TRUTH) <= 1.96 * solved.std.numpy()
    assert held.mean() >= 0.8
    assert float(solved.std.mean()) < 0.5  # and are of use
    torch.testing.assert_close(solved.covariance.diagonal().sqrt(), solved.std, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("filtered", ["v", "q"])
def test_sac_and_dqn_answer_from_their_replay(filtered: Any) -> None:
    sac = KovaSAC(
        "MlpPolicy", Coin(True), gamma=GAMMA, filtered=filtered, learning_starts=300, **small()
    ).learn(700)
    belief = sac.value_distribution(EVERY)
    assert belief.mean.shape == (10,)
    assert bool((belief.std > 0).all() and belief.std.isfinite().all())
    dqn = KovaDQN("MlpPolicy", Coin(), gamma=GAMMA, learning_starts=100, **small()).learn(1500)
    found = dqn.value_distribution(EVERY)
    held = np.abs(found.mean.numpy() - TRUTH[:, None]) <= 1.96 * found.std.numpy()
    assert held.mean() >= 0.8


def test_asking_does_not_move_the_hosts_random_numbers_and_answers_alike() -> None:
    model = KovaSAC("MlpPolicy", Coin(True), learning_starts=50, **small()).learn(100)
    before = torch.get_rng_state()
    first, again = (model.value_distribution(EVERY) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.mean, again.mean)


def test_without_data_the_filters_own_come_with_a_warning(tmp_path: Any) -> None:
    KovaPPO("MlpPolicy", Coin(), n_steps=64, **small()).learn(64).save(tmp_path / "m.zip")
    loaded = KovaPPO.load(tmp_path / "m.zip", device="cpu")
    with pytest.warns(UserWarning, match="no transitions at hand"):
        belief = loaded.value_distribution(EVERY)
    assert torch.equal(belief.std, loaded.value_distribution(EVERY, bars="filter").std)
    with pytest.raises(ValueError, match="bars must be one of 'solved', 'filter'"):
        loaded.value_distribution(EVERY, bars="wide")  # type: ignore[arg-type]


@pytest.mark.parametrize("compact", [False, True])
def test_a_replay_is_read_in_the_order_of_time_round_its_end(compact: bool) -> None:
    kwargs = {"handle_timeout_termination": False} if compact else {}
    model = KovaDQN(
        "MlpPolicy",
        "CartPole-v1",
        buffer_size=60,
        learning_starts=10,
        optimize_memory_usage=compact,
        replay_buffer_kwargs=kwargs,
        **small(),
    ).learn(100)
    data = Replayed(model.replay_buffer, None, model.device)
    going = ~data.borders[:-1]
    assert len(data.rewards) == (59 if compact else 60)
    torch.testing.assert_close(data.next_observations[:-1][going], data.observations[1:][going])


def test_normalised_environments_and_twins() -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", 2))
    model = KovaTD3("MlpPolicy", env, learning_starts=50, train_freq=1, **small()).learn(200)
    data = Replayed(model.replay_buffer, env, model.device)
    assert float(data.observations.abs().max()) <= 10.0
    assert model.value_distribution(env.reset()).std.shape == (2,)
