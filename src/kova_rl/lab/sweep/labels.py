"""What runs are called before people: without the hash, and with the settings that tell them apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kova_rl.lab.run import Run

__all__ = ["differences", "labels"]


def differences(runs: Sequence[Run]) -> dict[str, str]:
    """By the run's name, the settings in which it differs from runs that have all but the hash in common.

    Example:
        >>> from kova_rl.lab.training.config import RunConfig
        >>> runs = [RunConfig("ppo", "CartPole-v1", eta=eta) for eta in (0.1, 0.01)]
        >>> list(differences(runs).values())
        ['eta=0.1', 'eta=0.01']
    """
    alike = defaultdict(list)
    for run in runs:
        alike[_plain(run)].append(run)
    out = {}
    for group in alike.values():
        flat = [run.flat() for run in group]
        keys = dict.fromkeys(key for values in flat for key in values)
        told = [key for key in keys if any(values.get(key) != flat[0].get(key) for values in flat)]
        for run, values in zip(group, flat, strict=True):
            out[run.name] = " ".join(f"{key}={_text(values.get(key))}" for key in told)
    return out


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """By the run's name, what it is called in a table."""
    found = differences(runs)
    return {run.name: f"{_plain(run).replace('_', ' ')} {found[run.name]}".rstrip() for run in runs}


def _plain(run: Run) -> str:
    return run.name.rpartition("_")[0]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
