"""The commands that made the runs of a folder, for its page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from kova_rl.lab import files
from kova_rl.lab.store import explained

__all__ = ["COMMANDS", "add_command", "read_commands"]

COMMANDS = "commands.txt"
"""Beside the runs; a command a line, each once."""


def add_command(root: Path, words: Sequence[object]) -> None:
    """Note a command, whole or not at all.

    Raises:
        ValueError: The folder is full, or not ours to write in.
    """
    line, before = shlex.join(map(str, words)).replace("\n", " "), read_commands(root)
    if line in before:
        return
    try:
        files.write(root / COMMANDS, "".join(f"{each}\n" for each in (*before, line)).encode())
    except OSError as error:
        raise ValueError(explained(error, root)) from None


def read_commands(root: Path) -> list[str]:
    """Those that were noted; none if there is no such file."""
    path = root / COMMANDS
    return list(dict.fromkeys(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
