"""The command kova evaluate, from end to end."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from kova_rl import cli, sb3
from kova_rl.lab.commands.evaluate import Evaluate
from kova_rl.lab.evaluation import environment
from kova_rl.lab.evaluation.critics import CRITICS, describe
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store
from kova_rl.sb3 import policy as sb3_policy
from tests.runs import ppo


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stable_baselines3 import PPO

    path = tmp_path_factory.mktemp("model") / "ppo.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0, device="cpu").learn(32).save(path)
    return path


def test_the_command_runs_and_runs_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Evaluate(
        task="boyan",
        condition="switch",
        critics=("kova", "lstd"),
        samples=320,
        seeds=2,
        out=tmp_path,
        jobs=1,
    )
    command.run()
    printed = capsys.readouterr().out
    assert "boyan, switch" in printed
    assert "4 of 4 runs done, 0 failed" in printed
    runs = sorted(tmp_path.glob("*/summary.json"))
    assert len(runs) == 4
    for name in ("evaluation.png", "evaluation.pdf", "tables.md"):
        assert (tmp_path / name).stat().st_size > 0
    assert "| Kova |" in (tmp_path / "tables.md").read_text()
    before = [path.stat().st_mtime_ns for path in runs]
    command.run()
    assert "4 of 4 runs done (4 of them before)" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in runs] == before
    tables = (tmp_path / "tables.md").read_text()
    cli.main(["pack", str(tmp_path)])
    cli.main(["evaluate", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "tables.md").read_text() == tables
    cli.main(["report", str(tmp_path)])
    assert "Policy evaluation: mean and standard deviation" in (tmp_path / "report.html").read_text()


def test_the_command_takes_a_saved_model(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"samples": 400, "seeds": 1, "critics": ("kova", "adam"), "gamma": 0.9}
    command = Evaluate(env="CartPole-v1", policy=model, algorithm="PPO", trust=True, out=tmp_path, **settings)
    command.run()
    printed = capsys.readouterr().out
    assert "CartPole-v1" in printed
    assert "rollouts from each of" in printed
    runs = sorted(tmp_path.glob("*/summary.json"))
    assert len(runs) >= 5  # Adam's four rates on the tuning seed, and the two critics
    before = [path.stat().st_mtime_ns for path in runs]
    command.run()
    assert [path.stat().st_mtime_ns for path in runs] == before
    tables = (tmp_path / "tables.md").read_text()
    cli.main(["evaluate", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "tables.md").read_text() == tables


def test_the_command_compares_two_policies(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loading: dict[str, Any] = {"algorithm": "PPO", "trust": True}
    Evaluate(env="CartPole-v1", policy=model, against=model, samples=400, seeds=1, **loading).run()
    assert "It is open: A less B is" in capsys.readouterr().out  # a policy and itself


def test_the_command_takes_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 800, 2))
    columns = {"observations": before, "next_observations": after, "terminated": np.zeros(800)}
    np.savez(tmp_path / "walk.npz", rewards=rng.normal(1.0, 0.1, 800), **columns)
    Evaluate(data=tmp_path / "walk.npz", gamma=0.9).run()
    printed = capsys.readouterr().out
    low, high = (float(x) for x in re.findall(r"interval ([\d.]+) to ([\d.]+)\)", printed)[0])
    assert low < 10 < high  # everywhere
    assert high - low < 1
    np.savez(tmp_path / "wrong.npz", **columns)
    for name, match in (("wrong.npz", "--data must have observations, rewards"), ("none.npz", "numpy.savez")):
        with pytest.raises(ValueError, match=match):
            Evaluate(data=tmp_path / name).run()


def test_the_command_says_what_is_wrong(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str, **settings: Any) -> None:
        with pytest.raises(ValueError, match=match):
            Evaluate(out=tmp_path, **settings).run()

    refused("did you mean CartPole-v1", env="CartPol-v1", policy=model)
    refused("--import", env="Nowhere/Nothing-v7", policy=model)
    refused("needs a policy", env="CartPole-v1")
    refused("needs the environment", policy=model)
    refused("--against needs the environment", policy=model, against=model)
    refused("needs a policy", env="CartPole-v1", against=model)
    refused("missing.zip, which is not there", env="CartPole-v1", policy=tmp_path / "missing.zip")
    refused(
        "algorithm must be one of A2C.*did you mean PPO", env="CartPole-v1", policy=model, algorithm="PPP"
    )
    refused("can run code.*add --trust", env="CartPole-v1", policy=model, algorithm="PPO")
    refused("does not say by which algorithm: add --algorithm", env="CartPole-v1", policy=model, trust=True)
    wrong: dict[str, Any] = {"env": "CartPole-v1", "policy": model, "algorithm": "SAC", "trust": True}
    refused("could not be loaded as a model of SAC", **wrong)
    refused("--import must name a module", env="CartPole-v1", policy=model, import_="not_a_module_of_ours")
    refused("--critics must be one of", critics=("kofa",))
    refused("--samples must be a whole number, at least 160", samples=10)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    refused(
        r"--policy needs Stable-Baselines3 .*pip install 'kova-rl\[sb3\]'", env="CartPole-v1", policy=model
    )


OWN = {
    **dict.fromkeys(("KovaA2C", "KovaPPO", "KovaTRPO", "ACKTR", "KovaDQN"), "CartPole-v1"),
    **dict.fromkeys(("KovaDDPG", "KovaSAC", "KovaTD3"), "Pendulum-v1"),
}


@pytest.mark.parametrize("name", OWN)
def test_what_kova_saved_is_loaded_by_either_name_or_none(name: str, tmp_path: Path) -> None:
    saved: Any = getattr(sb3, name)("MlpPolicy", OWN[name], policy_kwargs={"net_arch": [8]}, seed=0)
    saved.save(tmp_path / "model")
    plain = name.removeprefix("Kova")
    observation = saved.observation_space.sample()
    for algorithm in (None, name, plain, plain.lower()):
        found = sb3_policy.load(tmp_path / "model.zip", algorithm)
        assert type(found.model) is type(saved)
        np.testing.assert_array_equal(
            found.predict(observation)[0], saved.predict(observation, deterministic=True)[0]
        )
    with pytest.raises(ValueError, match=f"holds a model of {name}, not of TQC"):
        sb3_policy.load(tmp_path / "model.zip", "TQC")


@pytest.mark.parametrize("name", sb3_policy.HOSTS)
def test_what_the_host_saved_is_loaded_if_it_is_trusted(name: str, tmp_path: Path) -> None:
    cls: Any = getattr(importlib.import_module(sb3_policy.HOSTS[name]), name)
    env = "CartPole-v1" if name in ("A2C", "ARS", "DQN", "PPO", "QRDQN", "TRPO") else "Pendulum-v1"
    saved = cls("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    saved.save(tmp_path / "model")
    with pytest.raises(ValueError, match="add --trust"):
        sb3_policy.load(tmp_path / "model.zip", name)
    found = sb3_policy.load(tmp_path / "model", f"Kova{name}", trust=True)
    observation = saved.observation_space.sample()
    np.testing.assert_array_equal(
        found.predict(observation)[0], saved.predict(observation, deterministic=True)[0]
    )


def test_the_policy_of_a_run_sees_what_it_saw_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ppo(steps=256)
    train(config, tmp_path)
    path = Store(tmp_path, config.name).path / "model.zip"
    found = sb3_policy.load(path)
    venv: Any = sb3.KovaPPO.load(path, env=gymnasium.make("CartPole-v1")).get_env()
    observation = np.array([1.0, -2.0, 0.1, 3.0], np.float32)
    np.testing.assert_array_equal(found._seen(observation), venv.normalize_obs(observation))
    assert not np.array_equal(found._seen(observation), observation)
    small = ["--samples", "160", "--seeds", "1", "--critics", "kova", "--gamma", "0.9"]
    cli.main(
        ["evaluate", "--env", "CartPole-v1", "--policy", str(path), *small, "--out", str(tmp_path / "e")]
    )
    assert "your policy" in capsys.readouterr().out


def test_a_model_whose_schedule_was_a_lambda_can_be_evaluated(tmp_path: Path) -> None:
    model = sb3.KovaPPO("MlpPolicy", "CartPole-v1", learning_rate=lambda left: 1e-3 * left)
    with pytest.warns(UserWarning, match="load will ask"):
        model.save(tmp_path / "model")
    assert sb3_policy.load(tmp_path / "model").identity == sb3_policy.SavedPolicy(model, {}).identity


def test_kova_evaluate_explains_itself_and_refuses_politely(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--import" in shown
    assert all(name in shown for name in CRITICS)
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--env", "CartPol-v1", "--policy", "x.zip"])
    assert stop.value.code == 2
    assert "did you mean CartPole-v1" in capsys.readouterr().err


def test_other_defaults_are_other_runs() -> None:
    assert describe("kova") != describe("kova-paper")
    with pytest.raises(ValueError, match="policy must be a function"):
        environment.acting(3, deterministic=True)
