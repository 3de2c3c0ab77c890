"""Kova inside Stable-Baselines3: the host's numbers, error bars, diagnostics, and what is refused."""

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
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from kova_rl import Kova, KovaError, NonFiniteBatch, covariance, evolution, observation
from kova_rl.info import StepInfo
from kova_rl.sb3 import (
    ACKTR,
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaSettings,
    KovaTD3,
    KovaTRPO,
    Optimism,
    Thompson,
)

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
SMALL = {"net_arch": [16, 16]}
ON: dict[str, Any] = {"policy_kwargs": SMALL, "seed": 3, "device": "cpu"}
OFF: dict[str, Any] = {**ON, "buffer_size": 500, "batch_size": 16, "learning_starts": 20}
HUGE = 1e9
"""A gradient norm that nothing reaches: clipping would couple policy and critic."""

HOSTS: dict[str, tuple[Any, Any, str, dict[str, Any], dict[str, Any], int, float]] = {
    # ours, host, environment, arguments, ours alone, steps, factor of the host's squared error
    "ppo": (KovaPPO, PPO, "Pendulum-v1", {**ON, "n_steps": 48, "batch_size": 20, "max_grad_norm": HUGE}, {}, 150, 0.5),  # noqa: E501
    "ppo-discrete": (KovaPPO, PPO, "CartPole-v1", {**ON, "n_steps": 32, "batch_size": 32, "max_grad_norm": HUGE, "target_kl": 0.01}, {}, 150, 0.5),  # noqa: E501
    "a2c": (KovaA2C, A2C, "CartPole-v1", {**ON, "max_grad_norm": HUGE}, {}, 60, 0.5),
    "trpo": (KovaTRPO, TRPO, "Pendulum-v1", {**ON, "n_steps": 64, "batch_size": 24}, {}, 150, 1.0),
    "dqn": (KovaDQN, DQN, "CartPole-v1", {**OFF, "max_grad_norm": HUGE, "target_update_interval": 25}, {"double": False}, 120, 1.0),  # noqa: E501
    "ddpg": (KovaDDPG, DDPG, "Pendulum-v1", OFF, {}, 60, 1.0),
    "td3": (KovaTD3, TD3, "Pendulum-v1", OFF, {}, 60, 1.0),
    "sac": (KovaSAC, SAC, "Pendulum-v1", OFF, {"value_network": False}, 60, 0.5),
}  # fmt: skip


class HostsOptimizer:
    """The host's own optimizer behind the interface of ``Kova``: what Kova is swapped for in the test."""

    observation = observation.BatchSize()

    def __init__(self, module: nn.Module, like: torch.optim.Optimizer, factor: float, huber: bool) -> None:
        self.inner = type(like)(module.parameters(), **like.defaults)
        self.factor, self.huber = factor, huber
        self.like = like

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self, predict: Any, targets: torch.Tensor, look: Any = None, replays: Any = None) -> StepInfo:
        predictions = predict()
        distance = nn.functional.smooth_l1_loss if self.huber else nn.functional.mse_loss
        loss = self.factor * distance(targets, predictions)
        self.inner.zero_grad()
        loss.backward()
        self.inner.param_groups[0]["lr"] = self.like.param_groups[0]["lr"]
        self.inner.step()
        return StepInfo((targets - predictions).detach(), 0.0, torch.zeros(1), 0.0, self)  # type: ignore[arg-type]

    def variances(self) -> torch.Tensor:
        return torch.zeros(1)

    def unwhitened(self, change: torch.Tensor) -> torch.Tensor:
        return change


def hosts_optimizer(model: Any) -> torch.optim.Optimizer:
    return model.policy.optimizer if hasattr(model.policy, "optimizer") else model.critic.optimizer


