"""One run: a task, a condition, a critic and a seed make curves of error and coverage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.errors import KovaError
from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab.evaluation.critics import Critic, Problem, build
from kova_rl.lab.evaluation.network import Make
from kova_rl.lab.evaluation.tasks import Task, conditions_of, phases
from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.lab.evaluation.walk import Walker
from kova_rl.posterior import LEVELS

STEP = 8
"""Samples that are seen between two updates of a network, which has a batch of 32 from its replay."""
LOOKS = 24
"""Points of a curve, in each phase."""

Curves = dict[str, NDArray[Any]]
Tick = Callable[[int], None]


def looks(samples: int, parts: int) -> list[int]:
    """After how many samples the critic is asked: evenly in the logarithm, in each part of the run."""
    length = samples // parts // STEP
    ratio = np.geomspace(min(4, length), length, min(LOOKS, length))
    within = sorted({round(x) for x in ratio})
    return [(part * length + n) * STEP for part in range(parts) for n in within]


def coverage(error: Array, std: Array | None) -> Array:
    """Share of the errors within the central 50, 80 and 95% intervals; NaN without deviations."""
    if std is None:
        return np.full(len(LEVELS), np.nan)
    z = np.abs(error) / np.maximum(std, np.finfo(np.float64).tiny)
    return np.array([np.mean(z <= NormalDist().inv_cdf((1 + level) / 2)) for level in LEVELS])


@dataclass(frozen=True)
class Exam:
    """States whose values are known."""

    states: Array
    """Features, n x k."""
    truth: Array
    """Values, of shape (n,)."""
    doubt: Array | float = 0.0
    """Standard error of the truth; NaN where nothing is known of it, and coverage has no meaning."""

    def score(self, critic: Critic) -> dict[str, Any]:
        """Error and coverage of the critic, as it is."""
        mean, std = critic.mean_std(self.states)
        error = mean - self.truth
        if std is not None:
            std = None if np.isnan(self.doubt).any() else np.hypot(std, self.doubt)
        rest = 1 - np.var(error) / max(float(np.var(self.truth)), np.finfo(np.float64).tiny)
        nees = np.nan if std is None else np.mean((error / np.maximum(std, 1e-150)) ** 2)
        return {
            "error": np.sqrt(np.mean(error**2)),
            "explained": rest,
            "coverage": coverage(error, std),
            "nees": nees,
        }


NOTHING: dict[str, Any] = {
    "error": np.nan,
    "explained": np.nan,
    "coverage": np.full(len(LEVELS), np.nan),
    "nees": np.nan,
}
"""The marks of a critic that broke down."""


def follow(
    critic: Critic, more: Callable[[], Transitions], seen: int, at: Sequence[int], exam: Exam, tick: Tick
) -> list[dict[str, Any]]:
    """Show the critic samples, from ``seen`` on, and examine it after each count of ``at``.

    A critic whose filter breaks down is not shown any more; its marks are NaN from there.
    """
    rows: list[dict[str, Any]] = []
    broken = False
    for look in at:
        while seen < look:
            batch = more()
            try:
                if not broken:
                    critic.observe(batch)
            except KovaError:
                broken = True
            seen += len(batch)
            tick(len(batch))
        try:
            rows.append(NOTHING if broken else exam.score(critic))
        except KovaError:
            broken = True
            rows.append(NOTHING)
    return rows


def evaluate_one(
    task: str,
    condition: str,
    critic: str | Make,
    seed: int,
    samples: int = 10_000,
    *,
    setting: float | None = None,
    tick: Tick | None = None,
) -> Curves:
    """Let one critic learn the values of a task, and compare with the truth on the way.

    The samples depend on the task, the condition and the seed alone: all critics see the same.

    Args:
        task: ``chain``, ``grid`` or ``boyan``; ``garnet-30``, ``garnet-100``, ``garnet-300``, ``aliased`` or
            ``baird``; ``cartpole`` or ``pendulum``.
        condition: ``on-policy``, ``off-policy``, ``deterministic`` or ``switch``; not every task has all.
        critic: A name of ``critics.CRITICS``, or a function of the network that returns its optimizer, such
            as ``Kova`` itself.
        seed: Of the samples, the replay and the network.
        samples: How many transitions are seen; a network makes an update every 8.
        setting: Of what is tuned of a named critic; None for its first choice.
        tick: Called with the samples seen since the last call.

    Returns:
        ``samples`` (C,), the checkpoints; ``error`` (C,), root mean square over the states;
        ``explained`` (C,), the explained variance; ``coverage`` (C, 3) of the 50, 80 and 95% intervals and
        ``nees`` (C,), the mean of (error / std)^2, both NaN without deviations; and of the end, over
        the states, ``mean``, ``std`` (where the truth is a mean of rollouts, with its standard error) and
        ``truth``.

    Example:
        >>> from kova_rl import Kova
        >>> curves = evaluate_one("boyan", "on-policy", Kova, seed=0, samples=800)
        >>> bool(curves["error"][-1] < curves["error"][0])
        True
    """
    from kova_rl.lab.evaluation import control

    if task in control.CONTROL:
        check_choice("condition", condition, conditions_of(task))
        check_whole("samples", samples, least=20 * STEP)
        return control.learn(task, critic, seed, samples, setting, tick or (lambda n: None))
    parts = phases(task, condition)
    check_whole("samples", samples, least=STEP * len(parts))
    first = parts[0]
    problem = Problem(
        first.features.shape[1], first.gamma, seed, condition == "off-policy", condition == "switch"
    )
    learner = build(critic, problem, setting)
    return _run(parts, learner, looks(samples, len(parts)), seed, tick or (lambda n: None))


def _run(parts: tuple[Task, ...], critic: Critic, at: list[int], seed: int, tick: Tick) -> Curves:
    walker = Walker(parts[0], np.random.default_rng([seed, 0]))
    rows: list[dict[str, Any]] = []
    each, seen = len(at) // len(parts), 0
    for part, task in enumerate(parts):
        walker.enter(task)
        exam, points = Exam(task.features, task.values()), at[part * each : (part + 1) * each]
        rows += follow(critic, lambda: walker.walk(STEP), seen, points, exam, tick)
        seen = points[-1]
    return stacked(at, rows) | final(critic, exam)


def final(critic: Critic, exam: Exam) -> Curves:
    """What the critic says of each state at the end, and the truth; NaN where it says nothing."""
    try:
        mean, std = critic.mean_std(exam.states)
    except KovaError:
        mean, std = np.full(len(exam.states), np.nan), None
    if std is None:
        std = np.full_like(mean, np.nan)
    return {"mean": mean, "truth": exam.truth, "std": np.hypot(std, exam.doubt)}


def stacked(at: Sequence[int], rows: Sequence[dict[str, Any]]) -> Curves:
    """Marks by checkpoint as arrays by name."""
    return {"samples": np.array(at), **{name: np.array([row[name] for row in rows]) for name in rows[0]}}
