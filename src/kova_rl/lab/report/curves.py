"""Learning curves: a figure an algorithm, a panel an environment. Needs matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from kova_rl.lab import coverage, stats
from kova_rl.lab.files import named
from kova_rl.lab.report.groups import Group, title
from kova_rl.lab.report.style import Figure, Key, Panel, keys
from kova_rl.lab.run import Measure

__all__ = ["about", "banded", "curves", "left_out", "seeds_text", "short"]

Array = NDArray[np.float64]
Band = Callable[[Array], tuple[Array, Array, Array]]
DRAWS = 1000


def mean_std(values: Array) -> tuple[Array, Array, Array]:
    """Line, lower and upper edge, from runs x points; of a single run a line."""
    mean = values.mean(0)
    std = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    return mean, mean - std, mean + std


def iqm_interval(values: Array) -> tuple[Array, Array, Array]:
    """The same, with an interval that is a line for a single run."""
    middle = stats.iqm(values, axis=0)
    low, high = stats.interval([values], draws=DRAWS) if len(values) > 1 else (middle, middle)
    return middle, low, high


def curves(groups: Sequence[Group]) -> list[Figure]:
    """Two figures for each algorithm: as in the paper, and with intervals; one if no critic has two seeds."""
    out = []
    for algorithm in dict.fromkeys(g.algorithm for g in groups):
        every = [g for g in groups if g.algorithm == algorithm]
        own = [g for g in every if g.curves[1].size]
        if own:
            name, measure = title(algorithm), own[0].measure
            text = f"{measure.about} "
            if max(len(g.scored) for g in own) == 1:
                once = f"{text}{about(every)} One seed has no band."
                out.append(_figure("mean", f"{name}: {measure.title}", once, own, mean_std))
                continue
            heading = f"{name}: mean and standard deviation"
            bands = f"{text}Bands: one sample standard deviation. {about(every)}"
            out.append(_figure("mean", heading, bands, own, mean_std))
            heading = f"{name}: interquartile mean and 95% intervals"
            note = coverage.note([len(g.scored) for g in own])
            text += f"Bands: stratified bootstrap, at each step by itself. {about(every)} {note}"
            out.append(_figure("iqm", heading, text.rstrip(), own, iqm_interval))
    return out


def _figure(kind: str, heading: str, caption: str, groups: Sequence[Group], band: Band) -> Figure:
    legend = keys([(g.label, g.critic) for g in groups])
    panels = []
    for environment in dict.fromkeys(g.environment for g in groups):
        lines = []
        for g in groups:
            if g.environment == environment:
                steps, values = g.curves
                lines.append((legend[g.label], steps, *band(values)))
        panels.append(Panel(environment, partial(_panel, lines, groups[0].measure)))
    name = named("curves", groups[0].algorithm, kind)
    return Figure(name, heading, caption, tuple(legend.values()), tuple(panels))


def banded(lines: Sequence[tuple[Key, Array, Array, Array, Array]], about: str, axes: Any) -> None:
    """Curves along the steps, with their bands."""
    for key, steps, middle, low, high in lines:
        axes.fill_between(steps, low, high, color=key.colour, alpha=0.18, lw=0)
        axes.plot(steps, middle, **key.curve(len(steps)))
    axes.set(xlabel="steps", ylabel=about, xlim=(0, max(steps[-1] for _, steps, *_ in lines)))
    axes.xaxis.set_major_formatter(short)


def _panel(lines: Sequence[tuple[Key, Array, Array, Array, Array]], measure: Measure, axes: Any) -> None:
    banded(lines, measure.title, axes)
    if measure.lower and all((middle > 0).all() for _, _, middle, *_ in lines):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        if (least := min(middle.min() for _, _, middle, *_ in lines)) > 0:
            axes.set_ylim(bottom=0.7 * least)
    axes.yaxis.set_major_formatter(short)


def short(x: float, _: Any) -> str:
    """A number of steps, or a return, at an axis."""
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return f"{x / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{x:g}".replace("-", "\N{MINUS SIGN}")


def seeds_text(counts: Sequence[int]) -> str:
    """How many seeds, of groups with as many or with different numbers.

    Example:
        >>> seeds_text([8, 8]), seeds_text([3, 8]), seeds_text([1])
        ('8 seeds', '3 to 8 seeds', '1 seed')
    """
    low, high = min(counts), max(counts)
    if low == high:
        return f"{low} seed" if low == 1 else f"{low} seeds"
    return f"{low} to {high} seeds"


def about(groups: Sequence[Group]) -> str:
    """Seeds, steps, and what is left out."""
    steps = sorted({g.steps for g in groups})
    span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    seeds = seeds_text([len(g.scored) for g in groups if g.scored])
    return f"{seeds}, {span} steps. {left_out(groups)}".rstrip()


def left_out(groups: Sequence[Group]) -> str:
    """The runs that statistics do without; nothing if there are none."""
    runs = (run for g in groups for run in g.runs if not run.scored)
    why = Counter(f"without a {run.measure.title}" if run.status == "done" else run.status for run in runs)
    return f"Runs left out: {', '.join(f'{why[each]} {each}' for each in sorted(why))}." if why else ""
