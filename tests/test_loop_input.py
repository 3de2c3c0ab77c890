"""The critic's loop with what people pass: NumPy's numbers, frozen weights, new rates, odd environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecEnvWrapper

from kova_rl import Kova
from kova_rl.sb3 import KovaA2C, KovaPPO, KovaSettings, KovaTRPO, ValueLoop
from kova_rl.sb3.collected import rollout_of
from tests.test_value_loop import ON_POLICY, walker

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
ADAM: dict[str, Any] = {"kova": None}


def test_numbers_of_numpy_are_plain_ones() -> None:
    loop = ValueLoop(
        value_passes=np.int64(2),  # type: ignore[arg-type]
        value_batch=np.int32(8),  # type: ignore[arg-type]
        value_lambda=np.float32(0.5),  # type: ignore[arg-type]
        value_lr=np.float64(1e-3),
        value_first=np.bool_(True),  # type: ignore[arg-type]
    )
    kinds = [
        type(getattr(loop, name)) for name in ("value_passes", "value_batch", "value_lambda", "value_lr")
    ]
    assert kinds == [int, int, float, float]
    assert loop.value_first is True


@pytest.mark.parametrize("cls", ON_POLICY)
def test_a_rate_of_numpy_can_be_saved_and_loaded(cls: Any, tmp_path: Path) -> None:
    model = walker(cls, **ADAM, value={"value_lr": np.float64(1e-3)}).learn(60)
    model.save(tmp_path / "model")
    again = cls.load(tmp_path / "model")
    for one, other in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (KovaPPO, {"kova": {"value_passes": np.int64(2), "value_batch": np.int64(7)}}),
        (KovaPPO, {"batch_size": np.int64(16)}),
        (KovaPPO, {"n_epochs": np.int64(2), "kova": {"layers": "last"}}),
        (KovaTRPO, {"batch_size": np.int64(16)}),
        (KovaTRPO, {"n_critic_updates": np.int64(2), "kova": {"layers": "last"}}),
    ],
)
def test_a_model_learns_with_whole_numbers_of_numpy(cls: Any, given: dict[str, Any]) -> None:
    assert walker(cls, **given).learn(60).num_timesteps == 60


def test_a_look_is_two_whole_numbers_of_any_kind() -> None:
    critic = torch.nn.Linear(2, 1)
    states = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    kova = Kova(critic)
    look: Any = (np.int64(1), np.int64(2))
    kova.step(lambda: critic(states).squeeze(1), torch.zeros(4), look=look)
    with pytest.raises(ValueError, match="look must be"):
        kova.step(lambda: critic(states).squeeze(1), torch.zeros(4), look=(True, 2))


@pytest.mark.parametrize("count", [2.5, True, -1])
def test_counts_of_trpo_are_whole_numbers(count: Any) -> None:
    with pytest.raises(ValueError, match="n_critic_updates must be a whole number, at least 0"):
        walker(KovaTRPO, **ADAM, value={}, n_critic_updates=count)


def test_a_rate_that_is_given_when_a_model_is_loaded_counts(tmp_path: Path) -> None:
    walker(KovaPPO, **ADAM, value={"value_lr": 1e-2}).learn(60).save(tmp_path / "adam")
    again = KovaPPO.load(tmp_path / "adam", env=walker(KovaPPO).env, value={"value_lr": 1e-5})
    again.learn(60)
    assert again.value_optimizer is not None
    assert again.value_optimizer.param_groups[0]["lr"] == 1e-5

    walker(KovaPPO, kova={"lr": 0.5}).learn(60).save(tmp_path / "kova")
    assert KovaPPO.load(tmp_path / "kova").filters.v.param_groups[0]["lr"] == 0.5
    assert KovaPPO.load(tmp_path / "kova", kova={"lr": 0.1}).filters.v.param_groups[0]["lr"] == 0.1


def test_settings_of_a_filter_are_no_loop_of_the_hosts_optimizer() -> None:
    with pytest.raises(ValueError, match="value must be ValueLoop"):
        walker(KovaPPO, **ADAM, value=KovaSettings(eta=0.3))


@pytest.mark.parametrize("cls", ON_POLICY)
@pytest.mark.parametrize("first", [False, True])
def test_what_is_frozen_stays(cls: Any, first: bool) -> None:
    model = walker(cls, **ADAM, value={"value_first": first})
    kept = model.policy.value_net.weight.requires_grad_(False)
    hidden = next(model.policy.mlp_extractor.value_net.parameters())
    before = kept.clone(), hidden.clone()
    model.learn(60)
    assert not kept.requires_grad
    assert torch.equal(kept, before[0])
    assert not torch.equal(hidden, before[1])


class Reusing(VecEnvWrapper):
    """Writes the last observation of each episode into one and the same array."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self.last = np.zeros(venv.observation_space.shape, venv.observation_space.dtype)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        for env in np.flatnonzero(dones):
            self.last[:] = infos[env]["terminal_observation"]
            infos[env]["terminal_observation"] = self.last
        return obs, rewards, dones, infos


def test_rewards_are_the_environments_where_an_array_is_used_again() -> None:
    """The value that the host adds at a time limit is taken out again, whatever became of its array."""
    model = walker(KovaA2C, kova={"recompute": "once", "value_first": True})
    model.set_env(Reusing(model.env))
    with torch.no_grad():
        model.policy.value_net.weight.normal_(generator=torch.Generator().manual_seed(0))
    given: list[Any] = []
    step = model.env.step_wait

    def stepped() -> Any:
        found = step()
        given.append(found[1].copy())
        return found

    model.env.step_wait = stepped
    seen: list[bool] = []

    def train() -> None:
        rollout = rollout_of(model, model._cuts)
        assert rollout.truncated.sum() > 1
        assert np.allclose(rollout.rewards.numpy(), np.stack(given[-20:]), atol=1e-5)
        assert not np.allclose(model.rollout_buffer.rewards, np.stack(given[-20:]), atol=1e-3)
        seen.append(True)

    model.train = train
    model.learn(120)
    assert len(seen) == 2


def test_trpo_learns_where_numpy_raises() -> None:
    with np.errstate(invalid="raise", divide="raise"):
        walker(KovaTRPO).learn(60)


def test_advantages_are_computed_anew_once_the_critic_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = walker(KovaPPO, n_epochs=6, kova={"recompute": "each", "value_passes": 2})
    made: list[bool] = []
    monkeypatch.setattr("kova_rl.sb3.apart.write_advantages", lambda *_: made.append(True))
    model.learn(60)
    assert len(made) == 2


def test_looking_whether_a_head_can_be_solved_draws_nothing() -> None:
    model = walker(KovaPPO, kova={"head": 0.1})
    model.observation_space.seed(0)
    before = model.observation_space.np_random.bit_generator.state
    model._check_head()
    assert model.observation_space.np_random.bit_generator.state == before
