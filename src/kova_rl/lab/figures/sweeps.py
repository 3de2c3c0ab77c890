"""Figures that are sweeps: a file each and scale, ``sweep/toml/sweeps/NAME-SCALE.toml``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kova_rl.filter.checks import check_whole
from kova_rl.lab.pack import Folder
from kova_rl.lab.sweep.grid import expand
from kova_rl.lab.sweep.presets import shipped_sweep
from kova_rl.lab.terminal import say
from kova_rl.lab.training.config import RunConfig

__all__ = ["ABLATION", "CONTROL", "FIG3", "GRID", "SAC", "TIMES", "SweepFigure"]

MILLISECONDS = {
    "ppo": {"adam": 0.85, "memoryless": 0.95, "kova": 0.8},
    "trpo": {"adam": 0.65, "memoryless": 0.65, "kova": 0.6},
    "sac": {"adam": 5.4, "memoryless": 6.4, "kova": 7.1},
    "acktr": {"kfac": 0.7},
}
"""Of a step on Hopper-v5 with the paper's networks, on one quiet core: ``python -m benchmarks.sb3``."""
SEVERAL = 0.5
"""Of that a step takes with eight environments at once, about: 0.53 with PPO, 0.35 with TRPO."""
WIDE = 2.75
"""Times that, for SAC with its host's own networks and batches of 256: 2.65 with Adam, 2.9 with Kova."""


@dataclass(frozen=True)
class SweepFigure:
    """Training runs, with their page."""

    name: str
    makes: str
    alone: bool = False
    """Whether its runs are made one at a time."""

    def runs(self, scale: str, seeds: int | None = None, steps: int | None = None) -> list[RunConfig]:
        """In the order in which they are made."""
        changes: dict[str, Any] = {}
        if seeds is not None:
            check_whole("--seeds", seeds, least=1)
            changes["seed"] = list(range(seeds))
        if steps is not None:
            check_whole("--steps", steps, least=1)
            changes["steps"] = steps
        sweep = self.name if scale == "paper" else f"{self.name}-{scale}"
        return expand(shipped_sweep(sweep), sweep, changes)

    def hours(self, runs: Sequence[RunConfig]) -> float:
        """Core-hours that they take, about."""
        return sum(run.steps * _milliseconds(run) for run in runs) / 3.6e6

    def show(self, root: Path, folders: Sequence[Folder], console: Console) -> None:
        """The tables, and the page if matplotlib is there."""
        from kova_rl.lab.report import report, table

        table(root, console)
        if importlib.util.find_spec("matplotlib") is None:
            say(console, "No page without matplotlib: pip install 'kova-rl[plots]'")
            return
        say(console, f"Page: {report(root)}, figures: {root / 'figures'}/")


def _milliseconds(run: RunConfig) -> float:
    wide = WIDE if run.algorithm == "sac" and run.network is None else 1.0
    return MILLISECONDS[run.algorithm][run.critic] * (SEVERAL if run.n_envs > 1 else 1.0) * wide


FIG3 = SweepFigure("fig3", "learning curves on MuJoCo: PPO, TRPO and SAC with three critics, and ACKTR")
CONTROL = SweepFigure(
    "control", "PPO and TRPO with Kova, Adam and memoryless critics, ten seeds (not in the paper)"
)
SAC = SweepFigure("sac", "SAC with its host's own networks, Kova and Adam (not in the paper)")
ABLATION = SweepFigure("ablation", "PPO: eta by noise, with the policy's entropy and loss beside the return")
TIMES = SweepFigure("times", "running times of the critics, made one run at a time", alone=True)
GRID = SweepFigure("grid", "the grid search for PPO, and the best settings of each environment")
