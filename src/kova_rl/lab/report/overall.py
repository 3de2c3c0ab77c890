"""Learning curves over environments: a panel an algorithm. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from kova_rl.lab import coverage, stats
from kova_rl.lab.report.curves import DRAWS, about, banded
from kova_rl.lab.report.groups import Array, Group, rank, shared, spans, title
from kova_rl.lab.report.style import Figure, Panel, keys

__all__ = ["overall"]

Scored = tuple[Array, Array]
"""Steps, and scores at them with a row a run."""


def overall(groups: Sequence[Group]) -> list[Figure]:
    """The interquartile mean of all runs at each step, where several environments are shared."""
    own = [g for g in groups if g.curves[1].size]
    ends, found, used = spans(groups), {}, list[Group]()
    for algorithm in dict.fromkeys(g.algorithm for g in own):
        here = [g for g in own if g.algorithm == algorithm]
        scored = _scored(here, ends)
        labels, environments = shared(scored)
        curves = {label: [scored[label][name] for name in environments] for label in labels}
        if len(environments) > 1 and all(_joined(tasks)[0].size for tasks in curves.values()):
            found[algorithm] = curves
            used += [g for g in here if g.label in labels and g.environment in environments]
    if not found:
        return []
    legend = keys([(g.label, g.critic) for g in used])
    panels = []
    for algorithm, curves in found.items():
        lines = [(legend[label], *_line(*_joined(tasks))) for label, tasks in curves.items()]
        panels.append(Panel(title(algorithm), partial(banded, lines, "score")))
    note = coverage.note([len(g.scored) for g in used], "iqm", min(map(len, _first(found))))
    caption = (
        "Interquartile mean over all runs in the environments that the critics share, as scores from 0, the "
        "worst final one in an environment, to 1, the best. Bands: 95% stratified bootstrap intervals, at "
        f"each step by itself. {about(used)} {note}"
    )
    return [
        Figure(
            "overall",
            "Learning curves over environments",
            caption.rstrip(),
            tuple(legend.values()),
            tuple(panels),
        )
    ]


def _first(found: Mapping[str, Mapping[str, list[Scored]]]) -> list[list[Scored]]:
    """Of each algorithm the environments of its first critic, which are those of all."""
    return [next(iter(curves.values())) for curves in found.values()]


def _scored(groups: Sequence[Group], ends: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, Scored]]:
    """Curves from 0 to 1, by label and environment."""
    out: dict[str, dict[str, Scored]] = {}
    for g in sorted(groups, key=lambda g: rank(g.critic)):
        low, span = ends[g.environment]
        steps, values = g.curves
        marks = -values if g.measure.lower else values
        out.setdefault(g.label, {})[g.environment] = steps, (marks - low) / span
    return out


def _joined(found: Sequence[Scored]) -> tuple[Array, list[Array]]:
    """The steps that all have, and the scores at these."""
    steps = found[0][0]
    for other, _ in found[1:]:
        steps = np.intersect1d(steps, other)
    return steps, [values[:, np.isin(at, steps)] for at, values in found]


def _line(steps: Array, tasks: Sequence[Array]) -> tuple[Array, Array, Array, Array]:
    middle = stats.iqm(np.concatenate(tasks), axis=0)
    several = min(map(len, tasks)) > 1
    low, high = stats.interval(tasks, draws=DRAWS) if several else (middle, middle)
    return steps, middle, low, high
