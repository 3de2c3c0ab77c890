"""Figures of the maze experiments. Needs matplotlib; knows nothing of training."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from kova_rl.lab import files
from kova_rl.lab.series import Series
from kova_rl.lab.stats import deviation

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter

__all__ = ["DRAW", "fig1", "fig2"]

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


def save(figure: Any, stem: Path) -> None:
    """As PNG and PDF, each whole or not at all."""
    for suffix, options in ((".png", {"dpi": 150}), (".pdf", {"metadata": {"CreationDate": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], **options)
        files.write(stem.parent / f"{stem.name}{suffix}", buffer.getvalue())
    plt.close(figure)


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


def fig1(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate, running time and forward passes."""
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


def fig2(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate: a panel a family, with the best of the other families in the background."""
    families = ("Kova", "memoryless", "Adam")
    figure, panels = plt.subplots(1, len(families), figsize=(13, 4.8), sharey=True, layout="constrained")
    best = {
        family: max((s for s in all_series if s.name.startswith(family)), key=lambda s: float(s.areas.mean()))
        for family in families
    }
    for axes, family in zip(panels, families, strict=True):
        seen: dict[str, int] = {}
        own = [series for series in all_series if series.name.startswith(family)]
        for other, series in best.items():
            if other != family:
                c = colour(series.name, {})
                mean = series.rates.mean(0)
                axes.plot(series.steps, mean, color=c, lw=1, ls=":", label=f"best of {other}")
        curves(axes, own, [colour(series.name, seen) for series in own])
        axes.set_title(family)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    panels[0].set_ylabel("success rate over the last 50 episodes")
    figure.suptitle(f"{title}: mean and standard deviation", fontsize=11)
    save(figure, stem)


def why(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate in one panel."""
    seen: dict[str, int] = {}
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    curves(axes, all_series, [colour(series.name, seen) for series in all_series])
    axes.set(title=title, ylabel="success rate over the last 50 episodes")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, stem)


DRAW = {"fig1": fig1, "fig2": fig2, "why": why}