@pytest.mark.parametrize("name", HOSTS)
def test_with_the_hosts_optimizer_put_back_the_weights_are_the_hosts(name: str) -> None:
    ours, host, env, arguments, own, steps, factor = copy.deepcopy(HOSTS[name])
    arguments.pop("target_kl", None)  # which would stop the host's critic, and is to stop the policy alone
    if name.startswith(("ppo", "trpo")):
        own["kova"] = {"value_passes": 10}  # the host's
    theirs = host("MlpPolicy", env, **copy.deepcopy(arguments)).learn(steps)
    model = ours("MlpPolicy", env, **arguments, **own)
    for key, kova in vars(model.filters).items():
        swapped = HostsOptimizer(kova.module, hosts_optimizer(model), factor, huber=name == "dqn")
        setattr(model.filters, key, swapped)
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.learn(steps)
    found = model.policy.state_dict()
    for key, value in theirs.policy.state_dict().items():
        assert torch.equal(found[key], value), key
    moved = {key for key, value in before.items() if not torch.equal(found[key], value)}
    assert len(moved) >= len(before) - 1  # the test would prove nothing if nothing had moved


@pytest.mark.parametrize("name", HOSTS)
def test_without_kova_it_is_the_host(name: str) -> None:
    ours, host, env, arguments, own, steps, _ = copy.deepcopy(HOSTS[name])
    model = ours("MlpPolicy", env, **arguments, **own, kova=None).learn(steps)
    theirs = host("MlpPolicy", env, **copy.deepcopy(arguments)).learn(steps)
    for key, value in theirs.policy.state_dict().items():
        assert torch.equal(model.policy.state_dict()[key], value), key
    with pytest.raises(KovaError, match="kova=None"):
        model.value_distribution(model.get_env().reset())


# ---------------------------------------------------------------------- what the filter is given


def small(cls: Any, env: Any = None, **kwargs: Any) -> Any:
    """A model of any class that trains in a second."""
    continuous = cls in (KovaSAC, KovaDDPG, KovaTD3)
    usual = copy.deepcopy(OFF if cls in (KovaSAC, KovaDDPG, KovaTD3, KovaDQN) else ON)
    if cls in (KovaPPO, KovaTRPO):
        usual |= {"n_steps": 32, "batch_size": 16}
    return cls("MlpPolicy", env or ("Pendulum-v1" if continuous else "CartPole-v1"), **(usual | kwargs))


ALL = (KovaPPO, KovaA2C, KovaTRPO, KovaDQN, KovaDDPG, KovaTD3, KovaSAC)


@pytest.mark.parametrize("cls", [KovaTD3, KovaDDPG, KovaSAC])
def test_the_actors_step_computes_no_gradients_of_a_filtered_critic(cls: Any) -> None:
    """The host computes them and throws them away."""
    own = {"value_network": False} if cls is KovaSAC else {}
    model = small(cls, **own).learn(24)
    assert model._n_updates > 0
    assert all(p.grad is None for p in model.critic.parameters())
    assert any(p.grad is not None for p in model.actor.parameters())


