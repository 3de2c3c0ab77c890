"""The picture: errors against samples, a panel a task and condition; coverage and NEES. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from kova_rl.lab import stats
from kova_rl.lab.drawing import plt, save
from kova_rl.lab.evaluation.critics import CRITICS
from kova_rl.lab.evaluation.panel import Panel
from kova_rl.posterior import LEVELS

# Okabe and Ito's colours, which the colour-blind can tell apart, with a dash a family.
STYLES: dict[str, dict[str, Any]] = {
    "kova": {"color": "#56B4E9", "lw": 2.0},
    "kova-head": {"color": "#0072B2", "lw": 2.6},
    "kova-paper": {"color": "#332288", "lw": 1.4},
    "memoryless": {"color": "#7F7F7F", "lw": 1.4},
    "adam": {"color": "#D55E00", "lw": 1.6},
    "ktd": {"color": "#CC79A7", "lw": 1.4, "ls": (0, (5, 1.5))},
    "gptd": {"color": "#E69F00", "lw": 1.4, "ls": (0, (5, 1.5))},
    "gptd-mc": {"color": "#009E73", "lw": 1.4, "ls": (0, (5, 1.5))},
    "lstd": {"color": "#000000", "lw": 1.3, "ls": (0, (1, 1.2))},
    "gptd-kernel": {"color": "#009E73", "lw": 1.4, "ls": (0, (1, 1.2))},
    "ktd-linear": {"color": "#CC79A7", "lw": 1.0, "ls": (0, (1, 1.2))},
    "ktd-wide": {"color": "#CC79A7", "lw": 2.0},
}
NEES = (1e-2, 1e4)
"""What is drawn of it."""
FLOOR = {"color": "#BBBBBB", "lw": 1.0, "ls": "-", "zorder": 0}


def draw(stem: Path, panels: Sequence[Panel]) -> None:
    """Errors of every panel; coverage and NEES below a condition, over its tasks, or beside a single one."""
    tasks = list(dict.fromkeys(panel.task for panel in panels))
    conditions = list(dict.fromkeys(panel.condition for panel in panels))
    single = len(conditions) == 1
    rows, columns = (len(tasks), 3) if single else (len(tasks) + 2, len(conditions))
    size = (12.0, 3.1 * rows + 0.9) if single else (3.4 * columns, 2.6 * rows + 0.9)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for panel in panels:
        row, column = tasks.index(panel.task), conditions.index(panel.condition)
        _errors(axes[row, column], panel)
        if row == 0:
            axes[row, column].set_title(panel.condition, fontweight="bold", fontsize=11)
        if column == 0:
            axes[row, column].set_ylabel(f"{panel.task}\nvalue error (RMS)")
    for i in range(len(tasks) if single else columns):
        pooled = panels[i : i + 1] if single else [p for p in panels if p.condition == conditions[i]]
        held, normalised = (axes[i, 1], axes[i, 2]) if single else (axes[-2, i], axes[-1, i])
        _coverage(held, pooled)
        _nees(normalised, pooled)
        for ax in (normalised, axes[i if single else -3, 0 if single else i]):
            ax.set_xlabel("samples seen")
        if single or i == 0:
            held.set_ylabel("true values inside, %")
            normalised.set_ylabel("NEES: (error / std)$^2$")
    handles = {label: line for ax in axes.flat for line, label in zip(*_legend(ax), strict=True)}
    lines, names = list(handles.values()), list(handles)
    figure.legend(lines, names, loc="outside lower center", ncols=min(5, 2 * columns), frameon=False)
    save(figure, stem, dpi=110)


def _legend(ax: Any) -> tuple[list[Any], list[str]]:
    handles, labels = ax.get_legend_handles_labels()
    return list(handles), list(labels)


def _errors(ax: Any, panel: Panel) -> None:
    for name in panel.curves:
        at, error = panel.curves[name][0]["samples"], panel.stack(name, "error")
        mean, style = error.mean(0), STYLES[name]
        ax.plot(at, mean, label=CRITICS[name].label, **style)
        if len(error) > 1 and np.isfinite(error).all():
            low, high = np.array([stats.bootstrap(column) for column in error.T]).T
            ax.fill_between(at, low, high, color=style["color"], alpha=0.12, lw=0)
    if panel.floor is not None:
        ax.axhline(panel.floor, label="best linear value", **FLOOR)
    if panel.switch is None:
        ax.set_xscale("log")
    else:
        ax.axvline(panel.switch, color="black", lw=0.8, ls=":")
    _frame(ax, panel)


def _frame(ax: Any, panel: Panel) -> None:
    """The same decades in all panels of a task would hide the small ones: from the least to the largest."""
    means = np.concatenate([panel.stack(name, "error").mean(0) for name in panel.curves])
    means = means[np.isfinite(means)]
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    first = float(np.median([panel.stack(name, "error")[:, 0].mean() for name in panel.curves]))
    ax.set_ylim(max(float(means.min()) * 0.7, 1e-3 * first), min(float(means.max()) * 1.3, 4.0 * first))
    ax.grid(axis="y", color="#EEEEEE", lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _coverage(ax: Any, panels: Sequence[Panel]) -> None:
    ideal = [100 * level for level in LEVELS]
    ax.plot([0, 100], [0, 100], color="#BBBBBB", lw=1.0, zorder=0)
    for name in panels[0].curves:
        shares = np.concatenate([panel.stack(name, "coverage")[:, -1] for panel in panels])
        if not np.isnan(shares).all():
            ax.plot(ideal, 100 * np.nanmean(shares, 0), marker="o", ms=4, **STYLES[name])
    ax.set(xlim=(40, 100), ylim=(-3, 103), xticks=ideal, xlabel="interval, %")
    ax.grid(axis="y", color="#EEEEEE", lw=0.8)
    ax.spines[["top", "right"]].set_visible(False)


def _nees(ax: Any, panels: Sequence[Panel]) -> None:
    """Above 1 bars are too narrow, below too wide. Medians over seeds and tasks: single runs are far off."""
    ax.axhline(1.0, color="#BBBBBB", lw=1.0, zorder=0)
    for name in panels[0].curves:
        at = panels[0].curves[name][0]["samples"]
        nees = np.concatenate([panel.stack(name, "nees") for panel in panels])
        nees = nees[np.isfinite(nees).all(axis=1)]
        if len(nees):
            ax.plot(at, np.median(nees, axis=0), **STYLES[name])
    ax.set_yscale("log")
    ax.set_ylim(*NEES)
    if panels[0].switch is None:
        ax.set_xscale("log")
    else:
        ax.axvline(panels[0].switch, color="black", lw=0.8, ls=":")
    ax.grid(axis="y", color="#EEEEEE", lw=0.8)
    ax.spines[["top", "right"]].set_visible(False)
