"""The chain's picture. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kova_rl.lab.drawing import plt, save
from kova_rl.lab.evaluation.panel import Panel
from kova_rl.lab.evaluation.protocol import STEP, Curves

COLOURS = ["#0b6e8f", "#58a4b0", "#9bd1c9", "#8f8f8f", "#d1495b", "#e58c5a", "#edae49"]
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "ncols": 4}
"""Outside of the axes, where it covers no curve."""


def draw(stem: Path, panel: Panel, beliefs: dict[int, Curves]) -> None:
    """What the first critic believes after so many updates, above the errors of all critics."""
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, max(1, len(beliefs)), height_ratios=[1.0, 1.15])
    for column, (at, belief) in enumerate(beliefs.items()):
        _belief(figure.add_subplot(grid[0, column]), at, belief, first=column == 0)
    _errors(figure.add_subplot(grid[1, :]), panel)
    save(figure, stem, dpi=130)


def _belief(axes: Any, at: int, belief: Curves, first: bool) -> None:
    mean, std, truth = (belief[name] for name in ("mean", "std", "truth"))
    states = range(1, len(truth) + 1)
    for width, alpha in ((1.96, 0.18), (0.67, 0.3)):
        label = f"{95 if width > 1 else 50}% interval"
        edges = (mean - width * std, mean + width * std)
        axes.fill_between(states, *edges, color=COLOURS[0], alpha=alpha, lw=0, label=label)
    axes.plot(states, mean, color=COLOURS[0], lw=2, label="mean")
    axes.plot(states, truth, color="black", lw=1.2, ls="--", label="truth")
    axes.set(title=f"after {at:,} updates", xlabel="state", ylim=(-1.6, 1.6))
    axes.spines[["top", "right"]].set_visible(False)
    if first:
        axes.set_ylabel("value")
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", **LEGEND)


def _errors(axes: Any, panel: Panel) -> None:
    for colour, (name, runs) in zip(COLOURS, panel.curves.items(), strict=True):
        updates, thick = runs[0]["samples"] / STEP, 2.2 if name.startswith("Kova") else 1.2
        axes.plot(updates, panel.stack(name, "error").mean(0), color=colour, lw=thick, label=name)
    assert panel.switch is not None
    half = panel.switch / STEP
    axes.axvline(half, color="black", lw=0.8, ls=":")
    axes.annotate("rewards turn round", (half, 0.012), (4, 0), textcoords="offset points", fontsize=8)
    axes.set(yscale="log", xlabel="update", ylabel="value error (RMS)", ylim=(0.01, 1.2), xlim=(0, 2 * half))
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", **LEGEND)
