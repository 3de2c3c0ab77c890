"""The reliability of a trained critic's error bars, from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kova_rl.lab.evaluation import rollouts
from kova_rl.lab.evaluation.environment import acting, make_env
from kova_rl.lab.figures import FIGURES, calibration, redraw, reproduce
from kova_rl.lab.pack import Folder, one
from kova_rl.lab.run import make
from kova_rl.sb3 import KovaPPO

QUIET = Console(quiet=True)


@pytest.mark.slow
def test_a_trained_critic_is_examined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FIGURES, "calibration", replace(calibration.CALIBRATION, environments=("CartPole-v1",))
    )

    def again() -> str:
        assert reproduce("calibration", "smoke", steps=2_048, jobs=1, out=tmp_path, console=QUIET)
        return (tmp_path / "calibration.md").read_text()

    table = again()
    for bars in ("solved", "filter"):
        assert f"| {bars} |" in table
    assert (tmp_path / "calibration.png").stat().st_size > 0
    run = one(tmp_path / "ppo_cartpole-v1_kova_seed0").arrays()
    assert calibration.held(calibration.scores(run, "solved"), 0.95) >= 0.8
    assert len(run["truth"]) == len(run["mean"]) == len(run["solved"]) == 40
    (data,) = tmp_path.glob("*/data.npz")
    before = data.stat().st_mtime_ns
    assert again() == table
    assert data.stat().st_mtime_ns == before, "nothing is trained again"
    redraw("calibration", tmp_path, QUIET)


class Stopped(Exception):
    """In place of Ctrl-C."""


def test_a_run_that_was_stopped_is_examined_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "STATES", 2)
    monkeypatch.setattr(calibration, "ROLLOUTS", 2)
    small = {"n_steps": 64, "batch_size": 32, "n_epochs": 1}
    run = calibration.Examined("ppo", "CartPole-v1", steps=192, segments=3, host=small)

    def stop(record: dict[str, float]) -> None:
        if record["step"] > 128:
            raise Stopped

    with pytest.raises(Stopped):
        make(run, tmp_path / "torn", stop)
    found = []
    for folder in ("torn", "whole"):
        make(run, tmp_path / folder)
        found.append(Folder(tmp_path / folder / run.name).arrays())
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert set(found[0]) == {"truth", "doubt", "mean", "solved", "filter"}


def test_a_run_that_is_examined_is_another_than_one_that_is_not() -> None:
    (run, *_) = calibration.CALIBRATION.runs("smoke")
    assert run.flat()["examined"] == "40 states, 16 rollouts"
    with pytest.raises(ValueError, match="steps must be"):
        calibration.CALIBRATION.runs("smoke", steps=0)


def test_rollouts_at_once_find_what_rollouts_one_by_one_do() -> None:
    model = KovaPPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    together = calibration.rolled(model, "CartPole-v1", seed=0, states=3, rollouts=40)
    env, act = make_env("CartPole-v1"), acting(model, deterministic=False)
    apart = rollouts.from_copies(env, act, model.gamma, seed=0, states=3, rollouts=40)
    np.testing.assert_allclose(together.states[0], apart.states[0])
    doubt = np.hypot(together.doubt[0], apart.doubt[0])
    assert together.values[0] == pytest.approx(apart.values[0], abs=4 * doubt)
    assert doubt < 0.2 * apart.values[0]
