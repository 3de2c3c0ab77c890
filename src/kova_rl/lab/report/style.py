"""How figures look: a fixed colour a critic; SVG that is coloured by the page. Needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D

from kova_rl.lab.drawing import plt, save
from kova_rl.lab.report.groups import family, rank
from kova_rl.lab.report.page import variable

__all__ = ["COLOURS", "Figure", "Key", "Panel", "grid_files", "inline"]

COLOURS = {"kova": "#0072b2", "memoryless": "#7f7f7f", "adam": "#d55e00", "kfac": "#009e73"}
"""Okabe and Ito's, which the colour-blind can tell apart, and a grey."""
OTHER = "#cc79a7"
SHADES = ((0.0, 0.0), (0.0, 0.45), (1.0, 0.45))
"""Of a critic's settings, in turn: towards which grey, and how far."""
INK, RULE = "#010203", "#010204"
"""In SVG, replaced by the page's own colours of text and of lines."""
DASHES = ("", "6 2", "1.5 1.5", "6 2 1.5 2")
MARKERS = ("", "o", "s", "^")
DOTS = ("o", "s", "^", "D")
PANEL = (3.7, 2.6)
WIDEST = 1400
"""Pixels of a picture."""
BASE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "kova",
}


SHORTER: tuple[tuple[str, Any], ...] = (
    (r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}"),
    (r'<g id="[^"]*">', "<g>"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"font-family: [^;]*; ", ""),  # the page's
    (r"\s+", " "),
    ("> <", "><"),
)
"""What of an SVG is said at more length than it needs: half of its bytes."""


def shaded(colour: str, index: int) -> str:
    """The colour of a critic's setting.

    Example:
        >>> shaded("#0072b2", 0), shaded("#0072b2", 1), shaded("#0072b2", 2)
        ('#0072b2', '#003f62', '#73b1d5')
    """
    grey, share = SHADES[index % len(SHADES)]
    red, green, blue = ((1 - share) * x + share * grey for x in to_rgb(colour))
    return str(to_hex((red, green, blue)))


