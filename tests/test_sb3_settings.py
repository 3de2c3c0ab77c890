"""Settings, policies and weights that the classes for Stable-Baselines3 take or refuse."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.sb3 import (
    ACKTR,
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaSettings,
    KovaTRPO,
    Optimism,
    Thompson,
)
from tests.hosts import HOSTS, ON, small

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


# ---------------------------------------------------------------------- settings


def test_settings_are_a_dict_or_a_dataclass() -> None:
    one = small(KovaPPO, kova={"eta": 0.05, "prior": 2.0, "lr": 0.5}).filters.v
    assert (one.evolution, one.covariance.prior, one.param_groups[0]["lr"]) == (
        evolution.Leakage(0.05),
        2.0,
        0.5,
    )
    two = small(KovaPPO, kova=KovaSettings(covariance=covariance.Diagonal())).filters.v
    assert isinstance(two.covariance, covariance.Diagonal)
    assert isinstance(two.observation, observation.Adaptive)


def test_the_default_is_that_of_kova_but_for_what_the_critic_learns_from() -> None:
    usual = Kova(torch.nn.Linear(1, 1))
    short, fan_in = evolution.Leakage(0.1), covariance.Kronecker(covariance.FanIn())
    expected = {
        KovaDQN: (usual.covariance, short, usual.observation),
        KovaSAC: (usual.covariance, short, usual.observation),
        KovaDDPG: (usual.covariance, short, usual.observation),
        KovaPPO: (fan_in, evolution.Leakage(0.01), usual.observation),
        KovaTRPO: (fan_in, evolution.Leakage(0.01), usual.observation),
        KovaA2C: (usual.covariance, short, observation.MaxRatio()),
    }
    for algorithm, wanted in expected.items():
        (built, *_) = vars(small(algorithm).filters).values()
        assert (built.covariance, built.evolution, built.observation) == wanted
    released = small(KovaPPO, kova={"evolution": evolution.Memoryless(0.01)}).filters.v
    assert (released.covariance.prior, released.observation) == (1.0, observation.MaxRatio())
    paper = small(KovaPPO, kova={"observation": observation.MaxRatio()}).filters.v
    assert (paper.covariance, paper.evolution) == (usual.covariance, short)
    slower = small(KovaPPO, kova={"eta": 0.05}).filters.v
    assert (slower.covariance, slower.evolution) == (fan_in, evolution.Leakage(0.05))


@pytest.mark.parametrize(
    ("kova", "message"),
    [
        ({"eta": 0.1, "evolution": evolution.Leakage(0.1)}, "eta and evolution"),
        ({"prior": 1.0, "covariance": covariance.LowRank()}, "prior and covariance"),
        ({"etaa": 0.1}, "did you mean eta"),
        ({"rank": 8}, "'rank' is written covariance=covariance.LowRank(rank=...)"),
        ({"eta": 1.5}, "eta must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"prior": -1.0}, "prior"),
        ({"layers": "first"}, "layers must be one of"),
        (0.1, "kova must be KovaSettings, a dict"),
        ({"observation": observation.PerSample()}, "needs variance="),
        ({"covariance": "low rank"}, "covariance must be"),
    ],
)
def test_wrong_settings_are_refused_when_the_model_is_built(kova: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small(KovaPPO, kova=kova)


def test_what_a_filter_can_not_do_is_refused_when_the_model_is_built() -> None:
    with pytest.raises(ValueError, match="clip_range_vf"):
        small(KovaPPO, clip_range_vf=0.2)
    with pytest.raises(ValueError, match="needs ratio="):
        small(KovaSAC, kova={"observation": observation.MaxRatio()})
    with pytest.raises(ValueError, match="needs a V network"):
        small(KovaSAC, value_network=False, filtered="v")
    with pytest.raises(ValueError, match="filtered must be one of"):
        small(KovaSAC, filtered="w")
    with pytest.raises(ValueError, match="needs the error bars"):
        small(KovaSAC, exploration=Thompson())
    with pytest.raises(ValueError, match="exploration must be"):
        small(KovaDQN, exploration="thompson")
    with pytest.raises(ValueError, match="Memoryless keeps none"):
        small(KovaDQN, exploration=Thompson(), kova={"evolution": evolution.Memoryless(0.01)})
    with pytest.raises(ValueError, match="c must be"):
        Optimism(-1.0)


def test_wrong_actions_are_refused() -> None:
    dqn, ddpg = small(KovaDQN), small(KovaDDPG)
    with pytest.raises(ValueError, match=r"one for each observation, \(5,\), got \(4,\)"):
        dqn.value_distribution(np.zeros((5, 4), np.float32), np.zeros(4))
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        dqn.value_distribution(np.zeros((1, 4), np.float32), np.array([2]))
    with pytest.raises(ValueError, match=r"\(5, 1\), got \(5, 2\)"):
        ddpg.value_distribution(np.zeros((5, 3), np.float32), np.zeros((5, 2)))


def test_a_policy_with_its_own_evaluation_is_left_to_it() -> None:
    class Own(ActorCriticPolicy):
        calls = 0

        def evaluate_actions(self, obs: Any, actions: Any) -> Any:
            Own.calls += 1
            return super().evaluate_actions(obs, actions)

    kwargs = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 0}
    model = KovaPPO(Own, "CartPole-v1", **kwargs).learn(16)
    usual = KovaPPO("MlpPolicy", "CartPole-v1", **kwargs).learn(16)
    assert Own.calls == 2
    for key, value in usual.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[key]), key


@pytest.mark.filterwarnings("ignore:the first innovations:UserWarning")  # of Pendulum's rewards
@pytest.mark.parametrize("name", [*HOSTS, "acktr"])
def test_the_weights_of_a_host_can_be_gone_on_with(name: str, tmp_path: Path) -> None:
    if name == "acktr":
        ours, host, env, arguments, steps = ACKTR, A2C, "CartPole-v1", copy.deepcopy(ON), 20
    else:
        ours, host, env, arguments, _, steps, _ = copy.deepcopy(HOSTS[name])
    theirs = host("MlpPolicy", env, **arguments).learn(steps)
    theirs.save(tmp_path / "host")
    changed = {"value_network": False, "filtered": "q"} if name == "sac" else {}
    with pytest.warns(UserWarning, match="its weights were loaded"):
        model = ours.load(tmp_path / "host", env=gym.make(env), trust=True, **changed)
    for key, value in theirs.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[key]), key
    model.learn(steps)
    if name != "acktr":
        assert bool((model.value_distribution(model.get_env().reset()).std > 0).all())


def test_parameters_without_filters_are_refused() -> None:
    model = small(KovaPPO)
    found = {name: value for name, value in model.get_parameters().items() if not name.startswith("filters.")}
    with pytest.raises(ValueError, match="do not match"):
        model.set_parameters(found)


class Trunk(nn.Module):
    """Layers that policy and value may share, as a policy of a user's own may have."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.pi = nn.Linear(4, 8)
        self.vf = self.pi if shared else nn.Linear(4, 8)
        self.extra = nn.Linear(8, 8)
        self.latent_dim_pi = self.latent_dim_vf = 8

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.pi(x))

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.extra(torch.tanh(self.vf(x))))


