"""The command ``kova``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

import kova_rl
from kova_rl.filter.checks import check_whole

DESCRIPTION = """Value functions with error bars for deep reinforcement learning.

examples:
  kova demo                      learn a value function with error bars, beside Adam
  kova demo --out pictures --seeds 1
  kova --version
"""


@dataclass
class Demo:
    """Learn the value of a random walk with error bars, beside Adam: a table and a picture, in a minute."""

    out: Path = Path("demo")
    """Folder for the picture; made if it is not there."""
    seeds: int = 3
    """How many seeds are averaged."""
    updates: int = 3_000
    """Updates of each critic, at least 30. After two thirds of them the rewards turn round."""

    def run(self) -> None:
        from kova_rl.demo import run

        check_whole("--seeds", self.seeds, least=1)
        check_whole("--updates", self.updates, least=30)
        run(self.out, self.seeds, self.updates, Console())


@dataclass
class Info:
    """Print versions, for a bug report."""

    def run(self) -> None:
        print(f"kova-rl {kova_rl.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")


Command = Annotated[Demo, tyro.conf.subcommand("demo")] | Annotated[Info, tyro.conf.subcommand("info")]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["--version"], ["-V"]):
        print(f"kova {kova_rl.__version__}")
        return
    command = tyro.cli(Command, prog="kova", description=DESCRIPTION, args=arguments)
    try:
        command.run()
    except (ValueError, OSError) as error:
        print(f"kova: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
