"""Strategies as plain tables, and back: ``{ kind = "robust", c = 2.0 }`` is ``observation.Robust(c=2.0)``.

What there is follows from what the packages export, and what can be set from the fields of its dataclass:
nothing is listed here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, get_type_hints

import torch

from kova_rl import covariance, evolution, observation
from kova_rl.filter.covariance.base import FanIn, Prior
from kova_rl.filter.covariance.isotropic import Isotropic
from kova_rl.lab.names import check_name

__all__ = ["KIND", "STRATEGIES", "build", "flatten", "hyphened", "kinds", "settings", "table", "unflatten"]

KIND = "kind"
"""The key of a table that names the class; it may be all there is, as in ``observation = "robust"``."""
STRATEGIES: dict[str, ModuleType] = {
    "covariance": covariance,
    "evolution": evolution,
    "observation": observation,
}


def hyphened(name: str) -> str:
    """``LowRank`` as ``low-rank``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


@cache
def kinds(what: str) -> dict[str, type]:
    """The classes of a strategy by their names.

    Example:
        >>> sorted(kinds("evolution"))[:3]
        ['directional-forgetting', 'fading-memory', 'leakage']
    """
    module = STRATEGIES[what]
    base = getattr(module, what.capitalize())
    members = [getattr(module, name) for name in module.__all__]
    members += [Isotropic] if base is covariance.Covariance else []  # of the released code
    return {
        hyphened(kind.__name__): kind
        for kind in members
        if isinstance(kind, type) and issubclass(kind, base) and not inspect.isabstract(kind)
    }


def settings(kind: Any) -> list[str]:
    """What can be set of a class."""
    return [field.name for field in dataclasses.fields(kind)]


def build(what: str, given: str | Mapping[str, Any]) -> Any:
    """The object that a name or a table describes.

    Raises:
        ValueError: A name that is not known, with the nearest one, or a value that it does not take.

    Example:
        >>> build("observation", {"kind": "robust", "c": 2, "base": "adaptive"}).base.decay
        0.99
    """
    values = {KIND: given} if isinstance(given, str) else dict(given)
    if KIND not in values:
        raise ValueError(f"{what} must say its kind, as in {{ kind = {next(iter(kinds(what)))!r} }}")
    name = values.pop(KIND)
    check_name(what, name, kinds(what))
    kind = kinds(what)[name]
    hints = get_type_hints(kind)
    named = settings(kind)
    for key in values:
        if not named:
            raise ValueError(f"{what} {name} has no settings, got {key!r}: leave it out")
        check_name(f"{what} {name}: a setting", key, named)
    arguments = {key: _value(f"{what}.{key}", value, hints[key]) for key, value in values.items()}
    return kind(**arguments)


def table(value: Any) -> Any:
    """A strategy as a table, with every field written out; what is none as it is.

    Example:
        >>> table(observation.Robust(c=2.0))
        {'kind': 'robust', 'c': 2.0, 'base': {'kind': 'batch-size'}, 'decay': 0.99}
    """
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: table(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {KIND: hyphened(type(value).__name__), **fields}


def _value(where: str, value: Any, hint: Any) -> Any:
    """A value of a table as the field wants it."""
    if isinstance(hint, type) and hint in _BASES:
        return build(_BASES[hint], value)
    if hint == Prior:
        return prior(value)
    if hint == torch.dtype | None and isinstance(value, str):
        found = getattr(torch, value, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{where} must be a type of torch, such as float64, got {value!r}")
        return found
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def prior(value: Any) -> Any:
    """P_0: a number, ``fan-in``, a table of it, or numbers by module."""
    if value == "fan-in":
        return FanIn()
    if isinstance(value, Mapping) and KIND in value:
        check_name("prior", value[KIND], ("fan-in",))
        rest = {key: part for key, part in value.items() if key != KIND}
        for key in rest:
            check_name("prior fan-in: a setting", key, settings(FanIn))
        return FanIn(**rest)
    if isinstance(value, str):
        raise ValueError(f"prior must be a number above 0 or 'fan-in', got {value!r}")
    return value


_BASES = {getattr(module, what.capitalize()): what for what, module in STRATEGIES.items()}


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as dotted keys, a table's kind under the key itself.

    Example:
        >>> flatten({"observation": {"kind": "robust", "c": 2.0}})
        {'observation': 'robust', 'observation.c': 2.0}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            if KIND in value:
                out[key] = value[KIND]
            rest = {name: part for name, part in value.items() if name != KIND}
            out |= {f"{key}.{name}": part for name, part in flatten(rest).items()}
        else:
            out[key] = value
    return out


def unflatten(values: Mapping[str, Any], strategies: tuple[str, ...] = ()) -> dict[str, Any]:
    """Dotted keys as tables; of ``strategies`` a word beside them is the table's kind."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        outer, dot, inner = key.partition(".")
        before = out.get(outer)
        if outer in strategies and isinstance(before, str) and (dot or isinstance(value, Mapping)):
            before = out[outer] = {KIND: before}
        if dot or isinstance(value, Mapping):
            if not isinstance(out.setdefault(outer, {}), dict):
                raise ValueError(f"{outer} is a value, {before!r}, and can't have {inner or 'a table'} too")
            out[outer].update({inner: value} if dot else value)
        elif isinstance(before, dict) and outer in strategies:
            before[KIND] = value
        elif isinstance(before, dict):
            raise ValueError(f"{key} is a table, {before!r}, and can't be {value!r} too")
        else:
            out[key] = value
    for key, value in out.items():
        if isinstance(value, dict):
            out[key] = unflatten(value, tuple(name.partition(".")[0] for name in value if "." in name))
    return out