@pytest.mark.parametrize("cls", [KovaPPO, KovaTRPO])
def test_policies_of_your_own_are_filtered_by_what_the_value_depends_on(cls: Any) -> None:
    class Own(ActorCriticPolicy):
        shared = False

        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = Trunk(self.shared)  # type: ignore[assignment]

    class Shared(Own):
        shared = True

    kwargs: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "seed": 0}
    model = cls(Own, "CartPole-v1", **kwargs)
    tracked = {id(p) for p in model.filters.v.param_groups[0]["params"]}
    trunk = model.policy.mlp_extractor
    assert {id(p) for part in (trunk.vf, trunk.extra) for p in part.parameters()} < tracked
    assert not {id(p) for p in trunk.pi.parameters()} & tracked
    with pytest.raises(ValueError, match="share the weights of mlp_extractor"):
        cls(Shared, "CartPole-v1", **kwargs)
    last = cls(Shared, "CartPole-v1", kova={"layers": "last"}, **kwargs)
    before = last.policy.mlp_extractor.extra.weight.clone()
    last.learn(16)
    assert not torch.equal(last.policy.mlp_extractor.extra.weight, before)


def test_a_loaded_model_can_have_other_settings(tmp_path: Path) -> None:
    small(KovaPPO).save(tmp_path / "model")
    model = KovaPPO.load(tmp_path / "model", kova={"lr": 0.5, "eta": 0.1})
    assert model.kova == KovaSettings(lr=0.5, eta=0.1)


@pytest.mark.parametrize("cls", [KovaPPO, KovaDQN])
def test_the_hosts_evaluation_callback_works_behind_normalisation(cls: Any) -> None:
    training, evaluation = (VecNormalize(make_vec_env("CartPole-v1")) for _ in range(2))
    callback = EvalCallback(evaluation, eval_freq=20, n_eval_episodes=1, verbose=0)
    small(cls, training).learn(40, callback=callback)
    assert callback.n_calls >= 40
    assert np.isfinite(callback.last_mean_reward)
    assert np.array_equal(training.obs_rms.mean.shape, evaluation.obs_rms.mean.shape)
    plain = small(cls)
    copied = copy.deepcopy(plain)
    copied.learn(32)
    assert plain.num_timesteps == 0


def test_an_unfiltered_critic_logs_the_same_value_loss(tmp_path: Path) -> None:
    for model in (small(KovaSAC, kova=None), small(KovaDQN, kova=None), small(KovaDDPG, kova=None)):
        model.learn(60)
        model._record_filters()
        assert model.logger.name_to_value["train/value_loss"] > 0
        assert "train/explained_variance" in model.logger.name_to_value
        assert not any(key.startswith("kova/") for key in model.logger.name_to_value)


def test_models_without_a_seed_have_draws_of_their_own() -> None:
    one, two = (small(KovaDQN, exploration=Thompson(), seed=None) for _ in range(2))
    for model in (one, two):
        model._num_timesteps_at_start = 0
    assert one._draws.seed(one) == one._draws.seed(one) != two._draws.seed(two)


def test_the_value_network_of_sac_is_switched_to_evaluation() -> None:
    model = small(KovaSAC).learn(40)
    assert model.value_net.training
    model.value_distribution(np.zeros((1, 3), np.float32))
    assert not model.value_net.training
    with pytest.raises(ValueError, match="use_sde"):
        small(KovaSAC, filtered="q", exploration=Thompson(), use_sde=True)


def test_the_signature_is_the_hosts_and_ours() -> None:
    for cls, host in ((KovaPPO, PPO), (KovaDQN, DQN), (KovaSAC, SAC), (KovaDDPG, DDPG), (KovaTRPO, TRPO)):
        shown = inspect.signature(cls).parameters
        assert set(inspect.signature(host).parameters) | {"kova"} <= set(shown)
    assert "double" in inspect.signature(KovaDQN).parameters
    with pytest.raises(TypeError):
        small(KovaPPO, kovaa={})
