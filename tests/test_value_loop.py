"""The critic's own loop: samples that count once, the host's numbers, new advantages, and what is refused."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.errors import InvalidBatch
from kova_rl.filter.change import Directional, Leak, Restart, Scaled, Shifted, Unchanged
from kova_rl.head.features import Features
from kova_rl.sb3 import KovaA2C, KovaDQN, KovaPPO, KovaSAC, KovaSettings, KovaTRPO, ValueLoop, apart
from kova_rl.sb3.collected import rollout_of
from kova_rl.value_loop import Rollout, solve_head

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
HUGE = 1e9
SMALL = {"net_arch": [16, 16]}

# ---------------------------------------------------------------------- the same samples again


def regression(seed: int, rows: int = 48, noise: float = 0.7) -> tuple[Any, torch.Tensor, torch.Tensor, Any]:
    """A linear critic, states, noisy targets, and the weights that made them."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    truth, states = torch.randn(6, **draw), torch.randn(rows, 6, **draw)
    critic = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    return critic, states, states @ truth + noise * torch.randn(rows, **draw), truth


def passes(
    kova: Kova, critic: Any, states: torch.Tensor, goals: torch.Tensor, count: int, how: str, **noise: Any
) -> None:
    """Go through the samples: looks count in full, or later ones move the mean alone, or each its part."""
    for k in range(count):
        for index in torch.randperm(len(goals), generator=torch.Generator().manual_seed(k)).split(16):
            look = (k + 1, count) if how == "part" else (1, 1)
            kept = copy.deepcopy(kova.state_dict()) if how == "mean" and k else None
            own = {name: values[index] for name, values in noise.items()}
            kova.step(lambda i=index: critic(states[i]).squeeze(1), goals[index], look=look, **own)
            if kept is not None:
                kova.load_state_dict(kept)


def test_several_looks_at_samples_are_one_look() -> None:
    """In the linear case exactly, however the samples are cut into batches."""
    ends = []
    for count in (1, 4):
        critic, states, goals, _ = regression(0)
        kova = Kova(critic, 1.0, covariance.Full(), evolution.Stationary(), observation.PerSample())
        passes(kova, critic, states, goals, count, "part", variance=torch.full((48,), 0.5))
        ends.append((critic.weight.detach().clone(), kova.variances()))
    for one, several in zip(*ends, strict=True):
        assert torch.allclose(one, several, rtol=1e-9)


def covered(how: str, count: int) -> float:
    """Share of true values in the 95% intervals, over critics whose truth is drawn from the prior."""
    inside = []
    for seed in range(25):
        critic, states, goals, truth = regression(seed, rows=180)
        kova = Kova(critic, 1.0, covariance.Full(), evolution.Stationary(), observation.PerSample())
        for rollout in torch.arange(180).split(60):
            noise = torch.full((60,), 0.49)
            passes(kova, critic, states[rollout], goals[rollout], count, how, variance=noise)
        asked = torch.randn(100, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 99))
        belief = kova.posterior(lambda c=critic, a=asked: c(a).squeeze(1))
        inside.append(((asked @ truth - belief.mean).abs() <= 1.96 * belief.std).double().mean())
    return float(torch.stack(inside).mean())


def test_looks_that_count_their_part_keep_the_bars_and_others_do_not() -> None:
    once = covered("each", 1)
    assert 0.9 < once < 0.99
    assert covered("part", 10) == pytest.approx(once, abs=0.02)
    assert covered("each", 10) < 0.6
    assert covered("mean", 10) < 0.85


def test_learned_noise_learns_at_first_sight_alone() -> None:
    found = []
    for how in ("part", "each"):
        critic, states, goals, _ = regression(3, rows=64)
        kova = Kova(critic, 1.0, covariance.Full(), evolution.Leakage(0.001), observation.Adaptive())
        passes(kova, critic, states, goals, 1, how)
        first = float(kova.state_dict()["state"][0]["observation"]["variance"])
        for k in range(2, 30):
            look = (k, 30) if how == "part" else (1, 1)
            kova.step(lambda c=critic, s=states: c(s).squeeze(1), goals, look=look)
        found.append((first, float(kova.state_dict()["state"][0]["observation"]["variance"])))
    (before, after), (_, drifted) = found
    assert after == before
    assert drifted < before


