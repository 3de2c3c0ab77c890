"""The safe file format of models: everything comes back to the bit, and no code is run from a file."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule, set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.sb3 import KovaPPO, registry
from kova_rl.sb3.files import archive
from kova_rl.sb3.files.codec import decode, encode
from kova_rl.sb3.saving import SafeSaving
from kova_rl.sb3.settings import KovaSettings

SMALL = {"net_arch": [8]}


class SafePPO(SafeSaving, PPO):
    pass


class SafeA2C(SafeSaving, A2C):
    pass


class SafeTRPO(SafeSaving, TRPO):
    pass


class SafeDQN(SafeSaving, DQN):
    pass


class SafeSAC(SafeSaving, SAC):
    pass


class SafeTD3(SafeSaving, TD3):
    pass


class SafeDDPG(SafeSaving, DDPG):
    pass


def envs(name: str, count: int = 2, normalised: bool = False) -> VecEnv:
    made: VecEnv = make_vec_env(name, n_envs=count)
    return VecNormalize(made, gamma=0.9, clip_obs=5.0) if normalised else made


CASES: dict[str, tuple[type[SafeSaving], str, dict[str, Any]]] = {
    "PPO": (SafePPO, "CartPole-v1", {"n_steps": 16, "batch_size": 16, "n_epochs": 2}),
    "PPO, schedules": (
        SafePPO,
        "Pendulum-v1",
        {
            **{"n_steps": 16, "batch_size": 16, "n_epochs": 2, "use_sde": True, "seed": 3},
            "learning_rate": LinearSchedule(1e-3, 1e-4, 0.5),
            "clip_range": LinearSchedule(0.3, 0.1, 0.8),
        },
    ),
    "A2C": (SafeA2C, "CartPole-v1", {"n_steps": 8}),
    "TRPO": (SafeTRPO, "Pendulum-v1", {"n_steps": 16, "batch_size": 16, "learning_rate": 1e-3}),
    "DQN": (SafeDQN, "CartPole-v1", {"learning_starts": 10, "batch_size": 8, "target_update_interval": 20}),
    "SAC": (SafeSAC, "Pendulum-v1", {"learning_starts": 10, "batch_size": 8}),
    "SAC, fixed entropy": (SafeSAC, "Pendulum-v1", {"learning_starts": 10, "batch_size": 8, "ent_coef": 0.1}),
    "TD3": (
        SafeTD3,
        "Pendulum-v1",
        {
            **{"learning_starts": 10, "batch_size": 8, "n_steps": 3},
            "action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.3 * np.ones(1)),
        },
    ),
    "DDPG": (
        SafeDDPG,
        "Pendulum-v1",
        {
            **{"learning_starts": 10, "batch_size": 8, "train_freq": (4, "step")},
            "action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
        },
    ),
}


def build(case: str, normalised: bool = False) -> SafeSaving:
    cls, name, options = CASES[case]
    more = {"buffer_size": 200} if issubclass(cls, (DQN, SAC, TD3)) else {}
    options = {"seed": 0, **more, **options}
    return cls("MlpPolicy", envs(name, normalised=normalised), policy_kwargs=dict(SMALL), **options)


def same(a: Any, b: Any, path: str = "value") -> None:
    """Equal to the bit, in type as in value."""
    assert type(a) is type(b), f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
        raw = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        assert torch.equal(*raw), path
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b), path
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            same(one, other, f"{path}[{i}]")
    elif isinstance(a, np.random.Generator):
        same(a.bit_generator.state, b.bit_generator.state, path)
    elif isinstance(a, np.random.RandomState):
        same(a.get_state(legacy=False), b.get_state(legacy=False), path)
    elif isinstance(a, spaces.Space | ActionNoise | RunningMeanStd | FloatSchedule | LinearSchedule):
        same(vars(a), vars(b), path)
    elif isinstance(a, ConstantSchedule):
        same(a.val, b.val, path)
    else:
        assert a == b, path


def back(value: Any) -> Any:
    coded, arrays = encode(value)
    return decode(json.loads(json.dumps(coded, allow_nan=False)), arrays)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text()
    | arrays_of.arrays(
        st.sampled_from([np.float32, np.float64, np.int8, np.uint16, np.bool_, np.complex64, ">i4", "U3"]),
        arrays_of.array_shapes(min_dims=0, min_side=0, max_side=3),
    )
    | st.sampled_from([torch.float16, torch.Size([2, 0]), torch.device("cuda:1"), np.dtype(">f4"), np.int8])
    | st.sampled_from([torch.nn.Tanh, torch.optim.Adam, PPO.policy_aliases["MlpPolicy"], Path("a/b")])
    | st.floats(width=32).map(np.float32)
    | st.integers(-5, 5).map(np.int64)
)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.booleans()) | st.just("!") | st.none()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4))
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=8,
)


class TestCodec:
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(VALUES)
    def test_values_come_back(self, value: Any) -> None:
        same(back(value), value)

    @pytest.mark.parametrize(
        "dtype",
        [
            *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.bool),
            *(torch.uint8, torch.int64, torch.float8_e4m3fn),
        ],
    )
    @pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3)])
    def test_tensors_come_back(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        value = (8 * torch.randn(shape)).to(dtype)
        same(back(value), value)
        same(back(value.T if value.ndim == 2 else value), value.T if value.ndim == 2 else value)

    def test_the_state_of_a_filter_comes_back(self) -> None:
        module = torch.nn.Linear(3, 1)
        kova = Kova(module, covariance=covariance.Full(dtype=torch.float64))
        kova.step(lambda: module(torch.randn(8, 3)).squeeze(-1), targets=torch.randn(8))
        state = kova.state_dict()
        same(back(state), state)
        kova.load_state_dict(back(state))
        same(kova.state_dict(), state)

    def test_nan_payloads_and_conjugates_come_back(self) -> None:
        odd = struct.unpack("d", struct.pack("Q", 0x7FF8_0000_0000_1234))[0]
        same(back([odd, -0.0, float("-inf"), 5e-324]), [odd, -0.0, float("-inf"), 5e-324])
        value = torch.tensor([1 + 2j, 3 - 1j]).conj()
        same(back(value), value.resolve_conj())

    def test_a_tensor_that_comes_twice_is_stored_once(self) -> None:
        weight = torch.nn.Linear(3, 3).weight
        _, arrays = encode({"a": weight.detach(), "b": weight.data})
        assert len(arrays) == 1
        _, arrays = encode([weight, weight.data[:1], weight.data.T])
        assert len(arrays) == 3

    def test_spaces_sample_on(self) -> None:
        space = spaces.Dict(
            {
                "z": spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
                "a": spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiBinary([2, 3]))),
                "m": spaces.MultiDiscrete([3, 4], start=[1, 2]),
                "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            }
        )
        space.seed(7)
        space.sample()
        again = back(space)
        assert again == space
        for _ in range(3):
            same(again.sample(), space.sample())

    @pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
    def test_generators_go_on(self, name: str) -> None:
        generator = np.random.Generator(getattr(np.random, name)(3))
        generator.integers(5, size=3, dtype=np.int32)
        again = back(generator)
        same(again.normal(size=5), generator.normal(size=5))
        same(again.integers(9, dtype=np.int32), generator.integers(9, dtype=np.int32))

    def test_random_states_go_on(self) -> None:
        state = np.random.RandomState(3)
        state.normal()
        assert back(state).normal() == state.normal()

    @pytest.mark.parametrize(
        "value",
        [
            TrainFreq(3, TrainFrequencyUnit.EPISODE),
            FloatSchedule(LinearSchedule(1.0, 0.1, 0.5)),
            FloatSchedule(0.3),
            NormalActionNoise(np.zeros(2), np.ones(2)),
            VectorizedActionNoise(OrnsteinUhlenbeckActionNoise(np.zeros(2), np.ones(2)), 3),
            RunningMeanStd(shape=(3,)),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_the_host_uses_comes_back(self, value: Any) -> None:
        if isinstance(value, ActionNoise):
            value()
        same(back(value), value)

    @pytest.mark.parametrize("module", [covariance, evolution, observation])
    def test_our_strategies_come_back(self, module: Any) -> None:
        members = [getattr(module, name) for name in module.__all__ if name != "kernel"]
        for cls in members:
            if getattr(cls, "__abstractmethods__", None):
                continue
            assert back(cls()) == cls()

    def test_settings_come_back(self) -> None:
        value = KovaSettings(
            covariance=covariance.Full(prior=covariance.FanIn(), dtype=torch.float64),
            evolution=evolution.Leakage(0.1),
            observation=observation.Robust(),
            lr=0.5,
        )
        assert back(value) == value
        assert back(KovaSettings(prior={"0.weight": 0.1})).prior == {"0.weight": 0.1}

    @pytest.mark.parametrize(
        "value",
        [lambda: 0, object(), np.array([None]), 1 + 2j, {1, 2}, type("Own", (), {}), torch.nn.Linear(1, 1)],
    )
    def test_what_it_cannot_hold_is_refused(self, value: Any) -> None:
        with pytest.raises(TypeError, match=r"policy_kwargs\.a\[1\] is of type .*custom_objects.*register"):
            encode({"a": [0, value]}, "policy_kwargs")

    @pytest.mark.parametrize(
        ("coded", "message"),
        [
            ({"!": "class", "name": "os.system"}, "not registered"),
            ({"!": "object", "class": "torch.optim.Adam", "state": {}}, "class alone"),
            ({"!": "object", "class": "sb3.FloatSchedule", "state": {"__call__": 1}}, "replace __call__"),
            ({"!": "eval", "code": "1"}, "does not know"),
            ({"!": "array", "at": 3}, "damaged"),
            ({"!": "tuple"}, "damaged"),
            ({"!": "dtype", "name": "load"}, "torch has not"),
            ({"!": "numpy dtype", "name": "O"}, "may not hold"),
            ({"!": "scalar", "dtype": "O", "bits": "00" * 8}, "may not hold"),
            ({"!": "generator", "state": {"bit_generator": "seed"}}, "bit generator"),
            ({"!": "dict", "ordered": False, "pairs": [[[], 1]]}, "damaged"),
        ],
    )
    def test_a_file_cannot_name_what_it_may_not(self, coded: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            decode(coded, [])


class TestRegistry:
    def test_a_user_registers_a_class(self) -> None:
        @dataclass(frozen=True)
        class Own:
            x: int

        class Schedule:
            def __init__(self) -> None:
                self.start = 1.0

            def __call__(self, progress: float) -> float:
                return self.start * progress

        registry.register("tests.Own", Own)
        registry.register("tests.Schedule", Schedule, instances=True)
        assert back(Own(3)) == Own(3)
        assert back(Own) is Own
        assert back(Schedule())(0.5) == 0.5
        with pytest.raises(ValueError, match="take another name"):
            registry.register("tests.Own", Schedule)
        with pytest.raises(ValueError, match="not an instance"):
            registry.register("tests.Own", Own(3))  # type: ignore[arg-type]


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


def rewrite(path: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()} | {member: content}
    with zipfile.ZipFile(path, "w") as new:
        for name, each in members.items():
            new.writestr(name, each)


class TestRefusals:
    def test_a_lambda_is_left_out_and_load_asks_for_it(self, tmp_path: Path) -> None:
        model = SafePPO(
            "MlpPolicy",
            envs("CartPole-v1"),
            policy_kwargs=SMALL,
            learning_rate=lambda progress: 1e-3 * progress,
            clip_range=lambda _: 0.25,
        )
        with pytest.warns(UserWarning, match="load will ask") as caught:
            model.save(tmp_path / "model")
        said = " ".join(str(warning.message) for warning in caught)
        assert "learning_rate is of type function" in said
        assert "clip_range.value_schedule is of type function" in said
        asked = (
            r"left out of the file: load\(path, custom_objects=\{'learning_rate': ..., 'clip_range': ...\}"
        )
        with pytest.raises(ValueError, match=asked):
            SafePPO.load(tmp_path / "model")
        own = {"learning_rate": lambda progress: 2e-3 * progress, "clip_range": ConstantSchedule(0.5)}
        again: Any = SafePPO.load(tmp_path / "model", custom_objects=own)
        assert again.lr_schedule(0.5) == 1e-3
        assert again.clip_range(1.0) == 0.5
        same(again.get_parameters()["policy"], model.get_parameters()["policy"])

    def test_a_class_of_a_user_is_refused_until_it_is_registered(self, tmp_path: Path) -> None:
        class OwnTanh(torch.nn.Tanh):
            pass

        model = SafePPO("MlpPolicy", envs("CartPole-v1"), policy_kwargs={"activation_fn": OwnTanh})
        with pytest.warns(UserWarning, match=r"policy_kwargs\.activation_fn is of type class OwnTanh"):
            model.save(tmp_path / "model")
        with pytest.raises(ValueError, match="policy_kwargs left out"):
            SafePPO.load(tmp_path / "model")
        registry.register("tests.OwnTanh", OwnTanh)
        model.save(tmp_path / "model")
        assert SafePPO.load(tmp_path / "model").policy_kwargs["activation_fn"] is OwnTanh
        del registry._CLASSES["tests.OwnTanh"]
        with pytest.raises(ValueError, match=r"policy_kwargs: .*'tests.OwnTanh', which is not registered"):
            SafePPO.load(tmp_path / "model")
        found = SafePPO.load(tmp_path / "model", custom_objects={"policy_kwargs": {}})
        assert found.policy_kwargs == {}

    def test_another_class_is_named(self, tmp_path: Path) -> None:
        build("PPO").save(tmp_path / "model")
        with pytest.raises(ValueError, match=r"model of SafePPO, not of SafeA2C: call SafePPO\.load"):
            SafeA2C.load(tmp_path / "model")

    def test_what_is_needed_must_be_there(self, tmp_path: Path) -> None:
        build("PPO").save(tmp_path / "model", exclude=["policy_class"])
        with pytest.raises(ValueError, match=r"policy_class left out.*custom_objects"):
            SafePPO.load(tmp_path / "model")

    def test_other_spaces_and_policies_are_refused_as_by_the_host(self, tmp_path: Path) -> None:
        build("PPO").save(tmp_path / "model")
        with pytest.raises(ValueError, match="Observation spaces do not match"):
            SafePPO.load(tmp_path / "model", env=envs("Pendulum-v1"))
        with pytest.raises(ValueError, match="policy kwargs"):
            SafePPO.load(tmp_path / "model", policy_kwargs={"net_arch": [3]})
        assert SafePPO.load(tmp_path / "model", env=envs("CartPole-v1", 3)).n_envs == 3

    def test_the_error_of_the_host_is_the_one_that_says_more(self, tmp_path: Path) -> None:
        model = build("TD3")
        model.save(tmp_path / "model")
        with zipfile.ZipFile(tmp_path / "model.zip") as file:
            document = json.loads(file.read("model.json"))
        del document["parts"]["params"]["actor.optimizer"]
        rewrite(tmp_path / "model.zip", "model.json", json.dumps(document).encode())
        with pytest.raises(ValueError, match="Names of parameters do not match"):
            SafeTD3.load(tmp_path / "model")

    def test_a_file_cannot_replace_a_method(self, tmp_path: Path) -> None:
        model = build("PPO")
        model.train = 3  # type: ignore[attr-defined]
        model.save(tmp_path / "model")
        with pytest.raises(ValueError, match="replace train of SafePPO"):
            SafePPO.load(tmp_path / "model")


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class TestForeignFiles:
    def test_code_in_a_hosts_file_is_not_run(self, tmp_path: Path) -> None:
        path, trap = tmp_path / "model.zip", tmp_path / "trap"
        model = PPO("MlpPolicy", envs("CartPole-v1"), policy_kwargs=SMALL)
        model.trap = Malicious(trap)  # type: ignore[attr-defined]
        model.save(path)
        for refused in (SafePPO.load, build("PPO").set_parameters):
            with pytest.raises(ValueError, match=r"can run code.*trust=True"):
                refused(path)  # type: ignore[operator]
            assert not trap.exists()
        again = SafePPO.load(path, trust=True)
        assert trap.exists()
        same(again.get_parameters()["policy"], model.get_parameters()["policy"])

    def test_code_in_a_pickled_buffer_is_not_run(self, tmp_path: Path) -> None:
        path, trap = tmp_path / "buffer.pkl", tmp_path / "trap"
        path.write_bytes(pickle.dumps(Malicious(trap)))
        model = build("DQN")
        with pytest.raises(ValueError, match=r"can run code.*trust=True"):
            model.load_replay_buffer(path)
        assert not trap.exists()
        DQN("MlpPolicy", envs("CartPole-v1"), buffer_size=10).save_replay_buffer(path)
        model.load_replay_buffer(path, trust=True)
        assert model.replay_buffer.buffer_size == 5  # type: ignore[attr-defined]

    def test_pickled_arrays_are_not_read(self, tmp_path: Path) -> None:
        path, trap = tmp_path / "model.zip", tmp_path / "trap"
        build("PPO").save(path)
        bad = io.BytesIO()
        np.save(bad, np.array([Malicious(trap)], dtype=object), allow_pickle=True)
        rewrite(path, "arrays/0.npy", bad.getvalue())
        with pytest.raises(ValueError, match=r"model\.zip"):
            SafePPO.load(path)
        assert not trap.exists()

    def test_an_environment_is_not_made_of_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, trap = tmp_path / "model.zip", tmp_path / "trap"
        (tmp_path / "evil_module.py").write_text(f"import os\nos.mkdir({str(trap)!r})\n")
        monkeypatch.syspath_prepend(tmp_path)
        build("PPO").save(path)
        with zipfile.ZipFile(path) as file:
            document = json.loads(file.read("model.json"))
        document["parts"]["data"]["env"] = "evil_module:Trap-v0"
        rewrite(path, "model.json", json.dumps(document).encode())
        with pytest.raises(ValueError, match="would replace env"):
            SafePPO.load(path)
        assert not trap.exists()

    def test_trust_reads_our_own_file_safely(self, tmp_path: Path) -> None:
        model = build("PPO")
        model.save(tmp_path / "model")
        again = SafePPO.load(tmp_path / "model", trust=True)
        same(again.get_parameters(), model.get_parameters())

    def test_damage_is_found(self, tmp_path: Path) -> None:
        path = tmp_path / "model.zip"
        build("PPO").save(path)
        whole = path.read_bytes()
        for content in (whole[: len(whole) // 2], whole[:-10], b"", b"PK", b"hello"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"model\.zip"):
                SafePPO.load(path)
        generator = random.Random(0)
        accepted = 0
        for _ in range(40):
            at = generator.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
            try:
                archive.read(path, "model")
                accepted += 1  # a byte of the zip's own that nobody reads, such as a date
            except ValueError:
                pass
        assert accepted < 20

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (b"{", "model.zip"),
            (b"[]", "damaged"),
            (b'{"kova_rl": "model", "format": 9, "parts": {}, "libraries": {}}', "format 9"),
            (b'{"kova_rl": "cake", "format": 1, "parts": {}, "libraries": {}}', "holds a cake"),
            (b'{"kova_rl": "model", "format": 1, "parts": {}, "libraries": {}}', "has the parts"),
            (b"[" * 100_000, "damaged"),
        ],
    )
    def test_a_strange_document_is_refused(self, document: bytes, message: str, tmp_path: Path) -> None:
        path = tmp_path / "model.zip"
        build("A2C").save(path)
        rewrite(path, "model.json", document)
        with pytest.raises(ValueError, match=message):
            SafeA2C.load(path)

    def test_a_zip_of_something_else_is_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
            file.writestr("holiday.jpg", b"")
        with pytest.raises(ValueError, match=r"without model\.json"):
            SafePPO.load(tmp_path / "model")


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
