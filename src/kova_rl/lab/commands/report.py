"""The commands ``kova report`` and ``kova table``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from kova_rl.lab.arguments import NoPath

__all__ = ["Report", "Table"]

Runs = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]


@dataclass
class Report:
    """Make one page of the runs in a folder: DIR/report.html, and its figures as PNG and PDF."""

    directory: Runs
    """The folder that runs were written to, or a packed file of runs."""
    out: NoPath = None
    """Folder for the page; DIR if not given."""

    def run(self) -> None:
        """Make it."""
        try:
            from kova_rl.lab.report import report
        except ImportError:
            raise ValueError("the page needs matplotlib: pip install 'kova-rl[plots]'") from None
        print(f"Page: {report(self.directory, self.out)}")


@dataclass
class Table:
    """Print what the runs in a folder have reached, with intervals, and what they took."""

    directory: Runs
    """The folder that runs were written to, or a packed file of runs."""

    def run(self) -> None:
        """Print it."""
        from kova_rl.lab.report import table

        table(self.directory, Console())
