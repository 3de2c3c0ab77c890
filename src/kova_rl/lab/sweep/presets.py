"""Presets: settings of a run for each table of the paper, by algorithm, critic and environment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kova_rl.lab import spec
from kova_rl.lab.names import check_name
from kova_rl.lab.training.config import RunConfig, check_fields, unflatten
from kova_rl.lab.training.critic import CRITICS

__all__ = ["load", "preset_names", "read_toml", "resolve", "shipped_sweep", "sweep_names"]

FOLDER = resources.files("kova_rl.lab.sweep") / "toml"


def preset_names() -> tuple[str, ...]:
    """The presets that come with the package."""
    return tuple(sorted(each.name[:-5] for each in FOLDER.iterdir() if each.name.endswith(".toml")))


def sweep_names() -> tuple[str, ...]:
    """The sweeps that come with the package."""
    return tuple(sorted(each.name[:-5] for each in (FOLDER / "sweeps").iterdir()))


def shipped_sweep(name: str) -> dict[str, Any]:
    """A sweep that comes with the package."""
    check_name("sweep", name, sweep_names())
    return tomllib.loads((FOLDER / "sweeps" / f"{name}.toml").read_text())


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file of the user's.

    Raises:
        ValueError: It is not there, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


@cache
def load(name: str) -> dict[str, Any]:
    """A preset by its name, or from a file that ends with .toml; checked.

    Raises:
        ValueError: No such preset, or one with a mistake in it.
    """
    if name.endswith(".toml"):
        found = read_toml(Path(name))
    else:
        check_name("preset", name, preset_names())
        found = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    where = f"preset {name}"
    for key in found:
        if key in {each.name for each in fields(RunConfig)} - {"critic", "environment"}:
            raise ValueError(f"{where}: {key} is a setting of runs, which go into [run]")
        check_name(f"{where}: a table", key, ("critic", "environment", "run", "title"))
    for key in ("run", "critic", "environment"):
        _check_table(found, key, where)
    check_fields(found.get("run", {}), f"{where}, [run]")
    critics = found.get("critic", {})
    for critic, values in critics.items():
        _check_table(critics, critic, f"{where}, [critic]")
        check_name(f"{where}: a critic", critic, CRITICS)
        check_fields(values, f"{where}, [critic.{critic}]")
        RunConfig.of(settings(found, critic, "any"), f"{where}, [critic.{critic}]")
    for environment, values in found.get("environment", {}).items():
        _check_table(found["environment"], environment, f"{where}, [environment]")
        plain = {key: value for key, value in values.items() if key not in critics}
        check_fields(plain, f"{where}, [environment.{environment}]")
        for critic in critics:
            _check_table(values, critic, f"{where}, [environment.{environment}]")
            RunConfig.of(settings(found, critic, environment), f"{where}, {environment} with {critic}")
    return found


def _check_table(values: Mapping[str, Any], key: str, where: str) -> None:
    if not isinstance(values.get(key, {}), Mapping):
        raise ValueError(f"{where}: {key} must be a table, got {values[key]!r}; settings go into [run]")


def settings(preset: Mapping[str, Any], critic: str, environment: str) -> dict[str, Any]:
    """The general settings, then the critic's, then the environment's, then those of both."""
    special = preset.get("environment", {}).get(environment, {})
    critics = preset.get("critic", {})
    layers = (
        preset.get("run", {}),
        critics.get(critic, {}),
        {key: value for key, value in special.items() if key not in critics},
        special.get(critic, {}),
    )
    return {**_merged(layers), "environment": environment, "critic": critic}


def resolve(values: Mapping[str, Any], where: str = "the configuration") -> RunConfig:
    """A run from its settings, which win over those of the preset that they name.

    Raises:
        ValueError: A setting or a preset that is not known, or a value out of range.
    """
    given = unflatten(values)
    check_fields(given, where)
    name = given.get("preset")
    if name is None:
        return RunConfig.of(given, where)
    if not isinstance(name, str):
        raise ValueError(f"{where}: preset must be the name of one, got {name!r}")
    preset = load(name)
    meant = preset.get("run", {}).get("algorithm")
    if meant is not None and given.get("algorithm", meant) != meant:
        raise ValueError(f"{where}: preset {name} is for {meant}, got algorithm {given['algorithm']!r}")
    given["preset"] = Path(name).name  # wherever the file is, the run is the same
    critics = tuple(preset.get("critic") or CRITICS)
    critic = given.get("critic", "kova" if "kova" in critics else critics[0])
    check_name(f"{where}: the critic in preset {name}", critic, critics)
    if "environment" not in given:
        raise ValueError(f"{where} must say environment, for example environment = 'Swimmer-v5'")
    base = settings(preset, critic, str(given["environment"]))
    if critic == "kova" and given.get("observation", base.get("observation")) != base.get("observation"):
        base = {key: value for key, value in base.items() if key not in ("evolution", "eta")}  # go with it
    return RunConfig.of(_merged((base, given)), where)


def _merged(layers: Any) -> dict[str, Any]:
    """Later layers win; tables are merged key by key, but for a strategy of another kind."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in unflatten(layer).items():
            before = out.get(key, {})
            if isinstance(value, Mapping) and spec.KIND not in value:
                value = {**({spec.KIND: before} if isinstance(before, str) else before), **value}
            out[key] = value
    return out
