"""The command ``kova pack``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kova_rl.lab import pack

__all__ = ["Pack"]


@dataclass
class Pack:
    """Put the finished runs of a folder into one small file, DIR/runs.tar.xz, in place of their folders.

    Settings, logs, arrays and summaries are kept; models and TensorBoard's files are deleted. Every command
    that reads runs reads the file as it would the folders.
    """

    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that runs were written to."""

    def run(self) -> None:
        """Pack."""
        path = pack.pack(self.directory)
        print(f"{len(pack.found(path))} runs, {path.stat().st_size:,} bytes: {path}")
