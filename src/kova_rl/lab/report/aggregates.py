"""Figures over environments: improvement on Adam, aggregate scores, profiles, times. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from kova_rl.lab import coverage, stats
from kova_rl.lab.report.curves import left_out, seeds_text
from kova_rl.lab.report.groups import Array, Group, normalised, shared, title
from kova_rl.lab.report.style import Figure, Key, Panel, keys
from kova_rl.lab.report.summary import EVERYWHERE, Improvement, Overhead

__all__ = ["aggregate", "improvement", "profiles", "times"]

THRESHOLDS = np.linspace(0, 1, 51)
DRAWS = 1000
SCALE = "Final scores from 0, the worst run of any critic and algorithm in an environment, to 1, the best."
Dot = tuple[int, Key, float, float, float]
Scores = dict[str, dict[str, Array]]
"""By label and environment."""


def _algorithms(rows: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(row.algorithm for row in rows))


def _wrapped(names: Sequence[str]) -> tuple[list[str], float]:
    """Names on several lines if they are long, and a size of letters at which they fit."""
    shown = [textwrap.fill(name, 22, break_on_hyphens=False) for name in names]
    lines = sum(name.count("\n") + 1 for name in shown)
    return shown, min(9.0 if lines == len(names) else 7.0, 120 / lines)


def _margin(names: Sequence[str]) -> float:
    """What the names need left of the axes, in inches."""
    shown, size = _wrapped(names)
    longest = max(len(line) for name in shown for line in name.split("\n"))
    return max(0.62, 0.2 + 0.0081 * size * longest)


def _dots(names: Sequence[str], dots: Sequence[Dot], xlabel: str, line: float | None, axes: Any) -> None:
    """A row a name; in it a dot with its interval for each key."""
    in_row = {row: [dot for dot in dots if dot[0] == row] for row in range(len(names))}
    for row, found in in_row.items():
        places = row + min(0.24, 0.8 / max(1, len(found))) * (np.arange(len(found)) - (len(found) - 1) / 2)
        for y, (_, key, value, low, high) in zip(places, found, strict=True):
            axes.plot([low, high], [y, y], color=key.colour, lw=1.6, solid_capstyle="butt")
            axes.plot([value], [y], **key.dot)
    if line is not None:
        axes.axvline(line, color=axes.spines["left"].get_edgecolor(), lw=0.9, ls=(0, (3, 2)))
    axes.set(xlabel=xlabel, yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5))
    shown, size = _wrapped(names)
    axes.set_yticklabels(shown, fontsize=size, linespacing=1)
    axes.grid(axis="y", visible=False)


def improvement(rows: Sequence[Improvement], groups: Sequence[Group]) -> list[Figure]:
    """The probability that a critic improves on Adam: a panel an algorithm."""
    if not rows:
        return []
    legend = keys([(row.label, row.critic) for row in rows])
    panels = []
    for algorithm in _algorithms(rows):
        own = [row for row in rows if row.algorithm == algorithm]
        names = sorted({row.environment for row in own} - {EVERYWHERE})
        names += [EVERYWHERE] * any(row.environment == EVERYWHERE for row in own)
        dots = [(names.index(r.environment), legend[r.label], r.probability, r.low, r.high) for r in own]

        def draw(axes: Any, names: list[str] = names, dots: list[Dot] = dots) -> None:
            _dots(names, dots, "P(ends better than Adam)", 0.5, axes)
            axes.set_xlim(-0.03, 1.03)

        panels.append(Panel(title(algorithm), draw, _margin(names)))
    pooled = any(row.environment == EVERYWHERE for row in rows)
    said = "Over environments: those that a critic shares with Adam. " if pooled else ""
    said += f"{seeds_text([row.seeds for row in rows])}. "
    said += left_out([g for g in groups if g.algorithm in _algorithms(rows)])
    caption = (
        "Probability that a run ends better than one with Adam in the same algorithm and environment; ties "
        "count half; of several settings of Adam, the best. 0.5 is no difference. Lines: 95% score "
        f"intervals. {said.rstrip()} {coverage.note([row.seeds for row in rows], 'improvement')}"
    )
    heading = "Probability of improvement on Adam"
    return [
        Figure("improvement", heading, caption.rstrip(), tuple(legend.values()), tuple(panels), dots=True)
    ]


def _scores(groups: Sequence[Group]) -> tuple[dict[str, Scores], str]:
    """By algorithm: scores of the labels, in the environments that they share; and what a caption says."""
    found: dict[str, Scores] = {}
    for (algorithm, label), tasks in normalised(groups).items():
        found.setdefault(algorithm, {})[label] = tasks
    out, said = {}, []
    for algorithm, labels in found.items():
        kept, environments = shared(labels)
        most = max((sum(len(labels[label][name]) for name in environments) for label in kept), default=0)
        if most < 2:  # a single run of each has neither a mean nor a profile
            continue
        out[algorithm] = {label: {name: labels[label][name] for name in environments} for label in kept}
        left = []
        measure = next(g.measure.title for g in groups if g.algorithm == algorithm)
        for name in sorted({name for tasks in labels.values() for name in tasks} - set(environments)):
            without = ", ".join(label for label in kept if name not in labels[label])
            left.append(f"{name} (no final {measure} of {without})")
        left += [f"{label} (no final {measure} there)" for label in labels if label not in kept]
        also = f"; left out: {', '.join(left)}" if left else ""
        said.append(f"{title(algorithm)}: {', '.join(environments)}{also}.")
    return out, " ".join((*said, left_out(groups))).rstrip()


def _legend(groups: Sequence[Group], scores: dict[str, Scores]) -> dict[str, Key]:
    shown = {label for labels in scores.values() for label in labels}
    return keys([(g.label, g.critic) for g in groups if g.label in shown])


def _about(scores: dict[str, Scores], said: str, kind: str) -> str:
    pooled = [list(tasks.values()) for labels in scores.values() for tasks in labels.values()]
    counts = [len(runs) for tasks in pooled for runs in tasks]
    note = coverage.note(counts, kind, min(map(len, pooled)))
    return f"{seeds_text(counts)}. {said} {note}".rstrip()


def aggregate(groups: Sequence[Group]) -> list[Figure]:
    """The interquartile mean over environments: a panel an algorithm, a row a critic."""
    scores, said = _scores(groups)
    if not scores:
        return []
    legend = _legend(groups, scores)
    panels = []
    for algorithm, labels in scores.items():
        dots: list[Dot] = []
        for i, (label, tasks) in enumerate(labels.items()):
            runs = list(tasks.values())
            middle = float(stats.iqm(np.concatenate(runs)))
            low, high = stats.interval(runs) if min(map(len, runs)) > 1 else (np.nan, np.nan)
            dots.append((i, legend[label], middle, float(low), float(high)))
        names = list(labels)
        draw = partial(_dots, names, dots, "interquartile mean of scores", None)
        panels.append(Panel(title(algorithm), draw, _margin(names)))
    caption = f"{SCALE} Lines: 95% stratified bootstrap intervals. {_about(scores, said, 'iqm')}"
    heading = "Interquartile mean over environments"
    return [Figure("aggregate", heading, caption, tuple(legend.values()), tuple(panels), dots=True)]


def profiles(groups: Sequence[Group]) -> list[Figure]:
    """The share of runs above each score: a panel an algorithm."""
    scores, said = _scores(groups)
    if not scores:
        return []
    legend = _legend(groups, scores)
    panels = []
    for algorithm, labels in scores.items():
        lines = []
        for label, tasks in labels.items():
            runs = list(tasks.values())
            band = stats.profile_band(runs, THRESHOLDS, draws=DRAWS)
            lines.append((legend[label], stats.profile(runs, THRESHOLDS), *band))
        panels.append(Panel(title(algorithm), partial(_profile, lines)))
    caption = f"{SCALE} Bands: 95% stratified bootstrap intervals, at each score by itself. "
    caption += _about(scores, said, "profile")
    return [Figure("profiles", "Performance profiles", caption, tuple(legend.values()), tuple(panels))]


def _profile(lines: Sequence[tuple[Key, Array, Array, Array]], axes: Any) -> None:
    for key, share, low, high in lines:
        axes.fill_between(THRESHOLDS, low, high, color=key.colour, alpha=0.15, lw=0)
        axes.plot(THRESHOLDS, share, **key.line)
    axes.set(xlabel="score", ylabel="share of runs above", xlim=(0, 1), ylim=(0, 1.02))


def times(rows: Sequence[Overhead]) -> list[Figure]:
    """Running time over Adam's: a panel an algorithm, beside what the paper reports."""
    if not rows:
        return []
    paper = Key("KOVA in the paper", "paper", index=3)
    legend = keys([(row.group.label, row.group.critic) for row in rows])
    panels = []
    for algorithm in dict.fromkeys(row.group.algorithm for row in rows):
        own = [row for row in rows if row.group.algorithm == algorithm]
        names = sorted({row.group.environment for row in own})
        dots: list[Dot] = []
        for at, name in enumerate(names):
            here = [row for row in own if row.group.environment == name]
            dots += [(at, legend[r.group.label], r.percent, r.percent, r.percent) for r in here]
            dots += [(at, paper, p, p, p) for p in {r.paper for r in here} if p is not None]
        draw = partial(_dots, names, dots, "time over Adam's, %", 0.0)
        panels.append(Panel(title(algorithm), draw, _margin(names)))
    shown = (*legend.values(), *([paper] if any(row.paper is not None for row in rows) else []))
    caption = (
        "Processor time of a training step over Adam's in the same algorithm and environment, medians over "
        "runs. Other work on the machine changes it less than the clock's, but does change it. "
        f"{seeds_text([len(row.group.times) for row in rows])}."
    )
    return [Figure("times", "Running time over Adam's", caption, shown, tuple(panels), dots=True)]
