"""One training run: its settings, its directory, and that a resumed run is the undisturbed one."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kova_rl.algorithms import ALGORITHMS
from kova_rl.lab.log import Log, TornLog, read_log
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Busy, Checkpoint, Store
from kova_rl.lab.sweep import presets
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.run import boundaries, open_session
from tests.runs import numbers, outcome, ppo, stored

pytest.importorskip("stable_baselines3")
from kova_rl.sb3.files import archive

SMALL = {"learning_starts": 40, "batch_size": 16, "buffer_size": 150}
CASES: dict[str, RunConfig] = {
    "ppo": ppo(),
    "ppo, adam, decaying": ppo(critic="adam", learning_rate=1e-3, decay=True),
    "ppo, memoryless, 2 environments": ppo(critic="memoryless", n_envs=2, normalise_rewards=False),
    "trpo": ppo(algorithm="trpo", host={"n_steps": 64, "batch_size": 32}),
    "a2c": ppo(algorithm="a2c", steps=200, host={}),
    "acktr": ppo(algorithm="acktr", critic="kfac", host={"n_steps": 32}),
    "dqn": ppo(algorithm="dqn", steps=300, host=SMALL),
    "sac": ppo(algorithm="sac", environment="Pendulum-v1", steps=260, host=SMALL),
    "sac, memoryless": ppo(
        algorithm="sac", environment="Pendulum-v1", critic="memoryless", steps=260, host=SMALL
    ),
    "td3": ppo(algorithm="td3", environment="Pendulum-v1", steps=260, host=SMALL),
    "ddpg": ppo(
        algorithm="ddpg",
        environment="Pendulum-v1",
        steps=260,
        environment_options={"g": 9.0},
        host=SMALL,
    ),
}


class Killed(Exception):
    """Stands for the end of the process."""


def killed_after(records: int) -> Any:
    left = [records]

    def tell(record: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Killed

    return tell


@pytest.mark.parametrize("config", CASES.values(), ids=list(CASES))
def test_a_resumed_run_is_the_undisturbed_run(config: RunConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "whole")
    expected = outcome(tmp_path / "whole", config)
    many = len(expected[0])
    for records in (max(1, many // 3), max(1, many // 2)):
        with pytest.raises(Killed):
            train(config, tmp_path / "torn", killed_after(records))
    summary = train(config, tmp_path / "torn")
    assert outcome(tmp_path / "torn", config) == expected
    assert summary["steps"] >= config.steps
    steps = [record["step"] for record in expected[0]]
    assert steps == sorted(set(steps))
    assert not (Store(tmp_path / "torn", config.name).path / "checkpoints").exists()


@pytest.mark.parametrize("config", CASES.values(), ids=list(CASES))
def test_a_checkpoint_forgets_nothing(config: RunConfig) -> None:
    """A model that goes on in memory, with the same seeds and new environments, learns the same."""
    first = open_session(config)
    end, later = boundaries(config, first.rollout)[:2]
    first.learn(end, config.steps, 10**9, lambda record: None)
    state = first.state()
    told: list[list[dict[str, Any]]] = [[], []]
    restored = open_session(config, 1, state)
    assert same(loaded(restored.state()), loaded(state))
    restored.learn(later, config.steps, 1, told[0].append)
    fresh = open_session(config, 1, state)  # its environments and seeds, the first model's memory
    first.env, kept = fresh.env, first.env
    if first.model.get_vec_normalize_env() is not None:
        first.env.obs_rms, first.env.ret_rms = kept.obs_rms, kept.ret_rms  # type: ignore[attr-defined]
    first._episodes += sum(len(done) for done in kept.env_method("get_episode_rewards"))
    first.model.set_env(first.env, force_reset=True)
    first.model.action_space.seed(seed_after(config))
    first.learn(later, config.steps, 1, told[1].append)
    assert restored.fingerprint() == first.fingerprint()
    one, other = (loaded(session.state()) for session in (restored, first))
    assert same({**one, "extra": 0}, {**other, "extra": 0})
    for key in ("step", "return", "episodes"):
        assert [record[key] for record in told[0]] == [record[key] for record in told[1]]
    for session in (first, restored):
        session.close()
    kept.close()


def loaded(state: bytes) -> Any:
    parts, arrays, _ = archive.read(io.BytesIO(state), "state")
    tree = {name: archive.decoded(part, arrays) for name, part in parts.items()}
    moments = tree["normalisation"]
    tree["normalisation"] = {name: {**vars(found)} for name, found in moments.items()}
    return tree


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def seed_after(config: RunConfig) -> int:
    from stable_baselines3.common.utils import set_random_seed

    from kova_rl.lab.training.run import seed_of

    seed = seed_of(config.seed, 1)
    set_random_seed(seed)
    return seed


def test_a_run_leaves_what_the_report_reads(tmp_path: Path) -> None:
    config = ppo(preset="ppo")
    train(config, tmp_path)
    folder = tmp_path / config.name
    found = json.loads((folder / "config.json").read_text())
    assert all(not isinstance(value, dict) for value in found.values())
    assert (found["algorithm"], found["preset"], found["host.n_steps"]) == ("ppo", "ppo", 64)
    assert (found["covariance"], found["evolution"], found["eta"]) == ("kronecker", "leakage", 0.01)
    assert stored(tmp_path) == [config.complete()]
    assert stored(tmp_path)[0].name == config.name
    assert {"torch", "stable-baselines3", "kova-rl", "git"} <= set(
        json.loads((folder / "versions.json").read_text())
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "done"
    last = read_log(folder / "log.jsonl")[-1]
    assert (last["step"], last["return"]) == (summary["steps"], summary["final_return"])
    assert last["seconds"] == pytest.approx(summary["seconds"], abs=0.1)
    assert 0.2 * summary["processor"] < last["processor"] <= summary["processor"]
    assert {"train/value_loss", "kova/nis", "episodes"} <= set(last)
    assert 10 < last["return"] < 100, "unnormalised, and a random pole falls after 20 steps"
    from kova_rl.sb3 import KovaPPO

    assert KovaPPO.load(folder / "model.zip").num_timesteps == 512


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = ppo(steps=128)
    train(config, tmp_path)
    assert train(config, tmp_path, killed_after(1))["status"] == "done"
    train(ppo(steps=128, seed=1), tmp_path)
    expected = outcome(tmp_path, config)
    assert expected != outcome(tmp_path, ppo(steps=128, seed=1))
    log = Store(tmp_path, config.name).log_path
    log.write_bytes(log.read_bytes()[:-20])  # a finished run whose log was damaged later
    train(config, tmp_path)
    assert outcome(tmp_path, config) == expected


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    store = Store(tmp_path, ppo().name)
    with store.locked(), pytest.raises(Busy, match="another process works on"), store.locked(patience=0.1):
        pass
    with store.locked(patience=0):
        assert (store.path / "lock").exists()
    assert not (store.path / "lock").exists()


def test_a_lock_that_was_removed_is_not_held(tmp_path: Path) -> None:
    store = Store(tmp_path, ppo().name)
    with store.locked():
        (store.path / "lock").unlink()
        with store.locked(patience=0), pytest.raises(Busy), store.locked(patience=0):
            pass


@pytest.mark.parametrize("damage", ["newest checkpoint", "both checkpoints", "log", "log and newest"])
def test_what_is_damaged_is_made_again(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ppo()
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "torn", killed_after(7))
    store = Store(tmp_path / "torn", config.name)
    found = sorted((store.path / "checkpoints").iterdir())
    assert len(found) == 2
    for path in {"newest checkpoint": found[1:], "both checkpoints": found, "log and newest": found[1:]}.get(
        damage, []
    ):
        path.write_bytes(path.read_bytes()[:-100])
    if "log" in damage:
        size = store.log_path.stat().st_size
        store.log_path.write_bytes(store.log_path.read_bytes()[: size // 2])
    train(config, tmp_path / "torn")
    assert outcome(tmp_path / "torn", config) == outcome(tmp_path / "whole", config)
    message = capsys.readouterr().err
    assert ("is damaged" in message) == (damage != "log")
    assert ("is torn" in message) == ("log" in damage)


def test_a_torn_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path, []) as log:
        log.write({"step": 1})
        log.write({"step": 2})
    path.write_bytes(path.read_bytes() + b'{"step": 3')
    with pytest.warns(TornLog, match="line 3 is torn"):
        assert [record["step"] for record in read_log(path)] == [1, 2]
    assert read_log(tmp_path / "nothing") == []
    with pytest.warns(TornLog):
        kept = read_log(path)
    with Log(path, kept[:1]) as log:
        log.write({"step": 5})
    assert [record["step"] for record in read_log(path)] == [1, 5]


def test_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, ppo().name)
    for number in range(4):
        store.save(Checkpoint(number, bytes([number])))
    (store.path / "checkpoints" / ".half-written").write_bytes(b"")
    store.save(Checkpoint(4, b"4"))
    assert [(one.segment, one.content) for one in store.checkpoints()] == [(4, b"4"), (3, b"\x03")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "got 'stepz'; did you mean steps?"),
        ({"algorithm": "pppo"}, "got 'pppo'; did you mean ppo?"),
        ({"critic": "kovva"}, "did you mean kova?"),
        ({"critic": "adam", "eta": 0.1}, "the critic adam has no eta, which kova and memoryless have"),
        ({"critic": "adam", "lr": 0.1}, "has no lr (Adam's is learning_rate)"),
        ({"critic": "kfac"}, "belongs to acktr"),
        ({"critic": "memoryless", "evolution": "leakage"}, "has the evolution memoryless"),
        ({"eta": 1.5}, "eta must be a number in [0, 1), got 1.5"),
        ({"lr": 2}, "lr must be a number in (0, 1], got 2.0"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"steps": 0}, "steps must be a whole number, at least 1, got 0"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"decay": 1}, "decay must be true or false, got 1"),
        ({"network": [64, "wide"]}, "network must be a whole number, got 'wide'"),
        ({"observation": "maxratio"}, "did you mean max-ratio?"),
        ({"prior": "fan"}, "prior must be a number above 0 or 'fan-in'"),
        ({"evolution": "fading-memory"}, "Kronecker does not work with FadingMemory"),
        ({"covariance": "full", "rank": 3}, "rank belongs to the covariance low-rank"),
        ({"host": {"n_steps": [1]}}, "host must be a table of numbers"),
        ({"activation": "elu"}, "activation must be one of relu, tanh"),
    ],
)
def test_a_mistake_is_refused_with_the_nearest_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^here: ") as caught:
        RunConfig.of({"algorithm": "ppo", "environment": "CartPole-v1", **change}, "here")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"host": {"n_stepz": 64}}, "got 'n_stepz'; did you mean n_steps?"),
        ({"environment_options": {"wings": 2}}, "does not take environment_options"),
        ({"algorithm": "sac", "host": {}}, "sac on CartPole-v1"),
        ({"imports": ["no_such_module"]}, "imports must name modules that Python finds"),
        ({"imports": ["no_such_module.py"]}, "did you mean no_such_module?"),
        ({"imports": ["./no_such_module.py"]}, "did you mean no_such_module?"),
        ({"environment": "FrozenLake-v1"}, "set normalise_observations to False"),
        ({"observation": "max-ratio", "algorithm": "dqn", "host": {}}, "MaxRatio needs ratio"),
        ({"host": {"gamma": "abc"}}, "host: gamma must be a number, got 'abc'"),
        ({"host": {"gamma": 2}}, "host: gamma must be in [0, 1], got 2"),
        ({"host": {"n_steps": "abc"}}, "host: n_steps must be a whole number, at least 1, got 'abc'"),
        ({"host": {"use_sde": 3}}, "host: use_sde must be true or false, got 3"),
        ({"algorithm": "dqn", "host": {"buffer_size": -5}}, "buffer_size must be a whole number"),
    ],
)
def test_what_only_the_algorithm_knows_is_refused_when_it_is_built(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        train(ppo(**change), tmp_path)
    assert message in str(caught.value)


def test_the_name_follows_every_setting() -> None:
    config = ppo()
    assert config.name == RunConfig.of(config.flat()).name == config.complete().name
    assert config.name == ppo(eta=0.01, covariance="kronecker", lr=1).name, "the default, written out"
    assert config.name == ppo(prior="fan-in").name
    assert ppo(rank=8).complete().prior == "fan-in", "whatever the structure"
    assert ppo(covariance="kronecker", observation="max-ratio").complete().prior == 1.0
    changes: list[dict[str, Any]] = [{"seed": 1}, {"eta": 0.2}, {"host": {"n_steps": 128}}, {"segments": 5}]
    assert len({config.name, *(ppo(**change).name for change in changes)}) == 5


PAPER = {
    "ppo": "1.0;.01 0.1;.1 1.0;.1 1.0;.001 1.0;.01",
    "trpo": "1.0;.01 1.0;.001 0.1;.001 .01;.001 .01;.01",
    "sac": "1.0;.001 0.1;.001 1.0;.01 0.1;.1 0.1;.01",
}
TASKS = ("Swimmer-v5", "Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Walker2d-v5")


def test_the_presets_have_the_papers_tables() -> None:
    assert presets.preset_names() == ("acktr", "ppo", "sac", "trpo")
    for name, row in PAPER.items():
        for task, cell in zip(TASKS, row.split(), strict=True):
            config = presets.resolve({"preset": name, "environment": task, "critic": "memoryless"})
            lr, eta = map(float, cell.split(";"))
            assert (config.lr, config.eta, config.prior, config.evolution) == (lr, eta, 1.0, "memoryless")
            assert config.steps == (2_000_000 if task in ("Ant-v5", "Walker2d-v5") else 1_000_000)
            assert config.observation == ("batch-size" if name == "sac" else "max-ratio")
        tracked = presets.resolve({"preset": name, "environment": "Swimmer-v5"}).complete()
        assert (tracked.critic, tracked.covariance, tracked.evolution) == (
            *("kova", {"kind": "kronecker", "refresh": 8}, "leakage"),
        )
        given = {"network": tracked.network, "host": tracked.host, "preset": None}
        bare = RunConfig(name, "Swimmer-v5", **given).complete()  # type: ignore[arg-type]
        for setting in ("lr", "eta", "covariance", "rank", "evolution", "observation", "prior"):
            assert getattr(tracked.complete(), setting) == getattr(bare, setting), "the default's own"


def test_presets_build() -> None:
    for name in presets.preset_names():
        for critic in presets.load(name)["critic"]:
            config = presets.resolve({"preset": name, "environment": "Pendulum-v1", "critic": critic})
            open_session(replace(config, segments=1)).close()
    assert set(presets.preset_names()) < set(ALGORITHMS)


def test_settings_win_over_the_preset_and_typos_do_not(tmp_path: Path) -> None:
    given = {
        "preset": "ppo",
        "environment": "Hopper-v5",
        "critic": "memoryless",
        "host.n_steps": 512,
        "eta": 0.5,
    }
    config = presets.resolve(given)
    assert (config.lr, config.eta, config.host["n_steps"], config.host["batch_size"]) == (0.1, 0.5, 512, 64)
    with pytest.raises(ValueError, match="did you mean trpo"):
        presets.resolve({"preset": "tropo", "environment": "Hopper-v5"})
    own = tmp_path / "own.toml"
    text = '[run]\nalgorithm = "ppo"\n[critic.kova]\neta = 0.2\nobservaton = "adaptive"\n'
    own.write_text(text)
    with pytest.raises(ValueError, match=r"\[critic.kova\].*did you mean observation"):
        presets.resolve({"preset": str(own), "environment": "Hopper-v5"})
    own.write_text("[run\n")
    with pytest.raises(ValueError, match="is not TOML"):
        presets.resolve({"preset": f"{tmp_path}/./own.toml", "environment": "Hopper-v5"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('critic = "kova"', "critic must be a table, got 'kova'; settings go into"),
        ('environment = "CartPole-v1"', "environment must be a table"),
        ("run = 3", "run must be a table, got 3"),
        ("steps = 3", r"steps is a setting of runs, which go into \[run\]"),
        ("[critic]\nkova = 1", r"\[critic\]: kova must be a table, got 1"),
        ("[environment]\nHopper-v5 = 1", r"\[environment\]: Hopper-v5 must be a table"),
        (
            '[run]\nalgorithm="ppo"\n[critic.kova]\n[environment.Hopper-v5]\nkova = 1',
            "Hopper-v5.: kova must be",
        ),
        ('[run]\nalgorithm="sac"', "is for sac, got algorithm 'ppo'"),
    ],
)
def test_a_mistake_in_a_preset_of_ones_own(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        presets.resolve(
            {"preset": str(tmp_path / "own.toml"), "environment": "Hopper-v5", "algorithm": "ppo"}
        )


def test_a_preset_is_the_same_wherever_it_is_named_from(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.toml").write_text('[run]\nalgorithm = "ppo"\n[critic]\n')
    found = [
        presets.resolve({"preset": str(tmp_path / name / "own.toml"), "environment": "Hopper-v5"})
        for name in ("one", "two")
    ]
    assert found[0].name == found[1].name
    assert found[0].critic == "kova"


def test_the_presets_leave_eta_to_the_noise() -> None:
    found = {
        noise: presets.resolve({"preset": "ppo", "environment": "Hopper-v5", "observation": noise}).complete()
        for noise in ("max-ratio", "adaptive")
    }
    assert {noise: config.eta for noise, config in found.items()} == {"max-ratio": 0.1, "adaptive": 0.01}


def test_decay_needs_no_learning_rate() -> None:
    session = open_session(ppo(algorithm="a2c", decay=True, host={"n_steps": 8}))
    assert [session.model.lr_schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([7e-4, 3.5e-4, 0.0])
    session.close()


def test_a_run_in_which_no_episode_ends_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ppo(environment="Pendulum-v1", steps=256, segments=2)
    assert train(config, tmp_path)["final_return"] is None
    assert "no episode of Pendulum-v1 ended within a segment" in capsys.readouterr().err


def test_the_log_has_at_most_about_two_hundred_records(tmp_path: Path) -> None:
    config = ppo(algorithm="dqn", critic="adam", steps=1100, segments=3, host=SMALL)
    train(config, tmp_path)
    assert 150 <= len(numbers(tmp_path, config)) <= 203
