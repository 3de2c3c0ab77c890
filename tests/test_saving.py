"""Models are saved and loaded without pickle, and training goes on where it stopped."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from kova_rl.sb3 import KovaPPO
from kova_rl.sb3.saving import SafeSaving
from tests.saved import CASES, SMALL, SafeDQN, SafePPO, build, envs, same


def go_on(model: SafeSaving, steps: int = 40) -> SafeSaving:
    """Train on, from seeded environments and seeded generators."""
    set_random_seed(11)
    assert model.env is not None
    model.env.seed(11)
    model.action_space.seed(5)
    return model.learn(steps, reset_num_timesteps=False)


VOLATILE = ("start_time", "env", "_logger", "policy", "rollout_buffer", "replay_buffer", "_vec_normalize_env")


def state(model: SafeSaving) -> dict[str, Any]:
    """Everything that training could depend on."""
    states, variables = model._get_torch_save_params()
    aliases = {name.split(".")[0] for name in (*states, *variables)} | set(model._excluded_save_params())
    found = {k: v for k, v in vars(model).items() if k not in {*aliases, *VOLATILE, "_kept_normalisation"}}
    found |= {"parameters": {k: dict(v) for k, v in model.get_parameters().items()}}
    found |= {name: getattr(model, name) for name in variables}
    found["ep_info_buffer"] = [(info["r"], info["l"]) for info in model.ep_info_buffer or ()]  # not its time
    normalised = model.get_vec_normalize_env()
    if normalised is not None:
        left = (
            "venv",
            "class_attributes",
            "old_obs",
            "old_reward",
            "metadata",
            "action_space",
            "reset_infos",
        )
        found["normalised"] = {
            k: v for k, v in vars(normalised).items() if k not in left and not k.startswith("_")
        }
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        left = ("env", "observation_space", "action_space")
        found["replay"] = {k: v for k, v in sorted(vars(buffer).items()) if k not in left}
    return dict(sorted(found.items()))


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("case", CASES)
def test_everything_comes_back_and_training_goes_on(case: str, normalised: bool, tmp_path: Path) -> None:
    cls, name, _ = CASES[case]
    model = build(case, normalised).learn(60)
    model.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    if hasattr(model, "replay_buffer"):
        model.save_replay_buffer(tmp_path / "buffer")

    env = envs(name, normalised=normalised)
    again = cls.load(tmp_path / "model", env=env, force_reset=False)
    if hasattr(model, "replay_buffer"):
        again.load_replay_buffer(tmp_path / "buffer")
    same(state(again), state(model))
    same(again.ep_info_buffer, model.ep_info_buffer)
    same(again.action_space.sample(), model.action_space.sample())

    model._last_obs = again._last_obs = None  # both reset
    same(state(go_on(again)), state(go_on(model)))


class TestNormalisation:
    def saved(self, tmp_path: Path) -> tuple[VecNormalize, Path]:
        model = build("PPO", normalised=True).learn(40)
        model.save(tmp_path / "model.zip")
        statistics = model.get_vec_normalize_env()
        assert statistics is not None
        return statistics, tmp_path / "model.zip"

    def test_a_bare_environment_is_wrapped(self, tmp_path: Path) -> None:
        statistics, path = self.saved(tmp_path)
        for env in (envs("CartPole-v1"), gym.make("CartPole-v1")):
            found = SafePPO.load(path, env=env).get_vec_normalize_env()
            assert found is not None
            same(found.obs_rms, statistics.obs_rms)
            same(found.ret_rms, statistics.ret_rms)
            assert (found.gamma, found.clip_obs) == (0.9, 5.0)

    def test_a_wrapped_one_keeps_its_settings(self, tmp_path: Path) -> None:
        statistics, path = self.saved(tmp_path)
        env = VecNormalize(envs("CartPole-v1", 1), training=False, norm_reward=False)
        model = SafePPO.load(path, env=env)
        assert model.get_vec_normalize_env() is env
        assert not env.training
        assert not env.norm_reward
        same(env.obs_rms, statistics.obs_rms)

    def test_without_environment_they_wait(self, tmp_path: Path) -> None:
        statistics, path = self.saved(tmp_path)
        SafePPO.load(path).save(tmp_path / "again.zip")
        model = SafePPO.load(tmp_path / "again.zip")
        model.set_env(envs("CartPole-v1"))
        found = model.get_vec_normalize_env()
        assert found is not None
        same(found.obs_rms, statistics.obs_rms)

    def test_observations_that_are_dicts(self, tmp_path: Path) -> None:
        def env() -> VecEnv:
            return DummyVecEnv([lambda: SimpleMultiObsEnv(random_start=False)])

        normalised = VecNormalize(env(), norm_obs_keys=["vec"])
        normalised.reset()
        extractor = {"features_extractor_kwargs": {"cnn_output_dim": 8}, **SMALL}
        model = SafePPO("MultiInputPolicy", normalised, n_steps=8, batch_size=8, policy_kwargs=extractor)
        model.save(tmp_path / "model")
        again = SafePPO.load(tmp_path / "model", env=env())
        found = again.get_vec_normalize_env()
        assert found is not None
        same(found.obs_rms, normalised.obs_rms)
        same(again.get_parameters(), model.get_parameters())
        # policy, value and shared extractor are one: stored once
        assert (tmp_path / "model.zip").stat().st_size < 1.3 * sum(
            p.nbytes for p in model.policy.parameters()
        )

    def test_other_observations_are_refused(self, tmp_path: Path) -> None:
        _, path = self.saved(tmp_path)
        with pytest.raises(ValueError, match=r"statistics are of observations \(4,\)"):
            SafePPO.load(path, env=envs("Pendulum-v1"))


class TestFiles:
    def test_a_stream_and_nested_folders(self, tmp_path: Path) -> None:
        model, stream = build("PPO"), io.BytesIO()
        model.save(stream)
        same(SafePPO.load(stream).get_parameters(), model.get_parameters())
        model.save(str(tmp_path / "a" / "b" / "model"))
        same(SafePPO.load(str(tmp_path / "a/b/model")).get_parameters(), model.get_parameters())

    def test_a_save_that_fails_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = build("PPO")
        model.save(tmp_path / "model")
        before = (tmp_path / "model.zip").read_bytes()

        def full(*_: Any, **__: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(np.lib.format, "write_array", full)
        with pytest.raises(OSError, match="no space"):
            model.save(tmp_path / "model")
        assert (tmp_path / "model.zip").read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1

    def test_parameters_alone(self, tmp_path: Path) -> None:
        model = build("SAC").learn(30)
        model.save(tmp_path / "model")
        other = build("SAC")
        other.set_parameters(str(tmp_path / "model"))
        same(other.get_parameters(), model.get_parameters())

    def test_a_lambda_does_not_end_a_run_at_its_first_checkpoint(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"policy_kwargs": SMALL, "n_steps": 16, "batch_size": 16, "seed": 0}
        model = KovaPPO("MlpPolicy", "CartPole-v1", learning_rate=lambda left: 1e-3 * left, **settings)
        with pytest.warns(UserWarning, match="load will ask for learning_rate"):
            model.learn(48, callback=CheckpointCallback(16, str(tmp_path)))
        assert model.num_timesteps == 48
        own = {"learning_rate": lambda left: 2e-3 * left}
        again = KovaPPO.load(tmp_path / "rl_model_48_steps", env=gym.make("CartPole-v1"), custom_objects=own)
        assert again.lr_schedule(0.5) == 1e-3
        again.learn(16, reset_num_timesteps=False)

    def test_parameters_that_do_not_fit_change_nothing(self) -> None:
        settings: dict[str, Any] = {"policy_kwargs": SMALL, "n_steps": 16, "batch_size": 16}
        model = KovaPPO("MlpPolicy", "CartPole-v1", seed=0, **settings).learn(16)
        other = PPO("MlpPolicy", "CartPole-v1", seed=1, **settings).learn(16)
        before = copy.deepcopy(model.get_parameters())
        with pytest.raises(ValueError, match=r"do not match.*exact_match=False"):
            model.set_parameters(other.get_parameters())
        same(model.get_parameters(), before)
        with pytest.raises(ValueError, match="group"):  # the optimizer comes after the policy
            model.set_parameters(other.get_parameters(), exact_match=False)
        same(model.get_parameters(), before)
        model.set_parameters({"policy": other.get_parameters()["policy"]}, exact_match=False)
        same(model.get_parameters()["policy"], other.get_parameters()["policy"])

    def test_versions_are_printed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        build("PPO").save(tmp_path / "model")
        SafePPO.load(tmp_path / "model", print_system_info=True)
        assert "- kova-rl: " in capsys.readouterr().out

    def test_callbacks_of_the_host(self, tmp_path: Path) -> None:
        model = build("DQN", normalised=True)
        checkpoint = CheckpointCallback(
            10, str(tmp_path / "at"), save_replay_buffer=True, save_vecnormalize=True
        )
        evaluation = EvalCallback(
            envs("CartPole-v1", 1, normalised=True),
            best_model_save_path=str(tmp_path / "best"),
            n_eval_episodes=1,
            eval_freq=10,
            verbose=0,
            warn=False,
        )
        model.learn(40, callback=[checkpoint, evaluation])
        again = SafeDQN.load(tmp_path / "at" / "rl_model_40_steps", env=envs("CartPole-v1"))
        again.load_replay_buffer(tmp_path / "at" / "rl_model_replay_buffer_40_steps.pkl")
        buffer, other = model.replay_buffer, again.replay_buffer  # type: ignore[attr-defined]
        assert other.pos == 19  # the host calls back before it stores
        same(other.rewards[:19], buffer.rewards[:19])
        assert SafeDQN.load(tmp_path / "best" / "best_model").num_timesteps > 0


class TestReplay:
    def test_an_on_policy_model_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no replay buffer"):
            build("PPO").save_replay_buffer(tmp_path / "buffer")

    @pytest.mark.parametrize("copied", [False, True])
    def test_hindsight(self, copied: bool, tmp_path: Path) -> None:
        def env() -> VecEnv:
            return DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=False, max_steps=4)] * 2)

        model = SafeDQN(
            "MultiInputPolicy",
            env(),
            replay_buffer_class=HerReplayBuffer,
            replay_buffer_kwargs={"goal_selection_strategy": "final", "copy_info_dict": copied},
            policy_kwargs=SMALL,
            **{"learning_starts": 20, "buffer_size": 60, "seed": 0},
        ).learn(94)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        again = SafeDQN.load(tmp_path / "model", env=env())
        again.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
        mine, other = vars(model.replay_buffer), vars(again.replay_buffer)
        for name in ("ep_start", "ep_length", "_current_ep_start", "observations", "actions", "pos", "full"):
            same(other[name], mine[name], name)
        same(other["infos"].tolist(), mine["infos"].tolist())
        assert other["goal_selection_strategy"] is mine["goal_selection_strategy"]
        with pytest.warns(UserWarning, match="truncated"):
            again.load_replay_buffer(tmp_path / "buffer")
        assert again.replay_buffer is not None
        assert (again.replay_buffer._current_ep_start == again.replay_buffer.pos).all()  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="set_env first"):
            SafeDQN.load(
                tmp_path / "model", custom_objects={"replay_buffer_class": None, "replay_buffer_kwargs": {}}
            ).load_replay_buffer(tmp_path / "buffer")
