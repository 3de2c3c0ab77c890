"""The settings of a filter as people write them: objects, or a number for one of the defaults."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from kova_rl.defaults import settle
from kova_rl.filter import covariance as covariances
from kova_rl.filter import evolution as evolutions
from kova_rl.filter import observation as observations
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation

__all__ = ["chosen", "where_it_belongs"]

KINDS: dict[str, ModuleType] = {
    "covariance": covariances,
    "evolution": evolutions,
    "observation": observations,
}


def chosen(
    covariance: Covariance | None = None,
    evolution: Evolution | None = None,
    observation: Observation | None = None,
    eta: float | None = None,
    prior: Prior | None = None,
    linear: bool = True,
    use: str = "batches",
) -> tuple[Covariance, Evolution, Observation]:
    """What is given, and the defaults for the rest, with ``eta`` in the evolution's or ``prior`` in P's.

    For ``linear`` and ``use`` see :func:`kova_rl.defaults.settle`.

    Raises:
        ValueError: A setting of the wrong kind or out of range, both ``eta`` and ``evolution``, or both
            ``prior`` and ``covariance``.
    """
    kept, grows, noise = settle(covariance, evolution, observation, linear, use)
    if eta is not None:
        grows = _with("evolution", evolution, grows, "eta", eta)
    if prior is not None:
        kept = _with("covariance", covariance, kept, "prior", prior)
    return kept, grows, noise


def _with(kind: str, given: object, default: Any, name: str, value: Any) -> Any:
    """The default with one number of it changed, unless the object itself was given."""
    example = f"{kind}={kind}.{type(default).__name__}({name}={value!r})"
    if given is not None:
        raise ValueError(
            f"{name} and {kind} both say the same: pass one. {name}={value!r} alone says {example}"
        )
    return dataclasses.replace(default, **{name: value})


def where_it_belongs(names: Iterable[str], known: Sequence[str]) -> str:
    """A sentence on arguments that ``Kova`` does not have: how to write them, or what it does have.

    Args:
        names: The arguments that came.
        known: Those that are taken.
    """
    defaults = dict(zip(KINDS, settle(None, None, None), strict=True))
    parts = []
    for name in names:
        ways = []
        for kind, module in KINDS.items():
            members = [type(defaults[kind]), *(getattr(module, member) for member in module.__all__)]
            takers = [member for member in members if name in getattr(member, "__dataclass_fields__", ())]
            if takers:
                ways.append(f"{kind}={kind}.{takers[0].__name__}({name}=...)")
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f" (did you mean {near[0]}?)" if near else ""
        parts.append(f"{name!r} is written {' or '.join(ways)}" if ways else f"there is no {name!r}{hint}")
    return f"{'; '.join(parts)}. There are {', '.join(known)}"
