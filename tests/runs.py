"""Small training runs for the tests of the lab, and what must be the same of two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kova_rl.lab.log import read_log
from kova_rl.lab.store import Store, read_json
from kova_rl.lab.training.config import RunConfig

PPO: dict[str, Any] = {
    "algorithm": "ppo",
    "environment": "CartPole-v1",
    "critic": "kova",
    "steps": 512,
    "segments": 4,
    "network": [8],
    "host": {"n_steps": 64, "batch_size": 32, "n_epochs": 2},
}


TIMES = ("seconds", "processor")


def ppo(**changes: Any) -> RunConfig:
    """Half a second of PPO with a filtered critic."""
    return RunConfig.of({**PPO, **changes})


def stored(root: Path) -> list[RunConfig]:
    """The runs that have a directory in this folder."""
    found = (read_json(path / "config.json") for path in sorted(root.iterdir()) if path.is_dir())
    return [_config(values, root) for values in found if values is not None]


def _config(values: dict[str, Any], root: Path) -> RunConfig:
    assert values.pop("kind") == "training"
    return RunConfig.of(values, str(root))


def numbers(root: Path, config: RunConfig) -> list[dict[str, Any]]:
    """The log without its times."""
    records = read_log(Store(root, config.name).log_path)
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def outcome(root: Path, config: RunConfig) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All that must be the same of an interrupted and an undisturbed run."""
    summary = read_json(Store(root, config.name).path / "summary.json")
    assert summary is not None, f"{config.name} is not finished"
    return numbers(root, config), {
        key: value for key, value in summary.items() if key not in (*TIMES, "log_bytes")
    }
