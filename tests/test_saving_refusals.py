"""Files that are not ours, not whole or not safe are refused, and nothing in them is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.utils import ConstantSchedule

from kova_rl.sb3 import registry
from kova_rl.sb3.files import archive
from tests.saved import SMALL, SafeA2C, SafePPO, SafeTD3, build, envs, same


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
