"""Do the error bars of a trained critic hold? ``kova reproduce calibration``.

KovaPPO is trained and stopped; the true values of its final policy are rolled out from copies of states
that it visits, and compared with ``value_distribution``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab import files
from kova_rl.lab.evaluation.environment import acting, make_env
from kova_rl.lab.evaluation.protocol import Exam
from kova_rl.lab.evaluation.rollouts import truth
from kova_rl.lab.evaluation.transitions import Array
from kova_rl.posterior import LEVELS

__all__ = ["reproduce"]

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5")
SCALES = {"smoke": (4_096, 1), "desk": (50_000, 3)}
"""Steps and seeds."""
BARS = ("solved", "filter")


class Asked:
    """A model's value distribution as a critic that can be examined."""

    def __init__(self, model: Any, bars: str) -> None:
        self.model, self.bars = model, bars

    def observe(self, batch: Any) -> None:
        """It has learned already."""

    def mean_std(self, states: Array) -> tuple[Array, Array]:
        """Values of observations and their standard deviations."""
        belief = self.model.value_distribution(states.astype(np.float32), bars=self.bars)
        return belief.mean.double().numpy(), belief.std.double().numpy()


def examine(env: str, steps: int, seed: int, states: int = 40, rollouts: int = 16) -> dict[str, Any]:
    """Coverage and NEES of both kinds of bars, of the final policy of one run."""
    from kova_rl.sb3 import KovaPPO

    model = KovaPPO("MlpPolicy", env, seed=seed, device="cpu").learn(steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        known = truth(make_env(env), acting(model, deterministic=False), model.gamma, seed, states, rollouts)
    exam = Exam(known.states, known.values, known.doubt)
    return {bars: exam.score(Asked(model, bars)) for bars in BARS}


def reproduce(scale: str, seeds: int | None, steps: int | None, out: Path | None, console: Console) -> None:
    """Train, examine, and write the table; the picture too, if matplotlib is there."""
    check_choice("--scale", scale, tuple(SCALES))
    steps, seeds = steps or SCALES[scale][0], seeds or SCALES[scale][1]
    check_whole("--steps", steps, least=1)
    out = out or Path("results", "calibration" if scale == "desk" else f"calibration-{scale}")
    lines = [
        "| environment | bars | 50/80/95% intervals hold | NEES | value error |",
        "|---|---|---:|---:|---:|",
    ]
    shares: dict[tuple[str, str], Array] = {}
    for env in ENVIRONMENTS:
        runs = [examine(env, steps, seed) for seed in range(seeds)]
        for bars in BARS:
            held = np.mean([run[bars]["coverage"] for run in runs], axis=0)
            nees, error = (float(np.mean([run[bars][name] for run in runs])) for name in ("nees", "error"))
            covered = "/".join(f"{100 * share:.0f}" for share in held)
            lines.append(f"| {env} | {bars} | {covered} | {nees:.3g} | {error:.3g} |")
            console.print(lines[-1], soft_wrap=True)
            shares[env, bars] = held
    title = f"KovaPPO after {steps:,} steps, {seeds} seeds: `value_distribution` of the final policy\n\n"
    files.write(out / "calibration.md", (title + "\n".join(lines) + "\n").encode())
    _draw(out / "calibration.png", shares, console)
    console.print(f"Table: {out / 'calibration.md'}", soft_wrap=True)


def _draw(path: Path, shares: dict[tuple[str, str], Array], console: Console) -> None:
    try:
        import matplotlib
    except ImportError:
        console.print("No picture without matplotlib: pip install 'kova-rl[plots]'")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(4.6, 4.0), layout="constrained")
    ax.plot([0, 100], [0, 100], color="#BBBBBB", lw=1.0)
    for index, ((env, bars), held) in enumerate(shares.items()):
        style: dict[str, Any] = {"color": f"C{index // len(BARS)}", "ls": "-" if bars == "solved" else ":"}
        ax.plot([100 * level for level in LEVELS], 100 * held, marker="o", label=f"{env}, {bars}", **style)
    ax.set(xlim=(40, 100), ylim=(-3, 103), xlabel="interval, %", ylabel="true values inside, %")
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
