"""One run: a task, a condition, a critic and a seed make curves of error and coverage."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kova_rl.filter.checks import check_whole
from kova_rl.lab.evaluation.critics import Critic, Problem, build
from kova_rl.lab.evaluation.network import Make
from kova_rl.lab.evaluation.tasks import Task, phases
from kova_rl.lab.evaluation.transitions import Array
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


def coverage(mean: Array, std: Array | None, truth: Array) -> Array:
    """Share of the true values within the central 50, 80 and 95% intervals; NaN without deviations."""
    if std is None:
        return np.full(len(LEVELS), np.nan)
    z = np.abs(truth - mean) / np.maximum(std, np.finfo(np.float64).tiny)
    return np.array([np.mean(z <= NormalDist().inv_cdf((1 + level) / 2)) for level in LEVELS])


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
        task: ``chain``, ``grid`` or ``boyan``.
        condition: ``on-policy``, ``off-policy``, ``deterministic`` or ``switch``.
        critic: A name of ``critics.CRITICS``, or a function of the network that returns its optimizer, such
            as ``Kova`` itself.
        seed: Of the samples, the replay and the network.
        samples: How many transitions are seen; a network makes an update every 8.
        setting: Of what is tuned of a named critic; None for its first choice.
        tick: Called with the samples seen since the last call.

    Returns:
        ``samples`` (C,), the checkpoints; ``error`` (C,), root mean square over the states; ``coverage``
        (C, 3) of the 50, 80 and 95% intervals and ``nees`` (C,), the mean of (error / std)^2, NaN
        without deviations; and of the end, over the states, ``mean``, ``std`` and ``truth``.

    Example:
        >>> from kova_rl import Kova
        >>> curves = evaluate_one("boyan", "on-policy", Kova, seed=0, samples=800)
        >>> bool(curves["error"][-1] < curves["error"][0])
        True
    """
    parts = phases(task, condition)
    check_whole("samples", samples, least=STEP * len(parts))
    first = parts[0]
    problem = Problem(
        first.features.shape[1], first.gamma, seed, condition == "off-policy", condition == "switch"
    )
    learner = build(critic, problem, setting)
    return _run(parts, learner, looks(samples, len(parts)), seed, tick or (lambda n: None))


def _run(parts: tuple[Task, ...], critic: Critic, at: list[int], seed: int, tick: Tick) -> Curves:
    walker, seen, rows = Walker(parts[0], np.random.default_rng([seed, 0])), 0, []
    for part, task in enumerate(parts):
        walker.enter(task)
        truth = task.values()
        for look in at[part * len(at) // len(parts) : (part + 1) * len(at) // len(parts)]:
            while seen < look:
                critic.observe(walker.walk(STEP))
                seen += STEP
                tick(STEP)
            mean, std = critic.mean_std(task.features)
            rows.append(_score(mean, std, truth))
    curves = {"samples": np.array(at), **{k: np.array([row[k] for row in rows]) for k in rows[0]}}
    end = {"mean": mean, "truth": truth, "std": np.full_like(mean, np.nan) if std is None else std}
    return curves | end


def _score(mean: Array, std: Array | None, truth: Array) -> dict[str, Any]:
    error = mean - truth
    nees = np.nan if std is None else np.mean((error / np.maximum(std, 1e-300)) ** 2)
    return {
        "error": np.sqrt(np.mean(error**2)),
        "coverage": coverage(mean, std, truth),
        "nees": nees,
    }
