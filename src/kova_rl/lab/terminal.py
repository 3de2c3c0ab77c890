"""What the commands say: plain sentences, and how far they are where no bar can be drawn."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

__all__ = ["NO_FIGURE", "NowAndThen", "say"]

NO_FIGURE = "No pictures without matplotlib: pip install 'kova-rl[plots]'"
EVERY = 30.0
"""Seconds between two lines."""


def say(console: Console, sentence: str) -> None:
    """Print a sentence as it is: brackets, as in ``kova-rl[plots]`` or a path, are no markup."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class NowAndThen:
    """Says how far something is where there is no terminal, which has a bar: a line every half minute.

    Args:
        console: A file or a pipe; on a terminal, or a quiet console, nothing is said.
        every: Seconds between two lines.
    """

    def __init__(self, console: Console, every: float | None = None) -> None:
        self._console = console
        self._every = EVERY if every is None else every
        self._last = time.monotonic()
        self._silent = console.is_terminal or console.is_jupyter or console.quiet

    def __call__(self, line: Callable[[], str]) -> None:
        """Print the line if it is time for one."""
        if self._silent or time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        say(self._console, line())
