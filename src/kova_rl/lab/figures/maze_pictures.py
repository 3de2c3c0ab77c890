"""Parts of the maze pictures. Needs matplotlib; knows nothing of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter

from kova_rl.lab.drawing import plt, save
from kova_rl.lab.mazes.series import Series
from kova_rl.lab.stats import deviation

__all__ = ["bars", "colour", "curves", "plt", "save"]

KOVA = ("#0b4f6c", "#1f8ab0", "#7cc4d8")
MEMORYLESS = ("#4c4c4c", "#868686", "#bdbdbd")
ADAM = ("#a63446", "#e07a5f", "#f2b266")
KTD = ("#6a4c93", "#b298d6", "#d66ba0")
PRINTED = "#5a8f4e"


def colour(name: str, seen: dict[str, int]) -> str:
    """By family, so that every figure speaks of Kova in blue, of Adam in red."""
    families = {"Kova as": (PRINTED,), "Kova": KOVA, "memoryless": MEMORYLESS, "Adam": ADAM, "KTD": KTD}
    family = next((family for family in families if name.startswith(family)), None)
    if family is None:
        return "black"
    at = seen[family] = seen.get(family, -1) + 1
    return families[family][at % len(families[family])]


def curves(axes: Any, all_series: Sequence[Series], colours: Sequence[str]) -> None:
    """Mean success rate over the seeds, and a band of one standard deviation."""
    for series, c in zip(all_series, colours, strict=True):
        mean, std = series.rates.mean(0), deviation(series.rates)
        axes.fill_between(
            series.steps, np.maximum(mean - std, 0), np.minimum(mean + std, 1), color=c, alpha=0.1, lw=0
        )
        axes.plot(series.steps, mean, color=c, lw=1.8, label=series.name)
    axes.set(xlabel="step", ylim=(0, 1.03), xlim=(0, all_series[0].steps[-1]))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x >= 1000 else f"{x:g}")
    axes.spines[["top", "right"]].set_visible(False)


def bars(axes: Any, all_series: Sequence[Series], colours: Sequence[str], heights: Sequence[float]) -> None:
    """One bar a critic, on a logarithmic scale, with its number."""
    names = [series.name.split(" (")[0] for series in all_series]
    drawn = axes.barh(names, heights, color=colours, height=0.7)
    for bar, series in zip(drawn, all_series, strict=True):
        if series.broken:
            bar.set(hatch="////", edgecolor="white")
    for i, height in enumerate(heights):
        shown = f"{height:,.2f}" if height < 100 else f"{height:,.0f}"
        axes.annotate(shown, (height, i), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(xscale="log", xlim=(min(heights) / 2, max(heights) * 6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", labelsize=8)
