"""Tables of errors and coverage, for the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from kova_rl.lab.evaluation.critics import CRITICS
from kova_rl.lab.evaluation.panel import Panel
from kova_rl.lab.tables import Sheet
from kova_rl.posterior import LEVELS

COLUMNS = 4
"""Sample counts at which errors are printed."""


def _points(panel: Panel) -> list[tuple[str, int]]:
    """Headings and indices of the checkpoints that are printed."""
    at = next(iter(panel.curves.values()))[0]["samples"]
    if panel.switch is None:
        first = len(at) // COLUMNS
        return [(f"{at[i]:,}", i) for i in np.linspace(first, len(at) - 1, COLUMNS).astype(int)]
    half = len(at) // 2
    before = [(f"{at[i]:,}", i) for i in (half // 2, half - 1)]
    return before + [(f"+{at[i] - panel.switch:,}", i) for i in (half + half // 2, len(at) - 1)]


def _label(panel: Panel, name: str) -> str:
    if name not in CRITICS:
        return name
    chosen = panel.settings.get(name)
    return CRITICS[name].label + (f" {CRITICS[name].tuned} {chosen:g}" if chosen is not None else "")


def _mark(error: float) -> str:
    if not np.isfinite(error):
        return "broke down"
    return f"{error:.3f}" if 1e-3 <= error < 1 else f"{error:.3g}" if error >= 1 else f"{error:.0e}"


def sheet(panel: Panel) -> Sheet:
    """Mean error over the seeds at a few counts, and how much of the truth the intervals hold at the end."""
    points = _points(panel)
    errors = np.array([[panel.stack(n, "error")[:, i].mean() for _, i in points] for n in panel.curves])
    rows = []
    for name, line in zip(panel.curves, errors, strict=True):
        shares = panel.stack(name, "coverage")[:, -1].mean(0)
        covered = "/".join("-" if np.isnan(x) else f"{100 * x:.0f}" for x in shares)
        marks = [_mark(x) for x in line]
        if panel.floor is None:
            marks.append(f"{100 * panel.stack(name, 'explained')[:, -1].mean():.0f}%")
        normalised = panel.stack(name, "nees")[:, -1].mean()
        bars = ["-", "-"] if np.isnan(shares).all() else [covered, f"{normalised:.3g}"]
        rows.append([_label(panel, name), *marks, *bars])
    safe = np.where(np.isfinite(errors), errors, np.inf)
    best = {(int(np.argmin(safe[:, j])), j + 1) for j in range(len(points))}
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS)
    explained = ["explained"] if panel.floor is None else []
    seeds = len(next(iter(panel.curves.values())))
    averaged = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{panel.task}, {panel.condition}: value error (RMS) after so many samples, {averaged}"
    caption = panel.note if panel.floor is None else f"best values linear in the features: {panel.floor:.3f}"
    if panel.switch is not None:
        caption += f"; the truth changes at {panel.switch:,}, + counts from there"
    headings = ["critic", *(heading for heading, _ in points), *explained, f"{levels}%", "NEES"]
    return Sheet(title, headings, rows, caption, best=best)


def rich_table(panel: Panel) -> Table:
    """For the terminal; the best of each column in bold."""
    return sheet(panel).rich()


def markdown(panels: Sequence[Panel]) -> str:
    """All tables in Markdown."""
    return "\n".join(sheet(panel).markdown() for panel in panels)