@dataclass(frozen=True)
class Key:
    """How one label is drawn, in every panel and in the legend."""

    label: str
    critic: str
    index: int = 0
    """Among the labels of its critic: the first is a plain line, the others are shaded, dashed or marked."""

    @property
    def colour(self) -> str:
        return shaded(COLOURS.get(self.critic, OTHER), self.index)

    @property
    def dashes(self) -> str:
        """As SVG writes them."""
        return DASHES[self.index % len(DASHES)]

    @property
    def dot(self) -> dict[str, Any]:
        """Arguments of ``plot`` for a point: filled for the first four of a critic, then hollow."""
        fill = "none" if "hollow" in self.mark else self.colour
        return {
            "marker": self.mark[0],
            "mfc": fill,
            "mec": self.colour,
            "ms": 5,
            "ls": "",
            "label": self.label,
        }

    @property
    def marker(self) -> str:
        """On the line, once the dashes are used up."""
        return MARKERS[self.index // len(DASHES) % len(MARKERS)]

    @property
    def mark(self) -> str:
        """The point's shape in words."""
        return DOTS[self.index % len(DOTS)] + (" hollow" if self.index >= len(DOTS) else "")

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``plot``."""
        dashes = tuple(float(x) for x in self.dashes.split())
        style: dict[str, Any] = {"ls": (0, dashes)} if dashes else {}
        return {
            "color": self.colour,
            "marker": self.marker,
            "markevery": 0.15,
            "ms": 4,
            "label": self.label,
        } | style

    def curve(self, points: int) -> dict[str, Any]:
        """Arguments of ``plot`` for so many points: a line of one would not be seen."""
        return self.dot if points == 1 else self.line


def keys(labelled: Sequence[tuple[str, str]]) -> dict[str, Key]:
    """A key for each (label, critic), by critic and in their order."""
    out: dict[str, Key] = {}
    for label, critic in sorted(labelled, key=lambda pair: rank(pair[1])):
        if label not in out:
            own = family(critic)
            out[label] = Key(label, own, sum(key.critic == own for key in out.values()))
    return out


@dataclass(frozen=True)
class Panel:
    """A title, and what draws it on axes."""

    title: str
    draw: Callable[[Any], None]
    margin: float = 0.62
    """Left of the axes, in inches."""


@dataclass(frozen=True)
class Figure:
    """Panels with a legend and a caption."""

    name: str
    title: str
    caption: str
    keys: tuple[Key, ...]
    panels: tuple[Panel, ...]
    dots: bool = False
    """Whether it has points in place of lines."""
    columns: int = 3
    """Of panels at most; in the page they flow."""

    @property
    def across(self) -> int:
        """Columns of panels, so that rows are about as long."""
        rows = -(-len(self.panels) // self.columns)
        return -(-len(self.panels) // rows)


def _colours(ink: str, rule: str) -> dict[Any, Any]:
    names = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    return BASE | dict.fromkeys(names, ink) | {"grid.color": rule}


def _axes(
    figure: Any, panel: Panel, row: int, column: int, size: tuple[float, float], above: float = 0.0
) -> None:
    """Draw the panel in its cell. Margins are fixed, in inches: a layout engine takes longer than drawing."""
    width, height = size
    left, bottom, top, right = panel.margin, 0.48, 0.28, 0.22
    x, y = column * PANEL[0] + left, height - above - (row + 1) * PANEL[1] + bottom
    w, h = PANEL[0] - left - right, PANEL[1] - bottom - top
    axes = figure.add_axes((x / width, y / height, w / width, h / height))
    panel.draw(axes)
    axes.set_title(panel.title, fontsize=9.5, fontweight="bold")


def inline(panel: Panel, prefix: str) -> str:
    """The panel as SVG to stand in a page: without a background, in colours that CSS sets."""
    with plt.rc_context(_colours(INK, RULE)):
        figure = plt.figure(figsize=PANEL)
        _axes(figure, panel, 0, 0, PANEL)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    named = {INK: "currentColor", RULE: "var(--rule)"}
    for critic, colour in (COLOURS | {"other": OTHER}).items():
        named |= {shaded(colour, i): variable(critic, i) for i in range(len(SHADES))}
    for colour, name in named.items():
        svg = svg.replace(colour, name)
    inner = svg[svg.index(">") + 1 :]
    for found, put in SHORTER:
        inner = re.sub(found, put, inner)
    width, height = (72 * x for x in PANEL)
    return f'<svg role="img" aria-label="{escape(panel.title)}" viewBox="0 0 {width:g} {height:g}">{inner}'


def grid_files(figure: Figure, stem: Path) -> None:
    """All panels in one picture, as PNG and PDF, on white."""
    columns = figure.across
    rows = -(-len(figure.panels) // columns)
    longest = max(len(key.label) for key in figure.keys)
    in_legend = max(1, int(PANEL[0] * columns / (0.6 + 0.075 * longest)))
    above, below = 0.4, 0.15 + 0.22 * -(-len(figure.keys) // in_legend)
    size = (PANEL[0] * columns, PANEL[1] * rows + above + below)
    with plt.rc_context(_colours("#333333", "#dddddd")):
        drawn = plt.figure(figsize=size)
        for i, panel in enumerate(figure.panels):
            _axes(drawn, panel, i // columns, i % columns, size, above)
        lines = [Line2D([], [], **(key.dot if figure.dots else key.line)) for key in figure.keys]
        drawn.legend(handles=lines, loc="lower center", ncols=in_legend, frameon=False, fontsize=8.5)
        drawn.suptitle(figure.title, fontsize=11, y=1 - 0.12 / size[1], va="top")
        save(drawn, stem, dpi=min(130, int(WIDEST / size[0])))
