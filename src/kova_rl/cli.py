"""The command ``kova``."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

import kova_rl
from kova_rl.errors import KovaError
from kova_rl.filter.checks import check_whole
from kova_rl.lab.arguments import Count, Whole
from kova_rl.lab.evaluation.command import Evaluate
from kova_rl.lab.pool import cores
from kova_rl.lab.streams.command import Streams
from kova_rl.lab.streams.record_command import Record
from kova_rl.lab.training.sweep_command import SweepRuns
from kova_rl.lab.training.train_command import Train

DESCRIPTION = """Value functions with error bars for deep reinforcement learning.

examples:
  kova demo                                   Kova, Adam and KTD learn a maze, in a minute
  kova evaluate                               policy evaluation where the truth is known
  kova evaluate --env CartPole-v1 --policy runs/ppo_cartpole-v1_.../model.zip
  kova train ppo Swimmer-v5 --critic kova     one run, which goes on where it was stopped
  kova sweep mine.toml --jobs 4 --out runs    many runs: lists in the file multiply out
  kova report runs                            their curves and tables, as one page
  kova reproduce fig3 --scale smoke           a figure of the paper; --list has all
  kova show maze10 results/fig2/data/maze10_kova-eta-0.1_seed0.npz
  kova study --scale smoke                    the study that chose Kova's default
  kova --version
"""

Scale = Literal["smoke", "desk", "paper"]


@dataclass
class Demo:
    """Kova, Adam and KTD learn the 4x4 maze: a table and pictures, in a minute."""

    out: Path = Path("demo")
    """Folder for data and pictures; made if it is not there. What is finished in it is not run again."""
    seeds: Whole = 3
    """How many seeds each critic has."""
    steps: Whole = 5_000
    """Steps in the maze, at least 100."""

    def run(self) -> None:
        from kova_rl.lab.demo import demo

        check_whole("--seeds", self.seeds, least=1)
        check_whole("--steps", self.steps, least=100)
        demo(self.out, self.seeds, self.steps, Console())


@dataclass
class Reproduce:
    """Reproduce a figure of the paper: its runs, the figure as PNG and PDF, and a table.

    On 2 cores smoke takes two to four minutes and shows that everything works; desk takes some minutes to an
    evening; paper is the original protocol. The same command again makes only what is not finished.

    fig1 and fig2 are mazes, and why asks what decides fig2 (not in the paper); fig3, ablation, times and grid
    are sweeps on MuJoCo, which also get one page, report.html.

    examples:
      kova reproduce --list
      kova reproduce fig1 --scale paper
      kova reproduce fig3 --scale desk --jobs 2
    """

    figure: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="FIGURE")] = None
    """fig1, fig2, why, fig3, ablation, times, grid or calibration."""
    scale: Annotated[str, tyro.conf.arg(metavar="{smoke,desk,paper}")] = "smoke"
    """How many runs, seeds and steps; --list has them."""
    seeds: Count = None
    """Seeds, if not those of the scale."""
    steps: Count = None
    """Steps of every run, if not those of the scale."""
    jobs: Count = None
    """Runs at once; one a core if not given, and one in all for times."""
    out: Path | None = None
    """Folder for the results; results/FIGURE if not given, and results/FIGURE-smoke for smoke."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster, as in kova sweep; not for mazes."""
    list: bool = False
    """Only list what each figure makes, and the core-hours that it needs."""

    def run(self) -> None:
        from kova_rl.lab.training import figures

        console = Console()
        if self.list:
            console.print(figures.listing())
            return
        if self.figure is None:
            raise ValueError("which figure? kova reproduce FIGURE; kova reproduce --list has them")
        if self.figure == "calibration":
            from kova_rl.lab import calibration

            calibration.reproduce(self.scale, self.seeds, self.steps, self.out, console)
            return
        if not figures.reproduce(
            self.figure,
            self.scale,
            seeds=self.seeds,
            steps=self.steps,
            jobs=self.jobs,
            out=self.out,
            on=self.on,
            console=console,
        ):
            raise SystemExit(1)


