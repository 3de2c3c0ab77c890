"""A sweep's file: settings of runs, in which lists multiply out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from kova_rl.lab import spec
from kova_rl.lab.sweep.presets import read_toml, resolve, shipped_sweep, sweep_names
from kova_rl.lab.training.config import LISTS, STRATEGIES, RunConfig, check_fields, unflatten

__all__ = ["expand", "read_sweep"]

EXTRA = ("grid", "search")


def read_sweep(name: str) -> dict[str, Any]:
    """A TOML file, or a sweep that comes with the package, by its name."""
    if name in sweep_names() and not Path(name).exists():
        return shipped_sweep(name)
    if not name.endswith(".toml") and not Path(name).exists():
        return shipped_sweep(name)  # refuses, with the nearest name
    return read_toml(Path(name))


def expand(
    values: Mapping[str, Any], where: str, overrides: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """The runs of a sweep, each once, in the file's order.

    Args:
        values: Settings; each list in them multiplies the runs. ``[[grid]]`` tables are multiplied out each
            by itself, with the settings outside them.
        where: What is said in errors, the file's name.
        overrides: Settings that win over the file's; lists multiply out too.

    Raises:
        ValueError: A mistake in any of the runs: nothing runs then.

    Example:
        >>> runs = expand({"algorithm": "ppo", "environment": "CartPole-v1", "seed": [0, 1]}, "example")
        >>> [run.seed for run in runs]
        [0, 1]
    """
    common = {key: value for key, value in values.items() if key not in EXTRA}
    grids = values.get("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, Mapping) for grid in grids):
        raise ValueError(f"{where}: grid must be tables, [[grid]]")
    runs: dict[str, RunConfig] = {}
    for number, grid in enumerate(grids, start=1):
        place = f"{where}, [[grid]] {number}" if "grid" in values else where
        chosen = _layered(common, grid, overrides or {})
        check_fields(unflatten(chosen), place)
        for one in _product(chosen, place):
            run = resolve(one, place)
            runs.setdefault(run.name, run)
    if not runs:
        raise ValueError(f"{where} has no runs: is a list in it empty?")
    return list(runs.values())


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, so that a list in a table multiplies out too. Later layers win; another strategy wins whole."""
    out: dict[str, Any] = {}
    for layer in layers:
        flat = spec.flatten(layer)
        named = tuple(f"{key}." for key in flat if key in STRATEGIES)
        out = {key: value for key, value in out.items() if not key.startswith(named)} if named else out
        out |= flat
    return out


def _product(values: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    choices = []
    for key, value in values.items():
        several = isinstance(value, list)
        if key in LISTS:  # lists themselves: a list of lists multiplies out
            several = several and any(isinstance(item, list) for item in value)
        if several and not value:
            raise ValueError(f"{where}: {key} is an empty list, so there are no runs")
        choices.append(value if several else [value])
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*choices)]
