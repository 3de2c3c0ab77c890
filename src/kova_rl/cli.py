"""The command ``kova``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import tyro

import kova_rl
from kova_rl.errors import KovaError
from kova_rl.lab.commands.demo import Demo
from kova_rl.lab.commands.evaluate import Evaluate
from kova_rl.lab.commands.info import Info
from kova_rl.lab.commands.pack import Pack
from kova_rl.lab.commands.record import Record
from kova_rl.lab.commands.report import Report, Table
from kova_rl.lab.commands.reproduce import Reproduce
from kova_rl.lab.commands.show import Show
from kova_rl.lab.commands.stream import Streams
from kova_rl.lab.commands.study import Study
from kova_rl.lab.commands.sweep import SweepRuns
from kova_rl.lab.commands.train import Train

DESCRIPTION = """Value functions with error bars for deep reinforcement learning.

examples:
  kova demo                                   Kova, Adam and KTD learn a maze, in a minute
  kova evaluate                               policy evaluation where the truth is known
  kova evaluate --env CartPole-v1 --policy runs/ppo_cartpole-v1_.../model.zip
  kova train ppo Swimmer-v5 --critic kova     one run, which goes on where it was stopped
  kova sweep mine.toml --jobs 4 --out runs    many runs: lists in the file multiply out
  kova report runs                            their curves and tables, as one page
  kova reproduce fig3 --scale smoke           a figure of the paper; --list has all
  kova show maze10 results/fig2/maze10_kova-eta-0.001_seed0
  kova study --scale smoke                    the study that chose Kova's default
  kova --version
"""

Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[SweepRuns, tyro.conf.subcommand("sweep")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Pack, tyro.conf.subcommand("pack")]
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
