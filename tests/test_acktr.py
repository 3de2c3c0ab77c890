"""ACKTR: what its Fisher factors see, that it learns, and what it shares with its host to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule
from torch import Tensor, nn

from kova_rl.baselines import KFAC, KFACInfo
from kova_rl.errors import NonFiniteBatch
from kova_rl.sb3.acktr import ACKTR

MULTI = spaces.MultiDiscrete([2, 3])
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    MULTI,
    spaces.MultiBinary(2),
    spaces.Box(-1, 1, (2,), np.float32),
]


class Walk(gym.Env[np.ndarray, Any]):
    """Random observations; the reward is the sum of them, and ``bad`` at one step."""

    def __init__(self, actions: spaces.Space[Any], bad_at: int = -1, bad: float = np.nan) -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 9, (3,), np.float32), actions
        self.bad_at, self.bad, self.time = bad_at, bad, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.time += 1
        seen = self._see()
        reward = self.bad if self.time == self.bad_at else float(seen.sum())
        return seen, reward, self.time % 10 == 0, False, {}

    def _see(self) -> np.ndarray:
        return self.np_random.normal(size=3).astype(np.float32)


def acktr(env: Any, **settings: Any) -> ACKTR:
    return ACKTR("MlpPolicy", env, device="cpu", **{"seed": 0, "n_steps": 16, **settings})


def weights(model: A2C) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


def factors(model: ACKTR) -> dict[str, Any]:
    return dict(model.policy.optimizer.state_dict()["state"][0])


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


class Kept(Logger):
    """Keeps what was recorded."""

    def __init__(self) -> None:
        super().__init__(None, [])
        self.seen: dict[str, list[Any]] = {}

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        self.seen.setdefault(key, []).append(value)


# ---------------------------------------------------------------------- learning


def test_it_learns_cartpole() -> None:
    """A random policy's episodes have a mean of 22; three seeds had 180 and more here."""
    model = ACKTR("MlpPolicy", "CartPole-v1", n_steps=100, kl_clip=0.01, seed=1, device="cpu").learn(12_000)
    assert model.ep_info_buffer is not None
    assert np.mean([episode["r"] for episode in list(model.ep_info_buffer)[-20:]]) > 100


