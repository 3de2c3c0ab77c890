"""Fig. 1: the 4x4 maze."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kova_rl import covariance, evolution, observation
from kova_rl.lab.figures.mazes import MazeFigure
from kova_rl.lab.mazes.critics import BOUNDED, Adam, Filtered, Temporal
from kova_rl.lab.mazes.series import Series

__all__ = ["FIG1", "draw"]


def draw(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate, running time and forward passes."""
    from kova_rl.lab.figures.maze_pictures import bars, colour, curves, plt, save

    seen: dict[str, int] = {}
    colours = [colour(series.name, seen) for series in all_series]
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 4.4), width_ratios=[1.5, 1, 1], layout="constrained"
    )
    curves(left, all_series, colours)
    left.set(title="(a) success rate, mean and standard deviation", ylabel="success rate")
    lines, names = left.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    bars(middle, all_series, colours, [float(np.median(series.milliseconds)) for series in all_series])
    middle.set(title="(b) processor time a step", xlabel="milliseconds")
    bars(right, all_series, colours, [float(series.passes.mean()) for series in all_series])
    right.set(title="(c) forward passes a step", xlabel="inputs evaluated")
    right.tick_params(labelleft=False)
    if any(series.broken for series in all_series):
        title += " (hatched: broke down on the way; costs until then)"
    figure.suptitle(title, fontsize=11)
    save(figure, stem)


FIG1 = MazeFigure(
    "fig1",
    "Fig. 1: the 4x4 maze",
    "4x4 maze: success, time and forward passes of Kova, KTD and Adam",
    "maze4",
    {
        "Kova": Filtered(),
        "memoryless (released code)": Filtered(evolution=evolution.Memoryless(0.01)),
        "Kova as printed": Filtered(
            covariance.Full(), evolution.FadingMemory(0.01, on_windup="ignore"), observation.BatchSize()
        ),
        "KTD as printed": Temporal(),
        "KTD, bounded": Temporal(BOUNDED),
        "KTD, bounded, P0 and Pn 0.1": Temporal(BOUNDED, prior=0.1, noise=0.1),
        "Adam 1e-3": Adam(1e-3),
    },
    {"smoke": (1_000, 2), "desk": (5_000, 4), "paper": (5_000, 8)},
    draw,
)
