"""Values are coded as JSON and arrays, and come back to the bit."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from stable_baselines3 import PPO
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.sb3 import registry
from kova_rl.sb3.files.codec import decode, encode
from kova_rl.sb3.settings import KovaSettings
from tests.saved import same


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