@dataclass
class Show:
    """Draw what a critic believes, with its error bars.

    A run in a maze: the value of each cell, its standard deviation and the greedy path, early, midway and
    late, and as a GIF. The chain: a random walk of 30 states, learned on the spot, beside its true values.
    """

    what: tyro.conf.Positional[Literal["maze4", "maze6", "maze10", "chain"]]
    """What is drawn."""
    run_file: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(name="RUN")] = None
    """The data file of a run that kept its beliefs: seed 0 of `kova reproduce fig2`, or of `kova demo`."""
    out: Path = Path("pictures")
    """Folder for the pictures."""
    seeds: Whole = 3
    """Of the chain: how many seeds are averaged."""
    updates: Whole = 3_000
    """Of the chain: updates of each critic, at least 30; after two thirds the rewards turn round."""

    def run(self) -> None:
        if self.what == "chain":
            if self.run_file is not None:
                raise ValueError("kova show chain learns on the spot and takes no RUN")
            from kova_rl.lab.chain import run

            check_whole("--seeds", self.seeds, least=1)
            check_whole("--updates", self.updates, least=30)
            run(self.out, self.seeds, self.updates, Console())
            return
        if self.run_file is None:
            raise ValueError(f"which run? kova show {self.what} RUN, a file that 'kova reproduce' wrote")
        try:
            from kova_rl.lab.show import show
        except ImportError:
            raise ValueError("pictures need matplotlib: pip install 'kova-rl[plots]'") from None

        still, moving = show(self.what, self.run_file, self.out)
        print(f"Picture: {still}, moving: {moving}")


@dataclass
class Study:
    """The study that chose Kova's default: a factorial on two mazes and on policy evaluation.

    Prints the settings in their order, with bootstrap intervals, and writes the table and the data.
    """

    scale: Scale = "smoke"
    """smoke: 500 steps, 1 seed; desk: 5,000 steps, up to 2 seeds; paper: up to 4 seeds, an hour or two."""
    seeds: Count = None
    """Seeds of the better settings, if not those of the scale."""
    out: Path = Path("results/study")
    """Folder for the results."""

    def run(self) -> None:
        from kova_rl.lab.study import study

        study(self.scale, self.seeds, self.out, Console())


@dataclass
class Report:
    """Make one page of the runs in a folder: DIR/report.html, and its figures as PNG and PDF."""

    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that kova train or kova sweep wrote."""

    def run(self) -> None:
        try:
            from kova_rl.lab.report import report
        except ImportError:
            raise ValueError("the page needs matplotlib: pip install 'kova-rl[plots]'") from None
        print(f"Page: {report(self.directory)}")


@dataclass
class Table:
    """Print what the runs in a folder have reached, with intervals, and what they took."""

    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that kova train or kova sweep wrote."""

    def run(self) -> None:
        from kova_rl.lab.report import table

        table(self.directory, Console())


@dataclass
class Info:
    """Print versions and the system, for a bug report."""

    def run(self) -> None:
        from kova_rl.lab.training.versions import versions

        found = versions() | {"torch": torch.__version__, "system": platform.platform(), "cores": cores()}
        for name, value in found.items():
            print(f"{name} {'not installed' if value is None else value}")


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[SweepRuns, tyro.conf.subcommand("sweep")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Record, tyro.conf.subcommand("record")]
    | Annotated[Streams, tyro.conf.subcommand("stream")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Study, tyro.conf.subcommand("study")]
    | Annotated[Info, tyro.conf.subcommand("info")]
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # who reads has read enough, as of kova --help | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(141) from None


def _run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"kova {kova_rl.__version__}")
        return
    command = tyro.cli(Command, prog="kova", description=DESCRIPTION, args=arguments)
    try:
        command.run()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, KovaError) as error:
        print(f"kova: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