def test_later_looks_leave_the_unit_of_the_bars() -> None:
    critic, states, goals, _ = regression(4)
    kova = Kova(critic, observation=observation.BatchSize())
    for k in (1, 1, 1):
        kova.step(lambda: critic(states).squeeze(1), goals, look=(k, 3))
    unit = kova._tracker.unit(kova._memory())
    kova.step(lambda: critic(states).squeeze(1), 100 * goals, look=(2, 3))
    assert kova._tracker.unit(kova._memory()) == pytest.approx(unit)
    assert kova.state_dict()["state"][0]["step"] == 4


def test_memoryless_takes_no_notice_of_looks() -> None:
    ends = []
    for look in ((1, 1), (2, 5)):
        critic, states, goals, _ = regression(5)
        Kova(critic, evolution=evolution.Memoryless()).step(
            lambda c=critic, s=states: c(s).squeeze(1), goals, look=look
        )
        ends.append(critic.weight.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("look", [(0, 1), (3, 2), (1,), 2, (1.0, 2), (True, 2)])
def test_a_look_that_is_none_is_refused(look: Any) -> None:
    critic, states, goals, _ = regression(6)
    with pytest.raises(InvalidBatch, match=re.escape("look must be (k, n)")):
        Kova(critic).step(lambda: critic(states).squeeze(1), goals, look=look)


def test_parts_of_a_change_make_the_change() -> None:
    assert 1 - (1 - Leak(0.3).part(4).eta) ** 4 == pytest.approx(0.3)
    assert 1 - (1 - Directional(0.3).part(4).eta) ** 4 == pytest.approx(0.3)
    for change in (Scaled(1.5), Shifted(0.8, 0.3), Shifted(1.0, 0.3)):
        variance = 2.0
        for _ in range(4):
            variance = change.part(4).grown(variance)
        assert variance == pytest.approx(change.grown(2.0)), change
    for change in (Unchanged(), Restart(2.0)):
        assert change.part(4) == change


# ---------------------------------------------------------------------- the host's numbers

ON_POLICY = (KovaPPO, KovaA2C, KovaTRPO)
HOSTS: dict[str, tuple[Any, Any, dict[str, Any], int]] = {
    "ppo": (KovaPPO, PPO, {"n_steps": 24, "batch_size": 20, "n_epochs": 3, "max_grad_norm": HUGE}, 3),
    "a2c": (KovaA2C, A2C, {"n_steps": 8, "max_grad_norm": HUGE}, 1),
    "trpo": (KovaTRPO, TRPO, {"n_steps": 32, "batch_size": 24, "n_critic_updates": 2}, 2),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("given", [False, True])
def test_adam_in_a_loop_apart_has_the_hosts_weights(name: str, given: bool) -> None:
    """Bit for bit, with several environments: the policy's and the critic's."""
    ours, host, arguments, count = HOSTS[name]
    arguments = {**arguments, "policy_kwargs": SMALL, "seed": 3, "device": "cpu"}
    ends = []
    for cls, own in ((host, {}), (ours, {"kova": None, "value": {"value_passes": count} if given else {}})):
        env = make_vec_env("Pendulum-v1", n_envs=2, seed=1)
        ends.append(cls("MlpPolicy", env, **copy.deepcopy(arguments), **own).learn(150).policy.state_dict())
    for key, value in ends[0].items():
        assert torch.equal(ends[1][key], value), key


class Stop(gym.Env[Any, Any]):
    """A walk that is cut after seven steps or ends by chance; observations may be a dict."""

    action_space = spaces.Discrete(2)

    def __init__(self, as_dict: bool) -> None:
        box = spaces.Box(-9, 9, (3,), np.float32)
        self.as_dict = as_dict
        self.observation_space: Any = spaces.Dict({"a": box, "b": box}) if as_dict else box

    def _seen(self) -> Any:
        drawn = self.np_random.normal(size=(2, 3)).astype(np.float32)
        return {"a": drawn[0], "b": drawn[1]} if self.as_dict else drawn[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 7
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        over = bool(self.np_random.random() < 0.1)
        return self._seen(), float(self.np_random.normal()), over, self.left == 0 and not over, {}


def walker(cls: Any, as_dict: bool = False, **kwargs: Any) -> Any:
    env = make_vec_env(lambda: Stop(as_dict), n_envs=3, seed=2)
    usual = {"n_steps": 20, "seed": 0, "device": "cpu", "policy_kwargs": SMALL}
    usual |= {} if cls is KovaA2C else {"batch_size": 16}
    return cls("MultiInputPolicy" if as_dict else "MlpPolicy", env, **(usual | kwargs))


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_critic_that_has_not_moved_gives_the_hosts_advantages(as_dict: bool) -> None:
    """With several environments, ends, and time limits, whose values the host hides in the rewards."""
    model = walker(KovaA2C, as_dict, kova={"recompute": "once", "value_first": True})
    seen: list[bool] = []

    def train() -> None:
        rollout, buffer = rollout_of(model, model._cuts), model.rollout_buffer
        found = rollout.estimate(model.policy.predict_values, model.gamma, model.gae_lambda)
        assert rollout.truncated.any()
        assert rollout.terminated.any()
        assert np.allclose(found.values, buffer.values, atol=1e-5)
        assert np.allclose(found.returns, buffer.returns, atol=1e-5)
        assert np.allclose(found.advantages, buffer.advantages, atol=1e-5)
        seen.append(True)

    model.train = train
    model.learn(120)
    assert len(seen) == 2


# ---------------------------------------------------------------------- the loop


def watched(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What happened: the critic's steps with their looks, and the policy's epochs with their advantages."""
    events: list[tuple[str, Any]] = []
    step, learn = model.filters.v.step, type(model)._learn_policy

    def stepped(*args: Any, **kwargs: Any) -> Any:
        events.append(("critic", kwargs["look"]))
        return step(*args, **kwargs)

    def learned(self: Any, epochs: int) -> bool:
        events.append(("policy", self.rollout_buffer.advantages.copy()))
        return bool(learn(self, epochs))

    monkeypatch.setattr(model.filters.v, "step", stepped)
    monkeypatch.setattr(type(model), "_learn_policy", learned)
    return events


def test_the_order_is_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (False, True):
        model = walker(KovaPPO, kova={"value_passes": 2, "value_batch": 30, "value_first": first}, n_epochs=2)
        with monkeypatch.context() as patch:
            events = watched(model, patch)
            model.learn(60)
        looks = [look for what, look in events if what == "critic"]
        assert looks == [(1, 2), (1, 2), (2, 2), (2, 2)]
        assert [what for what, _ in events].index("policy") == (4 if first else 0)


@pytest.mark.parametrize("cls", ON_POLICY)
@pytest.mark.parametrize("recompute", ["once", "each"])
def test_new_advantages_are_the_moved_critics(
    cls: Any, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the rounding, with time limits, whose values are the moved critic's too."""
    model = walker(cls, kova={"value_passes": 2, "value_first": True, "recompute": recompute})
    kept: list[Any] = []
    monkeypatch.setattr(apart, "rollout_of", lambda *args: kept.append(rollout_of(*args)) or kept[-1])
    learn, given = cls._learn_policy, []

    def learned(self: Any, epochs: int) -> bool:
        found = kept[-1].estimate(self.policy.predict_values, self.gamma, self.gae_lambda).advantages
        flat = self.rollout_buffer.generator_ready
        given.append(self.rollout_buffer.advantages.copy().reshape((3, 20) if flat else (20, 3)))
        expected = found.T if flat else found
        assert np.allclose(given[-1], expected, atol=1e-5)
        return bool(learn(self, epochs))

    monkeypatch.setattr(cls, "_learn_policy", learned)
    model.learn(60)
    assert kept[0].truncated.any()
    assert len(given) == (10 if cls is KovaPPO and recompute == "each" else 1)
    buffer = model.rollout_buffer
    hosts = (buffer.returns - buffer.values).reshape(-1)  # which stay the host's
    assert not np.allclose(given[0].T.reshape(-1), hosts, atol=1e-3)


def test_an_early_end_of_the_policys_epochs_leaves_the_critic_its_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kova = {"value_passes": 6, "recompute": "each"}
    model = walker(KovaPPO, kova=kova, n_epochs=6, target_kl=1e-9, learning_rate=0.01)
    events = watched(model, monkeypatch)
    model.learn(60)
    assert 1 <= sum(what == "policy" for what, _ in events) < 6
    assert sum(what == "critic" for what, _ in events) == 6 * math.ceil(60 / 16)
    assert model.n_epochs == 6


def test_value_lambda_changes_the_critics_targets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    for lam in (None, 1.0):
        model = walker(KovaTRPO, kova={"value_lambda": lam, "value_batch": 60})
        step, goals = model.filters.v.step, []

        def stepped(predict: Any, targets: Any, *args: Any, goals=goals, step=step, **kwargs: Any) -> Any:
            goals.append(targets.clone())
            return step(predict, targets, *args, **kwargs)

        monkeypatch.setattr(model.filters.v, "step", stepped)
        model.learn(60)
        seen[lam] = (torch.cat(goals), model.policy.action_net.weight.detach().clone())
    assert torch.equal(seen[None][1], seen[1.0][1])
    assert not torch.allclose(seen[None][0], seen[1.0][0])


def test_the_default_is_once_for_a_filter_and_the_hosts_for_others() -> None:
    assert walker(KovaPPO).passes == 1
    assert walker(KovaPPO, kova={"evolution": evolution.Memoryless()}).passes == 10
    assert walker(KovaPPO, kova={"layers": "last"}, n_epochs=4).passes == 4
    assert walker(KovaPPO, kova=None, value={}, n_epochs=4).passes == 4
    assert walker(KovaTRPO, kova=None, value={}, n_critic_updates=7).passes == 7
    assert walker(KovaA2C, kova={"value_passes": 5}).passes == 5
    assert walker(KovaPPO, kova=None).loop is None


@pytest.mark.parametrize("cls", ON_POLICY)
def test_the_hosts_optimizer_keeps_what_is_not_filtered(cls: Any) -> None:
    model = walker(cls, kova={"layers": "last", "value_lr": 1e-2})
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.learn(60)
    hidden = "mlp_extractor.value_net.0.weight"
    assert not torch.equal(model.policy.state_dict()[hidden], before[hidden])
    assert model.value_optimizer.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize("cls", [KovaPPO, KovaTRPO])
@pytest.mark.parametrize("own", [{"kova": None, "value": {"value_passes": 2}}, {"kova": {"layers": "last"}}])
def test_going_on_after_a_load_is_going_on(cls: Any, own: Any, tmp_path: Path) -> None:
    model = walker(cls, **own).learn(60)
    model.save(tmp_path / "model.zip")
    loaded = cls.load(tmp_path / "model.zip", env=make_vec_env(lambda: Stop(False), n_envs=3, seed=2))
    assert (loaded.kova, loaded.value, loaded.passes) == (model.kova, model.value, model.passes)
    ends = []
    for each in (model, loaded):
        each._last_obs = None
        each.set_random_seed(5)
        each.learn(60, reset_num_timesteps=False)
        ends.append(each.get_parameters())
    assert "value_optimizer" in ends[0]
    for key, value in ends[0]["policy"].items():
        assert torch.equal(value, ends[1]["policy"][key]), key


def test_no_gradient_of_the_critic_is_left_for_the_hosts_clipping() -> None:
    model = walker(KovaPPO, kova=None, value={}).learn(60)
    assert all(weight.grad is None for weight in model._own)


def test_adam_in_a_loop_of_its_own_logs_a_value_loss() -> None:
    model = walker(KovaPPO, kova=None, value={"value_passes": 3, "value_lr": 1e-3}).learn(60)
    assert math.isfinite(model.logger.name_to_value["train/value_loss"])
    assert model.logger.name_to_value["train/value_loss"] > 0


# ---------------------------------------------------------------------- the solved head


def fixed_point(rollout: Rollout, gamma: float, lam: float) -> np.ndarray:
    """LSTD(lambda) of a linear critic with a bias, a step at a time."""
    steps, envs = rollout.rewards.shape
    seen = torch.cat([rollout.observations, torch.ones(steps * envs, 1)], 1).double().numpy()
    last = torch.cat([rollout.last, torch.ones(envs, 1)], 1).double().numpy()
    cut = iter(torch.cat([rollout.cut, torch.ones(len(rollout.cut), 1)], 1).double().numpy())
    A, b = np.zeros((3, 3)), np.zeros(3)
    for env in range(envs):
        trace = np.zeros(3)
        for t in range(steps):
            now = seen[env * steps + t]
            after = seen[env * steps + t + 1] if t + 1 < steps else last[env]
            if rollout.truncated[t, env]:
                after = next(cut)
            if rollout.terminated[t, env]:
                after = np.zeros(3)
            trace = now + gamma * lam * trace
            A += np.outer(trace, now - gamma * after)
            b += trace * float(rollout.rewards[t, env])
            if rollout.truncated[t, env] or rollout.terminated[t, env]:
                trace = np.zeros(3)
    return np.linalg.solve(A, b)


@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_the_solved_head_is_the_fixed_point_of_the_rollout(lam: float) -> None:
    """With several environments, ends and cuts; a prior that is wide leaves the data alone."""
    generator = torch.Generator().manual_seed(0)
    ended, cut = (torch.rand(60, 2, generator=generator) < 0.08 for _ in range(2))
    ended &= ~cut
    ended[-1], cut[-1] = torch.tensor([True, False]), torch.tensor([False, False])
    draw = {"generator": generator}
    rollout = Rollout(
        *(torch.randn(120, 2, **draw), torch.randn(60, 2, **draw) + 1, ended, cut),
        *(torch.randn(2, 2, **draw), torch.randn(int(cut.sum()), 2, **draw)),
    )
    critic = nn.Linear(2, 1)
    solve_head(Features(critic, critic), rollout, 0.9, lam, prior=1e5)
    found = [*critic.weight.flatten().tolist(), critic.bias.item()]
    assert found == pytest.approx(fixed_point(rollout, 0.9, lam).tolist(), rel=1e-4)
    solve_head(Features(critic, critic), rollout, 0.9, lam, prior=1e-6)  # a narrow one leaves it as it is
    assert [*critic.weight.flatten().tolist(), critic.bias.item()] == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("cls", ON_POLICY)
@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_the_head_moves_the_last_layer_alone(cls: Any, as_dict: bool, filtered: bool) -> None:
    """After the passes; the layers below it, and a filter's P, are as they would be."""

    def learned(**head: float) -> Any:
        settings = {"value_passes": 2, **head}
        return walker(
            cls, as_dict, kova=settings if filtered else None, value=None if filtered else settings
        ).learn(60)

    plain, solved = learned(), learned(head=0.3)
    for (name, one), other in zip(plain.policy.named_parameters(), solved.policy.parameters(), strict=True):
        assert torch.equal(one, other) == (not name.startswith("value_net.")), name
    if filtered:
        assert torch.equal(plain.filters.v.variances(), solved.filters.v.variances())


def test_a_head_that_is_solved_first_gives_the_policy_its_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for head in (None, 0.3):
        kova = {"value_first": True, "recompute": "once", "head": head}
        model = walker(KovaPPO, kova=kova, n_epochs=1)
        with monkeypatch.context() as patch:
            events = watched(model, patch)
            model.learn(60)
        given.append(next(advantages for what, advantages in events if what == "policy"))
    assert not np.allclose(*given)


def test_a_critic_that_does_not_end_in_a_linear_layer_has_no_head(tmp_path: Path) -> None:
    class Bounded(ActorCriticPolicy):
        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.value_net = nn.Sequential(self.value_net, nn.Tanh())

    for given in ({"kova": {"head": 0.3}}, {"kova": None, "value": {"head": 0.3}}):
        with pytest.raises(ValueError, match=r"head needs a critic that ends in an nn\.Linear"):
            KovaPPO(Bounded, "CartPole-v1", **given)
    model = KovaPPO("MlpPolicy", "CartPole-v1", kova={"head": 0.3}, n_steps=64, policy_kwargs=SMALL)
    model.save(tmp_path / "model")
    assert KovaPPO.load(tmp_path / "model").kova.head == 0.3


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("kova", "message"),
    [
        ({"value_passes": 0}, "value_passes must be a whole number, at least 1, got 0"),
        ({"value_lambda": 1.5}, "value_lambda must be a number in [0, 1], got 1.5"),
        ({"value_lambda": "1"}, "value_lambda must be a number in [0, 1]"),
        ({"value_batch": 0}, "value_batch must be a whole number"),
        ({"value_first": 3}, "value_first must be one of False, True, got 3"),
        ({"recompute": "epoch"}, "recompute must be one of None, 'each', 'once', got 'epoch'"),
        ({"recompute": "once"}, "needs value_first=True"),
        ({"value_lr": 1e-3}, "has nothing of this critic"),
        ({"value_pases": 3}, "did you mean value_passes"),
        ({"head": 0}, "head must be a number above 0, got 0"),
        ({"head": True}, "head must be a number above 0, got True"),
    ],
)
def test_bad_settings_are_refused_when_the_model_is_built(kova: Any, message: str) -> None:
    for cls in ON_POLICY:
        with pytest.raises(ValueError, match=re.escape(message)):
            cls("MlpPolicy", "CartPole-v1", kova=kova)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="is for kova=None"):
        KovaPPO("MlpPolicy", "CartPole-v1", value={"value_passes": 3})
    with pytest.raises(ValueError, match="value must be ValueLoop, a dict of value_passes"):
        KovaPPO("MlpPolicy", "CartPole-v1", kova=None, value=3)
    with pytest.raises(ValueError, match="clip_range_vf"):
        KovaPPO("MlpPolicy", "CartPole-v1", kova=None, value={}, clip_range_vf=0.2)
    for cls, env in ((KovaDQN, "CartPole-v1"), (KovaSAC, "Pendulum-v1")):
        with pytest.raises(ValueError, match=f"recompute can't be set for {cls.__name__}.*no rollouts"):
            cls("MlpPolicy", env, buffer_size=10, kova={"recompute": "each"})


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        *((cls, {"gae_lambda": 1.5}, "gae_lambda must be a number in [0, 1]") for cls in ON_POLICY),
        (KovaPPO, {"n_epochs": 0}, "n_epochs must be a whole number, at least 1, got 0"),
        (KovaTRPO, {"n_critic_updates": 0, "kova": None, "value": {}}, "(n_critic_updates)"),
        *((cls, {"kova": {"recompute": "each"}}, "nothing to compute anew") for cls in (KovaA2C, KovaTRPO)),
    ],
)
def test_what_the_host_takes_and_a_loop_does_not(cls: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cls("MlpPolicy", "CartPole-v1", **given)


@pytest.mark.parametrize("cls", [KovaA2C, KovaTRPO])
def test_returns_are_computed_anew_where_there_is_a_second_pass_or_a_policy_after_the_first(cls: Any) -> None:
    small = {"seed": 0, "n_steps": 32}

    def weights(**kova: Any) -> Any:
        return cls("MlpPolicy", "CartPole-v1", **small, kova=kova).learn(64).policy.parameters()

    for given in ({"value_passes": 2}, {"value_first": True}):
        pairs = zip(weights(**given), weights(**given, recompute="each"), strict=True)
        assert not all(torch.equal(one, other) for one, other in pairs)


def test_one_dataclass_serves_filter_and_host() -> None:
    assert isinstance(KovaSettings(value_passes=3), ValueLoop)
    assert KovaSettings(value_passes=3).given == ["value_passes"]
    assert KovaSettings().given == []
