"""The host's algorithm is left alone, and the filter is given what the paper says."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kova_rl import KovaError, observation
from kova_rl.info import StepInfo
from kova_rl.sb3 import (
    KovaA2C,
    KovaDDPG,
    KovaDQN,
    KovaPPO,
    KovaSAC,
    KovaTD3,
    KovaTRPO,
)
from tests.hosts import ALL, HOSTS, small

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


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
