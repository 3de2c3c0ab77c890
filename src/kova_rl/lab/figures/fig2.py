"""Fig. 2: the 10x10 maze."""

from __future__ import annotations

from pathlib import Path

from kova_rl import evolution
from kova_rl.lab.figures.mazes import MazeFigure
from kova_rl.lab.mazes.critics import Adam, Filtered, tracked
from kova_rl.lab.mazes.series import Series

__all__ = ["FIG2", "draw"]


def draw(stem: Path, all_series: list[Series], title: str) -> None:
    """Success rate: a panel a family, with the best of the other families in the background."""
    from kova_rl.lab.figures.maze_pictures import colour, curves, plt, save

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


ETAS = (0.1, 0.01, 0.001)
FIG2 = MazeFigure(
    "fig2",
    "Fig. 2: the 10x10 maze",
    "10x10 maze: three etas, three rates of Adam",
    "maze10",
    {
        **{f"Kova, eta {eta:g}": tracked(eta) for eta in ETAS},
        **{f"memoryless, eta {eta:g}": Filtered(evolution=evolution.Memoryless(eta)) for eta in ETAS},
        "Adam 1e-3": Adam(1e-3),
        "Adam 3e-4, decaying": Adam(3e-4, decaying=True),
        "Adam 1e-4": Adam(1e-4),
    },
    {"smoke": (2_000, 1), "desk": (30_000, 2), "paper": (100_000, 8)},
    draw,
    looks=50,
)
