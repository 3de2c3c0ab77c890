"""The reliability of a trained critic's error bars, from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from kova_rl.lab import calibration


@pytest.mark.slow
def test_a_trained_critic_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ENVIRONMENTS", ("CartPole-v1",))
    calibration.reproduce("smoke", 1, 2_048, tmp_path, Console(quiet=True))
    table = (tmp_path / "calibration.md").read_text()
    assert "| CartPole-v1 | solved |" in table
    assert "| CartPole-v1 | filter |" in table
    assert (tmp_path / "calibration.png").stat().st_size > 0
    with pytest.raises(ValueError, match="--scale must be one of 'smoke', 'desk', got 'paper'"):
        calibration.reproduce("paper", None, None, tmp_path, Console(quiet=True))
