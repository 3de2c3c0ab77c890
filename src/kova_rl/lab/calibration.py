"""Do the error bars of a trained critic hold? ``kova reproduce calibration``.

KovaPPO is trained and stopped; the true values of its final policy are rolled out from copies of states
that it visits, and compared with ``value_distribution``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console

import kova_rl
from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab import files
from kova_rl.lab.evaluation.environment import make_env
from kova_rl.lab.evaluation.rollouts import TAIL, Truth, twin
from kova_rl.lab.evaluation.transitions import Array
from kova_rl.posterior import LEVELS

__all__ = ["examine", "reproduce", "rolled"]

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5")
SCALES = {"smoke": (4_096, 1), "desk": (51_200, 3)}
"""Steps and seeds."""
BARS: tuple[Literal["solved", "filter"], ...] = ("solved", "filter")
APART = 25
"""Steps of a walk between two states that are examined."""

Run = dict[str, Any]


def rolled(model: Any, env: str, seed: int, states: int, rollouts: int) -> Truth:
    """True values of the model's policy in states that it visits: means of rollouts that all go on at once.

    As :func:`kova_rl.lab.evaluation.rollouts.from_copies` does, with one call of the policy for all copies.
    """
    walker = make_env(env)
    walker.action_space.seed(seed)
    observation, _ = walker.reset(seed=seed)
    seen, copies = [], []
    for t in range(APART * states):
        if t % APART == 0:
            seen.append(np.asarray(observation, dtype=np.float64))
            copies += [twin(walker, [seed, t, i]) for i in range(rollouts)]
        action, _ = model.predict(observation, deterministic=False)
        observation, _, terminated, truncated, _ = walker.step(action)
        if terminated or truncated:
            observation, _ = walker.reset()
    returns = _returns(model, copies, np.repeat(np.array(seen), rollouts, axis=0)).reshape(states, rollouts)
    doubt = returns.std(axis=1, ddof=1) / math.sqrt(rollouts)
    note = f"truth: mean of {rollouts} rollouts from each of {states} states"
    return Truth(np.array(seen), returns.mean(axis=1), doubt, note)


def _returns(model: Any, copies: Sequence[Any], observations: Array) -> Array:
    """The discounted return of each copy, until it ends or the rest is negligible."""
    totals, discount = np.zeros(len(copies)), 1.0
    going, now = np.arange(len(copies)), observations.astype(np.float32)
    while len(going) and discount > TAIL:
        actions, _ = model.predict(now[going], deterministic=False)
        ended = np.zeros(len(going), dtype=np.bool_)
        for j, (i, action) in enumerate(zip(going.tolist(), actions, strict=True)):
            now[i], reward, ended[j], _, _ = copies[i].step(action)
            totals[i] += discount * float(reward)
        going, discount = going[~ended], discount * model.gamma
    return totals


def examine(env: str, steps: int, seed: int, states: int = 40, rollouts: int = 16) -> Run:
    """Train, and ask the critic for the values of the final policy: with the truth and both kinds of bars."""
    from kova_rl.sb3 import KovaPPO

    model = KovaPPO("MlpPolicy", env, seed=seed, device="cpu").learn(steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        known = rolled(model, env, seed, states, rollouts)
    beliefs = {bars: model.value_distribution(known.states.astype(np.float32), bars=bars) for bars in BARS}
    columns = {"truth": known.values, "doubt": known.doubt, "mean": beliefs["solved"].mean.numpy()}
    columns |= {bars: belief.std.numpy() for bars, belief in beliefs.items()}
    config = {"env": env, "steps": steps, "seed": seed, "rollouts": rollouts, "version": kova_rl.__version__}
    return config | {name: [float(f"{x:.6g}") for x in column] for name, column in columns.items()}


def scores(run: Run, bars: str) -> Array:
    """How many standard deviations each value is off; the standard error of the truth is part of them."""
    truth, doubt, mean, std = (np.array(run[name]) for name in ("truth", "doubt", "mean", bars))
    found: Array = (mean - truth) / np.hypot(std, doubt)
    return found


def held(z: Array, level: float) -> float:
    """The share inside the central interval of this probability."""
    return float(np.mean(np.abs(z) <= NormalDist().inv_cdf((1 + level) / 2)))


def reproduce(scale: str, seeds: int | None, steps: int | None, out: Path | None, console: Console) -> None:
    """Train, examine, and write data and table; the picture too, if matplotlib is there.

    Runs that are in the data already are not made again.
    """
    check_choice("--scale", scale, tuple(SCALES))
    steps, seeds = steps or SCALES[scale][0], seeds or SCALES[scale][1]
    check_whole("--steps", steps, least=1)
    out = out or Path("results", "calibration" if scale == "desk" else f"calibration-{scale}")
    path = out / "calibration.json"
    runs: list[Run] = json.loads(path.read_text()) if path.exists() else []
    wanted = [(env, seed) for seed in range(seeds) for env in ENVIRONMENTS]
    runs = [run for run in runs if _is_of(run, steps) and (run["env"], run["seed"]) in wanted]
    for env, seed in wanted:
        if not any((run["env"], run["seed"]) == (env, seed) for run in runs):
            console.print(f"{env}, seed {seed}: {steps:,} steps", soft_wrap=True)
            runs.append(examine(env, steps, seed))
            lines = ",\n".join(json.dumps(run) for run in runs)
            files.write(path, f"[\n{lines}\n]\n".encode())
    title = f"KovaPPO after {steps:,} steps, {seeds} seeds: `value_distribution` of the final policy\n\n"
    table = "\n".join(_table(runs))
    console.print(table, soft_wrap=True)
    files.write(out / "calibration.md", f"{title}{table}\n".encode())
    _draw(out / "calibration.png", runs, console)
    console.print(f"Table: {out / 'calibration.md'}", soft_wrap=True)


def _is_of(run: Run, steps: int) -> bool:
    return bool(run["steps"] == steps and run["version"] == kova_rl.__version__)


def _table(runs: Sequence[Run]) -> list[str]:
    lines = [
        "| environment | values | value error | bars | 50/80/95% intervals hold | 95%, by seed | NEES |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for env in ENVIRONMENTS:
        mine = [run for run in runs if run["env"] == env]
        truth, mean = (np.array([run[name] for run in mine]) for name in ("truth", "mean"))
        error = math.sqrt(np.mean((mean - truth) ** 2))
        for bars in BARS:
            z = np.array([scores(run, bars) for run in mine])
            covered = "/".join(f"{100 * held(z, level):.0f}" for level in LEVELS)
            each = ", ".join(f"{100 * held(row, 0.95):.0f}" for row in z)
            lines.append(
                f"| {env} | {truth.mean():.3g} | {error:.3g} | {bars} | {covered} | {each} "
                f"| {np.mean(z**2):.3g} |"
            )
    return lines


def _draw(path: Path, runs: Sequence[Run], console: Console) -> None:
    try:
        import matplotlib
    except ImportError:
        console.print("No picture without matplotlib: pip install 'kova-rl[plots]'")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    levels = np.linspace(0.02, 0.98, 49)
    size = (3.2 * len(ENVIRONMENTS) + 0.4, 3.6)
    figure, axes = plt.subplots(1, len(ENVIRONMENTS), figsize=size, squeeze=False, layout="constrained")
    for ax, env in zip(axes[0], ENVIRONMENTS, strict=True):
        ax.plot([0, 100], [0, 100], color="#BBBBBB", lw=1.0, zorder=0)
        for bars, color in zip(BARS, ("#0072B2", "#D55E00"), strict=True):
            z = [scores(run, bars) for run in runs if run["env"] == env]
            for some, width, opaque in (*((row, 0.8, 0.4) for row in z), (np.concatenate(z), 2.4, 1.0)):
                shares = [100 * held(some, level) for level in levels]
                label = bars if width > 1 else None
                ax.plot(100 * levels, shares, color=color, lw=width, alpha=opaque, label=label)
        ax.set_title(env, fontweight="bold", fontsize=11)
        ax.set(xlim=(0, 100), ylim=(-2, 102), xlabel="interval, %")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("true values inside, %")
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
