"""Error bars, exploration by them, and critics of images and dicts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from kova_rl import evolution
from kova_rl.sb3 import (
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaTD3,
    KovaTRPO,
    Optimism,
    Thompson,
)
from tests.hosts import ON, small

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


# ---------------------------------------------------------------------- images and dicts


class Pictures(gym.Env[Any, Any]):
    """Ten random steps of a small image, or of an image and a vector."""

    def __init__(self, continuous: bool = False, both: bool = False) -> None:
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = (
            spaces.Dict({"image": image, "vector": spaces.Box(-1, 1, (3,))}) if both else image
        )
        self.action_space = spaces.Box(-2, 2, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize("cls", [KovaPPO, KovaTRPO, KovaDQN, KovaSAC])
@pytest.mark.parametrize("both", [False, True])
def test_images_are_refused_with_the_fix_or_filtered_in_the_last_layer(cls: Any, both: bool) -> None:
    off = cls in (KovaDQN, KovaSAC)
    policy = "MultiInputPolicy" if both else "CnnPolicy"
    usual: dict[str, Any] = {"n_steps": 16, "batch_size": 8}
    if off:
        usual = {"buffer_size": 50, "batch_size": 8, "learning_starts": 10}
    usual |= {"seed": 0, "device": "cpu"}
    env = Pictures(continuous=cls is KovaSAC, both=both)
    with pytest.raises(ValueError, match=r"layers='last'"):
        cls(policy, env, **usual)
    model = cls(policy, env, kova={"layers": "last"}, **usual)
    body = model.policy.state_dict()
    before = {key: value.clone() for key, value in body.items() if "features_extractor" in key}
    model.learn(24 if off else 32)
    assert any(not torch.equal(value, model.policy.state_dict()[key]) for key, value in before.items())
    belief = model.value_distribution(model.get_env().reset())
    assert bool((belief.std > 0).all())


def test_separate_extractors_of_linear_layers_are_filtered() -> None:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Box) -> None:
            super().__init__(space, 5)
            self.linear = nn.Linear(4, 5)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(obs))

    kwargs = {"features_extractor_class": Features, "net_arch": [8]}
    with pytest.raises(ValueError, match="share_features_extractor=False"):
        small(KovaPPO, policy_kwargs=dict(kwargs))
    model = small(KovaPPO, policy_kwargs={**kwargs, "share_features_extractor": False}).learn(32)
    tracked = {id(p) for p in model.filters.v.param_groups[0]["params"]}
    assert {id(p) for p in model.policy.vf_features_extractor.parameters()} <= tracked
    assert not {id(p) for p in model.policy.pi_features_extractor.parameters()} & tracked


# ---------------------------------------------------------------------- error bars and exploration


def test_the_pair_of_a_gymnasium_reset_is_refused_by_name() -> None:
    model = small(KovaPPO)
    reset = gym.make("CartPole-v1").reset(seed=0)
    with pytest.raises(ValueError, match=r"got a tuple.*pair \(obs, info\): pass obs alone"):
        model.value_distribution(reset)
    assert model.value_distribution(reset[0], bars="filter").mean.shape == (1,)


def test_rewards_out_of_scale_warn_at_the_first_batch() -> None:
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 1e4 * reward)
    model = KovaPPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, **ON)
    with pytest.warns(UserWarning, match=r"first innovations.*Normalise the rewards"):
        model.learn(64)


def test_value_distributions_have_the_shape_of_what_is_asked() -> None:
    obs4, obs3 = np.zeros((5, 4), np.float32), np.zeros((5, 3), np.float32)
    for cls in (KovaPPO, KovaA2C, KovaTRPO):
        model = small(cls).learn(40)
        belief = model.value_distribution(obs4)
        assert belief.mean.shape == belief.std.shape == (5,)
        tensor, _ = model.policy.obs_to_tensor(obs4)
        assert torch.equal(belief.mean, model.policy.predict_values(tensor).flatten().detach())
        assert model.value_distribution(obs4[0]).mean.shape == (1,)
        with pytest.raises(ValueError, match="no actions"):
            model.value_distribution(obs4, np.zeros(5))
    dqn = small(KovaDQN).learn(60)
    belief = dqn.value_distribution(obs4)
    assert belief.mean.shape == belief.std.shape == (5, 2)
    assert belief.covariance.shape == (10, 10)
    assert belief.sample(3).shape == (3, 5, 2)
    assert torch.allclose(belief.covariance.diagonal().sqrt().reshape(5, 2), belief.std, rtol=1e-3)
    one = dqn.value_distribution(obs4, np.ones(5))
    assert torch.allclose(one.mean, belief.mean[:, 1])
    assert torch.allclose(one.std, belief.std[:, 1], rtol=1e-4)
    actions = np.full((5, 1), 1.0, np.float32)  # of the environment's [-2, 2]
    for model in (small(KovaDDPG), small(KovaTD3), small(KovaSAC, value_network=False)):
        model.learn(40)
        belief = model.value_distribution(obs3, actions)
        q = torch.cat(model.critic(torch.zeros(5, 3), torch.full((5, 1), 0.5)), dim=1).min(1).values
        assert torch.allclose(belief.mean, q.detach(), atol=1e-5)
        assert belief.covariance.shape == (5, 5)
        own = model.policy.scale_action(model.predict(obs3, deterministic=True)[0])
        expected = torch.cat(model.critic(torch.zeros(5, 3), torch.as_tensor(own)), dim=1).min(1).values
        assert torch.allclose(model.value_distribution(obs3).mean, expected.detach(), atol=1e-5)
    sac = small(KovaSAC).learn(40)
    assert torch.equal(sac.value_distribution(obs3).mean, sac.value_net(torch.zeros(5, 3)).detach())
    with pytest.raises(ValueError, match="filtered='both'"):
        sac.value_distribution(obs3, actions)
    assert small(KovaSAC, filtered="both").learn(40).value_distribution(obs3, actions).std.shape == (5,)


def test_memoryless_says_that_its_spread_is_the_priors() -> None:
    model = small(KovaPPO, kova={"evolution": evolution.Memoryless(0.01)}).learn(32)
    assert not model.value_distribution(np.zeros((1, 4), np.float32), bars="filter").tracked


def test_thompson_acts_on_one_draw_an_episode() -> None:
    model = small(KovaDQN, exploration=Thompson()).learn(100)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    nn.init.zeros_(model.q_net.q_net[-1].weight)  # so that the draw decides, not the mean
    model._episode_num = 1
    first = model.predict(obs)[0]
    assert np.array_equal(first, model.predict(obs)[0])
    model._episode_num = 2
    assert not np.array_equal(first, model.predict(obs)[0])
    assert model.exploration_rate == 0.0
    greedy = model.q_net(torch.as_tensor(obs)).argmax(1).numpy()
    assert np.array_equal(model.predict(obs, deterministic=True)[0], greedy)
    assert model.predict(obs[0])[0].shape == ()


def test_optimism_acts_on_mean_and_deviation() -> None:
    model = small(KovaDQN, exploration=Optimism(c=2.0)).learn(100)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    belief = model.value_distribution(obs, bars="filter")
    assert np.array_equal(model.predict(obs)[0], (belief.mean + 2.0 * belief.std).argmax(1).numpy())


@pytest.mark.parametrize("exploration", [Thompson(candidates=4), Optimism(candidates=4)])
def test_sac_explores_among_the_policys_own_draws(exploration: Any) -> None:
    model = small(KovaSAC, filtered="q", exploration=exploration).learn(60)
    obs = np.zeros((3, 3), np.float32)
    taken = model.predict(obs)[0]
    assert taken.shape == (3, 1)
    assert model.action_space.contains(taken[0])
    assert model.predict(obs[0])[0].shape == (1,)
    torch.manual_seed(0)
    best = model.predict(np.repeat(obs[:1], 64, 0))[0]
    torch.manual_seed(0)
    draws = model.actor(torch.zeros(64 * 4, 3)).reshape(64, 4)
    assert all(
        min(abs(2 * draw - float(action))) < 1e-5
        for draw, action in zip(draws.detach().numpy(), best[:, 0], strict=True)
    )
