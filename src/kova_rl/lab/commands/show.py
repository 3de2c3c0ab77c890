"""The command ``kova show``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import NoPath, Whole

__all__ = ["Show"]


@dataclass
class Show:
    """Draw what a critic believes, with its error bars.

    A run in a maze: the value of each cell, its standard deviation and the greedy path, early, midway and
    late, and as a GIF. The chain: a random walk of 30 states, learned on the spot, beside its true values.
    """

    what: tyro.conf.Positional[Literal["maze4", "maze6", "maze10", "chain"]]
    """What is drawn."""
    run_folder: Annotated[tyro.conf.Positional[NoPath], tyro.conf.arg(name="RUN", metavar="[RUN]")] = None
    """The folder of a run that kept its beliefs: seed 0 of `kova reproduce fig2`, or of `kova demo`. The hash
    at the end of its name may be left out."""
    out: Path = Path("pictures")
    """Folder for the pictures."""
    seeds: Whole = 3
    """Of the chain: how many seeds are averaged."""
    updates: Whole = 3_000
    """Of the chain: updates of each critic, at least 30; half-way the rewards turn round."""

    def run(self) -> None:
        """Draw it."""
        if self.what == "chain":
            if self.run_folder is not None:
                raise ValueError("kova show chain learns on the spot and takes no RUN")
            from kova_rl.lab.figures.chain import chain

            check_whole("--seeds", self.seeds, least=1)
            check_whole("--updates", self.updates, least=30)
            chain(self.out, self.seeds, self.updates, Console())
            return
        if self.run_folder is None:
            raise ValueError(f"which run? kova show {self.what} RUN, a folder that 'kova reproduce' wrote")
        try:
            from kova_rl.lab.figures.beliefs import show
        except ImportError:
            raise ValueError("pictures need matplotlib: pip install 'kova-rl[plots]'") from None
        still, moving = show(self.what, self.run_folder, self.out)
        print(f"Picture: {still}, moving: {moving}")