@pytest.mark.parametrize("cls", [KovaPPO, KovaTRPO])
def test_the_filter_sees_returns_and_the_policy_ratio(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kova = {"value_first": cls is KovaPPO, "value_passes": 2, "recompute": "each"}
    kova |= {} if cls is KovaPPO else {"recompute": None}
    kova["observation"] = observation.MaxRatio()
    model = small(cls, "Pendulum-v1", n_steps=40, batch_size=16, kova=kova)  # the last minibatch is short
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    step = model.filters.v.step

    def watched(predict: Any, targets: torch.Tensor, ratio: torch.Tensor, look: Any) -> StepInfo:
        seen.append((len(targets), targets.clone(), ratio.clone()))
        before = predict().detach()
        info = step(predict, targets, ratio=ratio, look=look)
        assert torch.allclose(info.innovation, targets - before)
        return info

    monkeypatch.setattr(model.filters.v, "step", watched)
    model.learn(40)
    assert {count for count, _, _ in seen} == {16, 8}
    returns = set(np.round(model.rollout_buffer.returns.flatten(), 4))
    assert all(set(np.round(targets.numpy(), 4)) <= returns for _, targets, _ in seen[:3])
    if cls is KovaPPO:  # before the first policy step the two policies are one
        assert torch.allclose(seen[0][2], torch.ones(16), atol=1e-5)
    assert (seen[-1][2] - 1).abs().max() > 1e-3


def test_a2cs_noise_is_batch_size() -> None:
    """The rollout is learned from once, so the ratio is one and the two noises are the same."""
    weights = []
    for noise in (observation.MaxRatio(eps=1e-12), observation.BatchSize()):
        model = small(KovaA2C, kova={"observation": noise}).learn(50)
        weights.append(nn.utils.parameters_to_vector(model.policy.value_net.parameters()).detach())
    assert torch.allclose(*weights, atol=1e-4)


def test_double_q_takes_the_online_networks_action() -> None:
    for double in (True, False):
        model = small(KovaDQN, double=double).learn(60)
        nn.init.normal_(model.q_net_target.q_net[-1].weight)  # so that the two networks disagree
        data = model.replay_buffer.sample(64)
        online, target = model.q_net(data.next_observations), model.q_net_target(data.next_observations)
        chosen = (online if double else target).argmax(1, keepdim=True)
        expected = data.rewards + 0.99 * (1 - data.dones) * target.gather(1, chosen)
        assert torch.allclose(model._targets(data), expected)
        assert (online.argmax(1) != target.argmax(1)).any()


def test_sac_with_a_value_network_has_the_papers_targets() -> None:
    model = small(KovaSAC, filtered="both").learn(60)
    data = model.replay_buffer.sample(8)
    expected = (
        data.rewards + 0.99 * (1 - data.dones) * model.value_net_target(data.next_observations)[:, None]
    )
    assert torch.allclose(model._q_targets(data, torch.tensor(0.3)), expected)
    assert set(vars(model.filters)) == {"v", "q0", "q1"}
    seen = {}
    model._learn_v = lambda data, targets: seen.setdefault("targets", targets).mean().item()
    model.actor.optimizer.step = lambda: None
    torch.manual_seed(5)
    coefficient = torch.exp(model.log_ent_coef.detach()).item()
    model._learn(data)
    torch.manual_seed(5)
    actions, log_prob = model.actor.action_log_prob(data.observations)
    q = torch.cat(model.critic(data.observations, actions), dim=1).min(1).values
    assert torch.allclose(seen["targets"], (q - coefficient * log_prob).detach(), atol=1e-5)


def test_only_the_critics_optimizer_changes() -> None:
    for cls in ALL:
        model = small(cls)
        tracked = {id(p) for kova in vars(model.filters).values() for p in kova.param_groups[0]["params"]}
        hosts = [model.policy.optimizer] if hasattr(model.policy, "optimizer") else [model.actor.optimizer]
        if hasattr(model, "critic") and not isinstance(model.critic, type):
            hosts.append(model.critic.optimizer)
        for optimizer in hosts:
            assert not tracked & {id(p) for group in optimizer.param_groups for p in group["params"]}


def test_the_schedule_moves_adam_and_not_kova() -> None:
    model = small(KovaPPO, learning_rate=lambda progress: 1e-3 * progress, kova={"lr": 0.5}).learn(96)
    assert model.policy.optimizer.param_groups[0]["lr"] < 1e-3
    assert model.filters.v.param_groups[0]["lr"] == 0.5


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
    assert isinstance(two.observation, observation.MaxRatio)


def test_the_default_is_that_of_kova_and_on_policy_the_papers_noise() -> None:
    usual = Kova(torch.nn.Linear(1, 1))
    for algorithm, name in ((KovaDQN, "q"), (KovaSAC, "v"), (KovaPPO, "v"), (KovaA2C, "v"), (KovaDDPG, "q0")):
        built = getattr(small(algorithm).filters, name)
        assert (built.covariance, built.evolution) == (usual.covariance, evolution.Leakage(0.1))
        on_policy = algorithm in (KovaPPO, KovaA2C)
        assert built.observation == (observation.MaxRatio() if on_policy else usual.observation)
    released = small(KovaPPO, kova={"evolution": evolution.Memoryless(0.01)}).filters.v
    assert (released.covariance.prior, released.observation) == (1.0, observation.MaxRatio())


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
