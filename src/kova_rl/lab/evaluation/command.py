"""The command ``kova evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab import files


@dataclass
class Evaluate:
    """Evaluate a fixed policy: value error and coverage of critics, where the true values are known.

    Without --env, on small tasks that are solved exactly. With --env and --policy, on your own, where
    the truth is the mean of Monte-Carlo rollouts.
    """

    task: Literal["chain", "grid", "boyan", "all"] = "chain"
    """A random walk, a grid with slips, or Boyan's chain."""
    condition: Literal["on-policy", "off-policy", "deterministic", "switch", "all"] = "on-policy"
    """Who walks: the policy, another one, one without chance, or one whose truth changes half-way."""
    critics: tuple[str, ...] = ()
    """Which critics; all that are quick if none is named."""
    samples: int = 10_000
    """Transitions that each critic sees; networks make an update every 8."""
    seeds: int = 3
    """How many seeds are averaged."""
    out: Path = Path("evaluate")
    """Folder for the data, the tables and the pictures. Runs that are in it already are not made again."""
    workers: int | None = None
    """Processes; one a core if not given."""

    def run(self) -> None:
        """Run what is missing, print the tables, and save all."""
        from kova_rl.lab.evaluation.critics import CRITICS, DEFAULT
        from kova_rl.lab.evaluation.protocol import STEP
        from kova_rl.lab.evaluation.runs import Study, gather
        from kova_rl.lab.evaluation.table import markdown, rich_table
        from kova_rl.lab.evaluation.tasks import CONDITIONS, TASKS

        check_whole("--seeds", self.seeds, least=1)
        check_whole("--samples", self.samples, least=20 * STEP)
        for name in self.critics:
            check_choice("--critics", name, tuple(CRITICS))
        console = Console()
        tasks = tuple(TASKS) if self.task == "all" else (self.task,)
        conditions = CONDITIONS if self.condition == "all" else (self.condition,)
        critics = self.critics or DEFAULT
        study = Study(tasks, conditions, critics, self.seeds, self.samples, self.out / "runs", self.workers)
        panels = gather(study, console)
        for panel in panels:
            console.print(rich_table(panel))
        files.write(self.out / "tables.md", markdown(panels).encode())
        console.print(f"Tables: {self.out / 'tables.md'}; data, one file a run: {self.out / 'runs'}")
        try:
            from kova_rl.lab.evaluation.figure import draw
        except ImportError:
            console.print("No picture without matplotlib: pip install 'kova-rl[plots]'")
            return
        pictures = [self.out / "evaluation.png", self.out / "evaluation.pdf"]
        draw(pictures, panels)
        console.print("Pictures: " + ", ".join(map(str, pictures)))
