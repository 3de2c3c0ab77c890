"""Noise of the advantages against processor time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.ticker import LogLocator

from kova_rl.lab.drawing import plt, save

__all__ = ["front", "picture", "pooled"]

Row = dict[str, str]
TOP = 1.6
"""Critics with more noise than this are drawn at the upper edge."""
SAME = 1.05
"""Times whose ratio is less are taken for the same: nobody would choose a critic by it."""


def pooled(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Noise and seconds of each critic that was examined on all streams.

    Noise is over the least noise that any critic has on the same stream and half, averaged: 1 is best.
    """
    streams = sorted({row["stream"] for row in rows})
    cells: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault(row["critic"], {}).setdefault(row["stream"], []).append(row)

    def noise(critic: str, stream: str, half: str) -> float:
        return mean(float(row[half]) for row in cells[critic][stream])

    whole = [critic for critic, found in cells.items() if len(found) == len(streams)]
    points = {}
    for critic in whole:
        ratios, seconds = [], []
        for stream in streams:
            for half in ("noise_first", "noise_second"):
                ratios.append(noise(critic, stream, half) / min(noise(c, stream, half) for c in whole))
            seconds += [float(row["seconds"]) for row in cells[critic][stream]]
        points[critic] = (mean(ratios), mean(seconds))
    return points


def front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Those that no other beats in noise and is not slower, or in time and is no worse, the fastest first."""
    found = [
        name
        for name, (noise, seconds) in points.items()
        if not any(
            n <= noise and s < seconds * SAME and (n < noise or s * SAME <= seconds)
            for n, s in points.values()
        )
    ]
    return sorted(found, key=lambda name: points[name][1])


def _named(points: dict[str, tuple[float, float]]) -> list[str]:
    """Those on the front, our default, and the best of Adam's, the fastest first."""
    adams = sorted((name for name in points if name.startswith("adam")), key=lambda name: points[name][0])
    named = {*front(points), *adams[:1], *({"kova"} & points.keys())}
    return sorted(named, key=lambda name: points[name][1])


SMALL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "va": "top"}


def _shown(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Where points are drawn."""
    return [seconds for _, seconds in points], [min(noise, TOP) for noise, _ in points]


def picture(rows: Sequence[Row], stem: Path) -> None:
    """Draw all critics, as PNG and PDF, and name those on the front, our default, and the best of Adam's."""
    points = pooled(rows)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    kinds = {"kova": "C3", "adam": "C1", "kronecker": "C0", "low-rank": "C2", "memoryless": "C7"}
    for kind, colour in kinds.items():
        own = [point for name, point in points.items() if name.startswith(kind)]
        if own:
            axes.scatter(*_shown(own), s=22, color=colour, label=kind)
    if any(noise > TOP for noise, _ in points.values()):
        axes.axhline(TOP, color="0.6", lw=0.8, ls=":")
        axes.annotate(f"{TOP:g} and more", (1, TOP), (-3, -3), ("axes fraction", "data"), **SMALL, ha="right")
    best = front(points)
    axes.plot([points[n][1] for n in best], [points[n][0] for n in best], color="0.6", lw=1, zorder=0)
    for number, name in enumerate(_named(points), 1):
        (x,), (y,) = _shown([points[name]])
        axes.scatter(x, y, s=44, facecolor="none", edgecolor="black", lw=0.9)
        beside = (-5, -12) if number % 2 else (5, -22)  # below the front there is room; neighbours take turns
        line = {"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(str(number), (x, y), xytext=beside, **SMALL, ha="center", arrowprops=line)
        axes.plot([], [], " ", label=f"{number}  {name}")
    axes.set(xscale="log", xlabel="processor seconds for a stream")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_ylim(bottom=axes.get_ylim()[0] - 0.06)
    axes.set_ylabel("noise of the advantages over the least")
    axes.set_title("Critics on recorded rollouts of PPO")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, stem, dpi=130)
