"""Pieces of the page: tables, legends, figures. Everything that comes from runs is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from kova_rl.lab.report.groups import family

__all__ = ["Cell", "number", "rows", "text"]

Cell = tuple[str, str, str]
"""What is shown, as HTML; what is sorted by; and the class."""


def text(value: object, kind: str = "") -> Cell:
    """A cell of words."""
    return escape(str(value)), escape(str(value)), kind


def number(value: float | None, form: str = ",.1f") -> Cell:
    """A cell of a number, empty if there is none.

    Example:
        >>> number(1234.56), number(None)
        (('1,234.6', '1234.56', 'number'), ('', '', 'number'))
    """
    if value is None or not math.isfinite(value):
        return "", "", "number"
    return f"{value:{form}}".replace("-", "\N{MINUS SIGN}"), f"{value:.6g}", "number"


def dotted(label: str, colour: str) -> Cell:
    """A label beside its colour."""
    return (
        f'<span class="dot" style="background:{colour}"></span>{escape(label)}',
        escape(label),
        "wide" if len(label) > 40 else "",
    )


def variable(critic: str, index: int = 0) -> str:
    """The page's colour of a critic, and of each of its settings in turn.

    Example:
        >>> variable("kova"), variable("kova", 1), variable("mine", 2)
        ('var(--kova)', 'var(--kova-dark)', 'var(--other-light)')
    """
    return f"var(--{family(critic)}{SHADES[index % len(SHADES)]})"


HINT = '<span class="soft hint" hidden>more columns: scroll the table sideways \N{RIGHTWARDS ARROW}</span>'


def rows(name: str, heads: Sequence[str], cells: Iterable[Sequence[Cell]], what: str) -> str:
    """A table that sorts, under a field that filters it."""
    found = list(cells)
    kinds = [cell[2] if cell[2] == "number" else "" for cell in found[0]] if found else [""] * len(heads)
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(h)}</button></th>'
        for h, kind in zip(heads, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(f'<td class="{k}" data-value="{v}">{shown}</td>' for shown, v, k in row) + "</tr>"
        for row in found
    )
    return f"""<div class="tools" data-for="{name}"><label for="{name}-filter">Filter</label>
<input type="search" id="{name}-filter" placeholder="words in any column" autocomplete="off">
<span class="soft"><output for="{name}-filter" aria-live="polite">{len(found)}</output>
{escape(what)}</span>{HINT}</div>
<div class="scroll" role="region" aria-label="{escape(what)}" tabindex="0"><table class="rows" id="{name}">
<thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div>"""


MARKS = {
    "o": "M17.5 1a4 4 0 1 1-.01 0z",
    "s": "M13.5 1h8v8h-8z",
    "^": "M17.5 1l4.5 8h-9z",
    "D": "M17.5 0l5 5-5 5-5-5z",
}
"""Paths of matplotlib's markers, in a box of 35 x 10."""
HOLLOW = ' fill="none"'
SHADES = ("", "-dark", "-light")
"""Ends of the names of a critic's colours in the style sheet."""


def legend(entries: Iterable[tuple[str, str, str, str]]) -> str:
    """Labels, each with its colour, the dashes of its line if it has one, and its marker if it has one."""
    items = []
    for label, colour, dashes, marker in entries:
        line = (
            f'<path d="M0 5H35" fill="none" stroke-width="3" stroke-dasharray="{dashes}"/>' if dashes else ""
        )
        mark = f'<path d="{MARKS[marker[0]]}"{HOLLOW if "hollow" in marker else ""}/>' if marker else ""
        drawn = f'<g style="stroke:{colour};fill:{colour}">{line}{mark}</g>'
        items.append(f'<li><svg viewBox="0 0 35 10" aria-hidden="true">{drawn}</svg>{escape(label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(
    name: str, title: str, legend: str, panels: Sequence[str], across: int, caption: str, command: str
) -> str:
    """Panels, so many across where the page is wide enough, and what made them."""
    kind = ' class="single"' if across == 1 else ""
    return f"""<figure id="{escape(name)}"{kind} style="--across:{across}"><h3>{escape(title)}</h3>{legend}
<div class="panels">{"".join(panels)}</div>
<figcaption>{escape(caption)} Made by <code>{escape(command)}</code>:
<a href="figures/{escape(name)}.png">PNG</a>, <a href="figures/{escape(name)}.pdf">PDF</a>.
</figcaption></figure>"""


def flow(figures: Iterable[str]) -> str:
    """Figures below each other; those of a single panel that follow each other, side by side."""
    single = groupby(figures, lambda drawn: 'class="single"' in drawn.split(">")[0])
    return "\n".join(f'<div class="figures">{"".join(found)}</div>' for _, found in single)
