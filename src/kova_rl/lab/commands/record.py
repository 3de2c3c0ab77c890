"""The command ``kova record``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import track

from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import NoPath, Whole
from kova_rl.lab.imports import require_sb3
from kova_rl.lab.names import check_name
from kova_rl.lab.streams.store import StreamMeta, write

__all__ = ["Record"]


@dataclass
class Record:
    """Record the rollouts of a PPO run, for kova stream to compare critics on.

    examples:
      kova record Hopper-v5 --out hopper.npz
      kova record Hopper-v5 --critic kova --out led-by-kova.npz
      kova stream hopper.npz
    """

    environment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A Gymnasium environment whose observations are vectors."""
    seed: int = 0
    """Of the run."""
    rollouts: Whole = 40
    """How many are recorded."""
    steps: Whole = 2048
    """Of each environment in a rollout."""
    envs: Whole = 1
    """Environments that run side by side."""
    critic: str = "adam"
    """Of the run that is recorded: adam, or kova, the default of KovaPPO."""
    out: NoPath = None
    """The file; ENV-seedN.npz if not given."""

    def run(self) -> None:
        require_sb3("recording")
        for name in ("rollouts", "steps", "envs"):
            check_whole(f"--{name}", getattr(self, name), least=1)
        check_name("--critic", self.critic, ("adam", "kova"))
        from kova_rl.sb3.recording import recorded

        torch.set_num_threads(1)
        meta = StreamMeta(self.environment, self.seed, self.rollouts, self.steps, self.envs, self.critic)
        out = self.out or Path(f"{self.environment}-seed{self.seed}.npz")
        found = recorded(self.environment, self.seed, self.rollouts, self.steps, self.envs, self.critic)
        console = Console()
        write(out, meta, track(found, "Recording", total=self.rollouts, console=console, transient=True))
        console.print(f"Stream: {out}, {out.stat().st_size / 1e6:.1f} MB")
