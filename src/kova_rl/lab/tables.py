"""A table: for the terminal, and in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

__all__ = ["Sheet"]


@dataclass(frozen=True)
class Sheet:
    """Rows of cells below headings."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: Collection[int] = (0,)
    """Columns that are words, and stand on the left; the others are numbers."""
    best: Collection[tuple[int, int]] = ()
    """Cells, by row and column, that are the best of their column."""

    def rich(self) -> Table:
        """For the terminal: numbers stay on one line, words and headings give way."""
        out = Table(
            title=escape(self.title),
            title_justify="left",
            caption=escape(self.caption) or None,
            caption_style="",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        for j, heading in enumerate(self.headings):
            width = max([6, *(len(row[j]) for row in self.rows)])
            shown = escape(textwrap.fill(heading, width, break_long_words=False))
            words = j in self.words
            out.add_column(shown, justify="left" if words else "right", overflow="fold", no_wrap=not words)
        for row in self._marked("[bold]{}[/]", escape):
            out.add_row(*row)
        return out

    def markdown(self) -> str:
        """For a file."""
        rule = ["---" if j in self.words else "---:" for j in range(len(self.headings))]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *self._marked("**{}**"))]
        return "\n\n".join(filter(None, (f"**{self.title}**", self.caption, "\n".join(lines)))) + "\n"

    def _marked(self, mark: str, shown: Callable[[str], str] = str) -> list[list[str]]:
        return [
            [mark.format(shown(cell)) if (i, j) in self.best else shown(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
