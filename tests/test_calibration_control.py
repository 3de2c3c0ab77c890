"""The reliability of a trained critic's error bars, from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kova_rl.lab import calibration
from kova_rl.lab.evaluation import rollouts
from kova_rl.lab.evaluation.environment import acting, make_env
from kova_rl.sb3 import KovaPPO


@pytest.mark.slow
def test_a_trained_critic_is_examined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ENVIRONMENTS", ("CartPole-v1",))
    calibration.reproduce("smoke", 1, 2_048, tmp_path, Console(quiet=True))
    table = (tmp_path / "calibration.md").read_text()
    for bars in ("solved", "filter"):
        assert f"| {bars} |" in table
    assert (tmp_path / "calibration.png").stat().st_size > 0
    (run,) = json.loads((tmp_path / "calibration.json").read_text())
    assert calibration.held(calibration.scores(run, "solved"), 0.95) >= 0.8
    assert len(run["truth"]) == len(run["mean"]) == len(run["solved"]) == 40
    monkeypatch.setattr(calibration, "examine", None)  # nothing is trained again
    calibration.reproduce("smoke", 1, 2_048, tmp_path, Console(quiet=True))
    assert (tmp_path / "calibration.md").read_text() == table
    with pytest.raises(TypeError):
        calibration.reproduce("smoke", 1, 4_096, tmp_path, Console(quiet=True))


def test_an_unknown_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--scale must be one of 'smoke', 'desk', got 'paper'"):
        calibration.reproduce("paper", None, None, tmp_path, Console(quiet=True))


def test_rollouts_at_once_find_what_rollouts_one_by_one_do() -> None:
    model = KovaPPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    together = calibration.rolled(model, "CartPole-v1", seed=0, states=3, rollouts=40)
    env, act = make_env("CartPole-v1"), acting(model, deterministic=False)
    apart = rollouts.from_copies(env, act, model.gamma, seed=0, states=3, rollouts=40)
    np.testing.assert_allclose(together.states[0], apart.states[0])
    doubt = np.hypot(together.doubt[0], apart.doubt[0])
    assert together.values[0] == pytest.approx(apart.values[0], abs=4 * doubt)
    assert doubt < 0.2 * apart.values[0]
