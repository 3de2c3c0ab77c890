"""The chain's picture. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kova_rl.lab.drawing import plt, save
from kova_rl.lab.evaluation.transitions import Array
from kova_rl.lab.figures.chain import Result

COLOURS = ["#0b6e8f", "#58a4b0", "#9bd1c9", "#8f8f8f", "#d1495b", "#e58c5a", "#edae49"]
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "ncols": 4}
"""Outside of the axes, where it covers no curve."""


def draw(stem: Path, results: list[Result], truth: Array, updates: int) -> None:
    """What the first critic believes at each look, above the errors of all of them."""
    beliefs = results[0].beliefs
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, max(1, len(beliefs)), height_ratios=[1.0, 1.15])
    for column, (at, belief) in enumerate(beliefs.items()):
        _belief(figure.add_subplot(grid[0, column]), at, belief, truth, first=column == 0)
    _errors(figure.add_subplot(grid[1, :]), results, updates)
    save(figure, stem, dpi=130)


def _belief(axes: Any, at: int, belief: tuple[Array, Array], truth: Array, first: bool) -> None:
    states = range(1, len(truth) + 1)
    mean, std = belief
    for width, alpha in ((1.96, 0.18), (0.67, 0.3)):
        label = f"{95 if width > 1 else 50}% interval"
        axes.fill_between(
            states, mean - width * std, mean + width * std, color=COLOURS[0], alpha=alpha, lw=0, label=label
        )
    axes.plot(states, mean, color=COLOURS[0], lw=2, label="mean")
    axes.plot(states, truth, color="black", lw=1.2, ls="--", label="truth")
    axes.set(title=f"after {at:,} updates", xlabel="state", ylim=(-1.6, 1.6))
    axes.spines[["top", "right"]].set_visible(False)
    if first:
        axes.set_ylabel("value")
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", **LEGEND)


def _errors(axes: Any, results: list[Result], updates: int) -> None:
    for colour, result in zip(COLOURS, results, strict=True):
        thick = 2.2 if result.name.startswith("Kova") else 1.2
        axes.plot(range(1, len(result.errors) + 1), result.errors, color=colour, lw=thick, label=result.name)
    axes.axvline(2 * updates // 3, color="black", lw=0.8, ls=":")
    axes.annotate(
        "rewards turn round", (2 * updates // 3, 0.012), xytext=(4, 0), textcoords="offset points", fontsize=8
    )
    axes.set(yscale="log", xlabel="update", ylabel="value error (RMS)", ylim=(0.01, 1.2), xlim=(1, updates))
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", **LEGEND)