@pytest.mark.parametrize("updates", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_thousands_of_updates_on_pendulum_stay_finite(updates: int) -> None:
    model = acktr("Pendulum-v1", n_steps=4, policy_kwargs={"net_arch": [16], "activation_fn": nn.ReLU})
    model.set_logger(log := Kept())
    before = weights(model)
    model.learn(4 * updates)
    assert len(log.seen["train/kl"]) == updates
    assert all(np.isfinite(value).all() for key, value in log.seen.items() if key.startswith("train/"))
    assert max(log.seen["train/kl"]) <= 0.001 * (1 + 1e-9)
    assert min(log.seen["train/nu"]) > 0
    assert torch.isfinite(weights(model)).all()
    assert (weights(model) - before).abs().max() > 0.1


@pytest.mark.parametrize("actions", SPACES, ids=lambda space: type(space).__name__)
def test_every_action_space_trains_all_weights(actions: spaces.Space[Any]) -> None:
    model = acktr(Walk(actions))
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(32)
    assert not any(torch.equal(p, q) for p, q in zip(model.policy.parameters(), before, strict=True))
    assert all(block["observed"] == 2 for block in factors(model).values())


# ---------------------------------------------------------------------- the Fisher factors


def test_the_factors_are_those_of_samples_from_the_policy_and_the_value() -> None:
    """The last layers' G in closed form, whatever the rollout's rewards and actions were."""
    model = acktr(Walk(spaces.Discrete(3)), n_steps=4000, fisher_coef=2.5)
    model.learn(4000)
    found, p = factors(model), torch.full((3,), 1 / 3).double()  # the policy starts almost uniform
    expected = torch.diag(p) - torch.outer(p, p)
    torch.testing.assert_close(found["action_net"]["G"], expected, atol=0.02, rtol=0.0)
    torch.testing.assert_close(found["value_net"]["G"], torch.tensor([[2.5]]).double(), atol=0.2, rtol=0.0)


def test_the_gaussian_policy_has_its_fisher_matrix() -> None:
    """1/std^2 for the mean and 2 for log_std: samples that carry gradients would give 0 and 1/2."""
    box = spaces.Box(-1, 1, (2,), np.float32)
    model = acktr(Walk(box), n_steps=2000, policy_kwargs={"log_std_init": -1.0})
    model.learn(2000)
    found, eye = factors(model), torch.eye(2).double()
    torch.testing.assert_close(found["action_net"]["G"], np.exp(2.0) * eye, atol=1.0, rtol=0.0)
    torch.testing.assert_close(found["log_std"]["G"], 2 * eye, atol=0.5, rtol=0.0)


# ---------------------------------------------------------------------- its host


def test_with_the_hosts_optimizer_it_is_the_host_to_the_bit() -> None:
    """The loss, the clipping and the rollouts are A2C's: only the optimizer's step differs."""

    class Host(ACKTR):
        def _setup_model(self) -> None:
            super()._setup_model()
            self.rms = torch.optim.RMSprop(self.policy.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)

        def _observe(self, optimizer: KFAC) -> float:
            state, numpy_state = torch.get_rng_state(), np.random.get_state()
            entropy = super()._observe(optimizer)
            torch.set_rng_state(state)
            np.random.set_state(numpy_state)
            optimizer.step = self.rms.step  # type: ignore[method-assign]
            optimizer._info = KFACInfo(1.0, 0.0)
            return entropy

        def _update_learning_rate(self, optimizers: Any) -> None:
            super()._update_learning_rate(self.rms)

    settings: dict[str, Any] = {"n_steps": 16, "ent_coef": 0.01, "learning_rate": 7e-4, "seed": 0}
    host = A2C("MlpPolicy", "CartPole-v1", device="cpu", **settings).learn(160)
    ours = Host("MlpPolicy", "CartPole-v1", device="cpu", **settings).learn(160)
    assert torch.equal(weights(host), weights(ours))


def test_it_logs_what_the_host_does_and_entropy_kl_and_nu(tmp_path: Path) -> None:
    keys = {}
    for kind in (A2C, ACKTR):
        model = kind("MlpPolicy", Walk(MULTI), n_steps=8, seed=0, device="cpu")
        model.set_logger(log := Kept())
        model.learn(80)
        keys[kind] = {key for key in log.seen if key.startswith("train/")}
    assert keys[ACKTR] == keys[A2C] | {"train/entropy", "train/kl", "train/nu"}
    assert log.seen["train/entropy"] == pytest.approx([-x for x in log.seen["train/entropy_loss"]], rel=1e-5)
    assert log.seen["train/entropy"][0] == pytest.approx(np.log(6), abs=0.01)
    acktr(Walk(MULTI), tensorboard_log=str(tmp_path)).learn(32, log_interval=1)
    assert list(tmp_path.glob("ACKTR_1/events*"))


def test_the_schedule_and_the_settings_reach_the_optimizer() -> None:
    model = acktr(Walk(MULTI), learning_rate=LinearSchedule(0.2, 0.0, 1.0), damping=0.5)
    (group,) = model.policy.optimizer.param_groups
    assert (group["lr"], group["damping"], group["momentum"]) == (0.2, 0.5, 0.9)
    model.learn(64)
    assert group["lr"] == 0.0  # the host's last update of a linear schedule
    model.kl_clip = 0.5
    model.learn(16)
    assert group["kl_clip"] == 0.5


@pytest.mark.parametrize("actions", SPACES, ids=lambda space: type(space).__name__)
def test_a_saved_model_goes_on_to_the_bit(actions: spaces.Space[Any], tmp_path: Path) -> None:
    model = acktr(Walk(actions), refresh=3, kl_clip=0.01, fisher_coef=2.0)
    model.learn(64)
    model.save(tmp_path / "model")
    loaded = ACKTR.load(tmp_path / "model", env=Walk(actions), device="cpu")
    assert (loaded.refresh, loaded.kl_clip, loaded.fisher_coef) == (3, 0.01, 2.0)
    assert torch.equal(weights(loaded), weights(model))
    assert equal(factors(loaded), factors(model))
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.array_equal(
        loaded.predict(observations, deterministic=True)[0],
        model.predict(observations, deterministic=True)[0],
    )
    for each in (model, loaded):
        each.set_env(Walk(actions))
        each.set_random_seed(5)
        each.learn(64)
    assert torch.equal(weights(loaded), weights(model))
    assert equal(factors(loaded), factors(model))


# ---------------------------------------------------------------------- bad input


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf - inf in the host's advantages
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rewards_that_are_not_finite_change_nothing(bad: float) -> None:
    before = weights(acktr(Walk(spaces.Discrete(2))).learn(32))
    model = acktr(Walk(spaces.Discrete(2), bad_at=40, bad=bad))
    with pytest.raises(NonFiniteBatch, match="environment 0 gave the reward"):
        model.learn(64)
    assert torch.equal(weights(model), before)
    assert all(block["observed"] == 2 for block in factors(model).values())


def test_observations_that_are_not_finite_change_nothing() -> None:
    model = acktr(Walk(spaces.Discrete(2))).learn(16)
    before, state = weights(model), factors(model)
    model.rollout_buffer.observations[3] = np.inf
    with pytest.raises(NonFiniteBatch, match="of the rollout's observations are not finite"):
        model.train()
    assert torch.equal(weights(model), before)
    assert equal(factors(model), state)


class Images(Walk):
    def __init__(self) -> None:
        super().__init__(spaces.Discrete(2))
        self.observation_space = spaces.Dict({"image": spaces.Box(0, 255, (36, 36, 1), np.uint8)})


def test_what_has_no_factors_is_refused_at_construction() -> None:
    for policy in ("CnnPolicy", A2C.policy_aliases["CnnPolicy"]):
        with pytest.raises(ValueError, match="MlpPolicy"):
            ACKTR(policy, Walk(MULTI))
    with pytest.raises(ValueError, match=r"cnn\.0\.weight belongs to a Conv2d"):
        ACKTR("MultiInputPolicy", Images(), device="cpu")
    with pytest.raises(ValueError, match="optimizer_class"):
        acktr(Walk(MULTI), policy_kwargs={"optimizer_class": torch.optim.Adam})
    with pytest.raises(ValueError, match="no use_sde"):
        acktr(Walk(MULTI), use_sde=True)
    with pytest.raises(ValueError, match="fisher_coef must be"):
        acktr(Walk(MULTI), fisher_coef=0.0)
    with pytest.raises(ValueError, match="damping must be"):
        acktr(Walk(MULTI), damping=0.0)
