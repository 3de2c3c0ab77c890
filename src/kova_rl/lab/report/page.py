"""The page: one file with its figures, styles and script in it. What comes from runs is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import kova_rl
from kova_rl.lab import coverage
from kova_rl.lab.report import tables
from kova_rl.lab.report.groups import Group, family
from kova_rl.lab.report.groups import title as named
from kova_rl.lab.report.reading import RunRecord
from kova_rl.lab.report.summary import CHOSEN, EVERYWHERE, Improvement, best, finals, improvements, overheads

__all__ = ["page", "variable"]

HERE = Path(__file__).parent
SHADES = ("", "-dark", "-light")
"""Ends of the names of a critic's colours in the style sheet."""
MARKS = {
    "o": "M17.5 1a4 4 0 1 1-.01 0z",
    "s": "M13.5 1h8v8h-8z",
    "^": "M17.5 1l4.5 8h-9z",
    "D": "M17.5 0l5 5-5 5-5-5z",
}
"""Paths of matplotlib's markers, in a box of 35 x 10."""


def variable(critic: str, index: int = 0) -> str:
    """The page's colour of a critic, and of each of its settings in turn.

    Example:
        >>> variable("kova"), variable("kova", 1), variable("mine", 2)
        ('var(--kova)', 'var(--kova-dark)', 'var(--other-light)')
    """
    return f"var(--{family(critic)}{SHADES[index % len(SHADES)]})"


def _colours(groups: Sequence[Group]) -> dict[tuple[str, str], str]:
    """By algorithm and label, as in the learning curves: the settings of a critic have colours in turn."""
    out: dict[tuple[str, str], str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for g in groups:
        if (g.algorithm, g.label) not in out:
            out[g.algorithm, g.label] = variable(g.critic, seen[g.algorithm, family(g.critic)])
            seen[g.algorithm, family(g.critic)] += 1
    return out


def _once(row: Improvement) -> str:
    """How a comparison of single runs came out; it has no probability to speak of."""
    better, worse = row.measure.better
    if row.environments == 1:
        ends = {1.0: f"{better} Adam", 0.0: f"{worse} Adam"}
        return f"ended {ends.get(row.probability, 'as Adam did')}"
    count = f"{row.probability * row.environments:g} of {row.environments}"
    return f"ended {better} Adam in {count} environments"


def _headlines(rows: Sequence[Improvement]) -> list[tuple[Improvement, str]]:
    """How KOVA compares, in a sentence for each algorithm."""
    out = []
    for row in rows:
        alone = row.environments == 1 and not any(
            (r.algorithm, r.label, r.environment) == (row.algorithm, row.label, EVERYWHERE) for r in rows
        )
        if row.critic == "kova" and (row.environment == EVERYWHERE or alone):
            seeds = "1 seed" if row.seeds == 1 else f"{row.seeds} seeds"
            if row.failed:
                seeds += f", {row.failed} failed {'run' if row.failed == 1 else 'runs'} left out"
            where = f"({row.where}, {seeds})"
            if row.seeds == 1:
                found = f"{_once(row)} {where}. One seed cannot tell a difference from chance: run several."
            else:
                ends = f"ends {row.measure.better[0]} Adam with probability"
                found = Markup("{} <b>{:.2f}</b>{} {}.").format(ends, row.probability, row.span, where)
            out.append((row, found))
    return out


def page(
    title: str,
    runs: Sequence[RunRecord],
    groups: Sequence[Group],
    drawn: Mapping[str, Any],
    commands: Sequence[str],
) -> str:
    """The whole page.

    Args:
        title: Of the page.
        runs: All that were read.
        groups: Of these runs.
        drawn: Of each section (``curves``, ``policy``, ``improvement``, ``environments``, ``times``), rows of
            figures, each with its panels as SVG.
        commands: The one that made the page, then those that made the runs, if known.
    """
    ends, compared = finals(groups), improvements(groups)
    measures = " and ".join(dict.fromkeys(f"{g.measure.title}s" for g in groups))
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        runs=runs,
        groups=groups,
        drawn=drawn,
        commands=commands,
        version=kova_rl.__version__,
        tables=tables,
        finals=ends,
        about=" ".join(dict.fromkeys(g.measure.about for g in groups)),
        doubt=coverage.note([len(g.final) for g in groups]),
        best=best(ends),
        chosen=CHOSEN,
        improvements=compared,
        headlines=_headlines(compared),
        overheads=overheads(groups),
        colours=_colours(groups),
        named=named,
        variable=variable,
        marks=MARKS,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        sections={
            "finals": f"Final {measures}",
            "curves": "Learning curves",
            "policy": "Critic and policy",
            "improvement": "Improvement on Adam",
            "environments": "Over environments",
            "times": "Running times",
            "failures": "Failed and unfinished runs",
            "all": "All runs",
        },
    )
