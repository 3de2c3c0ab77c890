"""What the critic does to the policy: entropy, policy loss and the critic's own fit. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from kova_rl.lab.files import named
from kova_rl.lab.report.curves import about, short
from kova_rl.lab.report.groups import Array, Group, title
from kova_rl.lab.report.style import Figure, Key, Panel, keys

__all__ = ["policy"]

Line = tuple[Key, Array, Array]


def policy(groups: Sequence[Group]) -> list[Figure]:
    """A figure an algorithm: a row of panels an environment, means over the seeds."""
    out = []
    for algorithm in dict.fromkeys(g.algorithm for g in groups):
        every = [g for g in groups if g.algorithm == algorithm]
        own = [g for g in every if g.scored]
        legend = keys([(g.label, g.critic) for g in own])
        quantities = list(dict.fromkeys(quantity for g in own for run in g.scored for quantity in run.logged))
        panels = [
            Panel(f"{environment}: {quantity}", partial(_panel, lines, quantity))
            for environment in dict.fromkeys(g.environment for g in own)
            for quantity in quantities
            if (lines := _lines(own, environment, quantity, legend))
        ]
        if panels:
            caption = (
                "Means over the seeds, as logged by the algorithm; what it does not log is left out. The "
                f"policy's loss is the one that is minimised. {about(every)}"
            )
            if "value loss" in quantities:  # Kova's is at first sight, Adam's the mean of ten passes
                caption += (
                    " The value loss is the mean over a critic's passes, so that critics with more passes "
                    "show less; explained variance is from before them."
                )
            heading = f"{title(algorithm)}: what the critic does to the policy"
            shown = tuple(legend.values())
            name, columns = named("policy", algorithm), len(quantities)
            out.append(Figure(name, heading, caption, shown, tuple(panels), columns=columns))
    return out


def _lines(groups: Sequence[Group], environment: str, quantity: str, legend: dict[str, Key]) -> list[Line]:
    found = ((g, *g.curves_of(quantity)) for g in groups if g.environment == environment)
    return [(legend[g.label], steps, values.mean(0)) for g, steps, values in found if values.size]


def _panel(lines: Sequence[Line], quantity: str, axes: Any) -> None:
    for key, steps, middle in lines:
        axes.plot(steps, middle, **key.curve(len(steps)))
    axes.set(xlabel="steps", xlim=(0, max(steps[-1] for _, steps, _ in lines)))
    axes.xaxis.set_major_formatter(short)
    if quantity == "explained variance":  # its first values may be far below 0
        low = min(float(np.min(middle)) for *_, middle in lines)
        axes.set_ylim(max(-1.0, low - 0.05), 1.05)
    if quantity == "value loss" and all((middle > 0).all() for *_, middle in lines):
        axes.set_yscale("log")
