"""Do the error bars of a trained critic hold? Not in the paper.

KovaPPO is trained; the true values of its final policy are rolled out from copies of states that it visits,
and compared with ``value_distribution``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console

from kova_rl.filter.checks import check_whole
from kova_rl.lab import files
from kova_rl.lab.evaluation.environment import make_env
from kova_rl.lab.evaluation.rollouts import APART, TAIL, Truth, twin
from kova_rl.lab.evaluation.transitions import Array
from kova_rl.lab.pack import Folder
from kova_rl.lab.run import Work
from kova_rl.lab.store import DATA
from kova_rl.lab.tables import Sheet
from kova_rl.lab.terminal import NO_FIGURE, say
from kova_rl.lab.training.config import RunConfig
from kova_rl.posterior import LEVELS

__all__ = ["CALIBRATION", "Examined", "rolled"]

BARS: tuple[Literal["solved", "filter"], ...] = ("solved", "filter")
STATES, ROLLOUTS = 40, 16

Arrays = dict[str, Array]


class Examined(RunConfig):
    """A training run whose critic is asked, at the end, for the values of the policy that it has come to."""

    def flat(self) -> dict[str, Any]:
        """With what is asked."""
        return {**super().flat(), "examined": f"{STATES} states, {ROLLOUTS} rollouts"}

    def perform(self, work: Work) -> dict[str, Any]:
        """Train, from where the run stands; then keep the truth and both kinds of bars."""
        from kova_rl.lab.training.run import perform

        def examine(model: Any) -> None:
            files.save(work.path / DATA, examined(model, self.environment, self.seed))

        return perform(self, work, examine)


def examined(model: Any, env: str, seed: int) -> Arrays:
    """What the critic says of states that its policy visits, and the truth."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        known = rolled(model, env, seed, STATES, ROLLOUTS)
    beliefs = {bars: model.value_distribution(known.states.astype(np.float32), bars=bars) for bars in BARS}
    columns = {"truth": known.values, "doubt": known.doubt, "mean": beliefs["solved"].mean.numpy()}
    return columns | {bars: belief.std.numpy() for bars, belief in beliefs.items()}


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


def scores(run: Arrays, bars: str) -> Array:
    """How many standard deviations each value is off; the standard error of the truth is part of them."""
    found: Array = (run["mean"] - run["truth"]) / np.hypot(run[bars], run["doubt"])
    return found


def held(z: Array, level: float) -> float:
    """The share inside the central interval of this probability."""
    return float(np.mean(np.abs(z) <= NormalDist().inv_cdf((1 + level) / 2)))


@dataclass(frozen=True)
class Calibration:
    """Error bars of KovaPPO beside the truth."""

    environments: tuple[str, ...]
    scales: dict[str, tuple[int, int]]
    """Steps and seeds of each scale."""
    name: str = "calibration"
    makes: str = "error bars of KovaPPO beside the true values of its policy (not in the paper)"
    alone: bool = False

    def runs(self, scale: str, seeds: int | None = None, steps: int | None = None) -> list[Examined]:
        """In the order in which they are made."""
        scaled_steps, scaled_seeds = self.scales[scale]
        steps, seeds = scaled_steps if steps is None else steps, scaled_seeds if seeds is None else seeds
        check_whole("--seeds", seeds, least=1)
        plain: dict[str, Any] = {"normalise_observations": False, "normalise_rewards": False, "steps": steps}
        return [
            Examined("ppo", environment, seed=seed, **plain)
            for seed, environment in product(range(seeds), self.environments)
        ]

    def hours(self, runs: Sequence[Examined]) -> float:
        """Core-hours that they take, about: the rollouts take longest."""
        return sum(run.steps * 1.3 + 1.5e5 for run in runs) / 3.6e6

    def show(self, root: Path, folders: Sequence[Folder], console: Console) -> None:
        """The table, and the picture if matplotlib is there."""
        configs = [(folder, folder.json("config.json")) for folder in folders]
        known = [(folder, config) for folder, config in configs if "examined" in config]
        if not known:
            raise ValueError(f"{root} holds no runs of {self.name}")
        known.sort(key=lambda each: each[1]["seed"])
        found: dict[str, list[Arrays]] = {
            environment: [folder.arrays() for folder, config in known if config["environment"] == environment]
            for environment in self.environments
        }
        found = {environment: runs for environment, runs in found.items() if runs}
        sheet = _sheet(found, known[0][1]["steps"])
        console.print(sheet.rich())
        files.write(root / f"{self.name}.md", sheet.markdown().encode())
        try:
            draw(root / self.name, found)
        except ImportError:
            say(console, NO_FIGURE)
        say(console, f"Table: {root / self.name}.md")


def _sheet(found: dict[str, list[Arrays]], steps: int) -> Sheet:
    rows = []
    for environment, runs in found.items():
        truth, mean = (np.array([run[name] for run in runs]) for name in ("truth", "mean"))
        error = math.sqrt(np.mean((mean - truth) ** 2))
        for bars in BARS:
            z = np.array([scores(run, bars) for run in runs])
            covered = "/".join(f"{100 * held(z, level):.0f}" for level in LEVELS)
            each = ", ".join(f"{100 * held(row, 0.95):.0f}" for row in z)
            numbers = (f"{truth.mean():.3g}", f"{error:.3g}", covered, each, f"{np.mean(z**2):.3g}")
            rows.append([environment, bars, *numbers])
    title = f"KovaPPO after {steps:,} steps: `value_distribution` of the final policy"
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS)
    headings = ["environment", "bars", "values", "value error", f"{levels}% hold", "95%, by seed", "NEES"]
    return Sheet(title, headings, rows, words=(0, 1))


def draw(stem: Path, found: dict[str, list[Arrays]]) -> None:
    """How many true values lie inside the intervals of every probability, a panel an environment."""
    from kova_rl.lab.drawing import plt, save

    levels = np.linspace(0.02, 0.98, 49)
    size = (3.2 * len(found) + 0.4, 3.6)
    figure, axes = plt.subplots(1, len(found), figsize=size, squeeze=False, layout="constrained")
    for ax, (environment, runs) in zip(axes[0], found.items(), strict=True):
        ax.plot([0, 100], [0, 100], color="#BBBBBB", lw=1.0, zorder=0)
        for bars, color in zip(BARS, ("#0072B2", "#D55E00"), strict=True):
            z = [scores(run, bars) for run in runs]
            for some, width, opaque in (*((row, 0.8, 0.4) for row in z), (np.concatenate(z), 2.4, 1.0)):
                shares = [100 * held(some, level) for level in levels]
                label = bars if width > 1 else None
                ax.plot(100 * levels, shares, color=color, lw=width, alpha=opaque, label=label)
        ax.set_title(environment, fontweight="bold", fontsize=11)
        ax.set(xlim=(0, 100), ylim=(-2, 102), xlabel="interval, %")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("true values inside, %")
    axes[0, 0].legend(frameon=False)
    save(figure, stem, dpi=110)


CALIBRATION = Calibration(
    ("CartPole-v1", "Pendulum-v1", "Hopper-v5"),
    {"smoke": (4_096, 1), "desk": (51_200, 3), "paper": (51_200, 8)},
)
