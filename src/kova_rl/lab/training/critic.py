"""The critic of a run: Kova's settings, as a file or a command line can state them."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from kova_rl import Kova
from kova_rl.algorithms import ALGORITHMS
from kova_rl.defaults import USES, settle
from kova_rl.filter.evolution import Evolution
from kova_rl.lab import spec
from kova_rl.lab.names import check_name
from kova_rl.value_loop import PASSES, ValueLoop

if TYPE_CHECKING:
    from kova_rl.lab.training.config import RunConfig

__all__ = ["CRITICS", "arguments", "check_critic", "complete"]

CRITICS = ("adam", "kfac", "kova", "memoryless")
"""kova: the tracked filter. memoryless: the paper's released code. adam: the algorithm's own optimizer.
kfac: ACKTR, whose natural gradient moves the critic too."""
SHORT = {"eta": "evolution", "rank": "covariance", "prior": "covariance"}
"""Settings that are short for one of a strategy's."""
FILTER = ("lr", *SHORT, *spec.STRATEGIES)
"""The settings that only filtered critics have."""


def check_critic(config: RunConfig) -> None:
    """Raise ``ValueError`` for a critic that is not known, or settings that it does not have."""
    check_name("critic", config.critic, CRITICS)
    if ALGORITHMS[config.algorithm].filtered == (config.critic == "kfac"):
        raise ValueError(
            f"the critic kfac belongs to acktr, and to it alone, got {config.critic} for {config.algorithm}"
        )
    loop = _loop(config)
    given = [name for name in FILTER if getattr(config, name) is not None]
    if config.critic in ("adam", "kfac"):
        if given:
            other = " (Adam's is learning_rate)" if "lr" in given else ""
            raise ValueError(
                f"the critic {config.critic} has no {', '.join(given)}{other}, which kova and memoryless "
                "have: leave it out (in a sweep, put it into a [[grid]] of its own)"
            )
        return
    if loop is not None and loop.value_lr is not None and config.layers == "all":
        raise ValueError(
            f"loop.value_lr is a rate of Adam's, which has nothing of the critic {config.critic}: "
            "leave it out (in a sweep, put it into a [[grid]] of its own)"
        )
    kova = _filter_of(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will say it: the paper's table has an lr of 0.01
        Kova(nn.Linear(1, 1), **kova)  # numbers out of range, and what does not go together


def _loop(config: RunConfig) -> ValueLoop | None:
    """The critic's loop, checked; None if nothing is said of it."""
    if not config.loop:
        return None
    able = [name for name, algorithm in ALGORITHMS.items() if algorithm.loops]
    if config.algorithm not in able:
        raise ValueError(f"loop belongs to {', '.join(able)}, got {config.algorithm}: leave it out")
    for name in config.loop:
        check_name("loop: a setting", name, [each.name for each in fields(ValueLoop)])
    try:
        return ValueLoop(**config.loop)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"loop: {error}") from None


def arguments(config: RunConfig) -> dict[str, Any]:
    """What the algorithm takes for its critic: ``kova=``, and ``value=`` if its own optimizer has a loop."""
    if not ALGORITHMS[config.algorithm].filtered:
        return {}
    if config.critic == "adam":
        return {"kova": None} | ({"value": dict(config.loop)} if config.loop else {})
    kova = _filter_of(config)
    return {"kova": {**kova, "layers": config.layers, **_settled(config, kova["evolution"])}}


def _settled(config: RunConfig, evolution: Evolution) -> dict[str, Any]:
    """The loop of a filter, with its default written out, so that a later one is another run."""
    once = ALGORITHMS[config.algorithm].loops and evolution.tracked and config.layers == "all"
    return ({"value_passes": PASSES} if once else {}) | dict(config.loop)


def _filter_of(config: RunConfig) -> dict[str, Any]:
    """What ``Kova`` takes."""
    tables = {what: _table(config, what) for what in spec.STRATEGIES}
    built: dict[str, Any] = {
        what: spec.build(what, table) if table else None for what, table in tables.items()
    }
    use = ALGORITHMS[config.algorithm].use or "batches"
    if tables["covariance"] and "prior" not in tables["covariance"]:  # then it is the default's here too
        usual, _, _ = settle(None, built["evolution"], built["observation"], use=use)
        built["covariance"] = replace(built["covariance"], prior=usual.prior)
    strategies = dict(zip(built, settle(**built, use=use), strict=True))
    return {**strategies, "lr": 1.0 if config.lr is None else config.lr}


def _table(config: RunConfig, what: str) -> dict[str, Any]:
    """A strategy's table, with what was said short; empty leaves it to Kova."""
    given = getattr(config, what)
    table = {spec.KIND: given} if isinstance(given, str) else dict(given or {})
    short = {name: getattr(config, name) for name, of in SHORT.items() if of == what}
    short = {name: value for name, value in short.items() if value is not None}
    for name in short:
        if name in table:
            raise ValueError(f"{name} and {what}.{name} both say the same: leave one out")
    table = {**_default(config, what, said=bool(table or short)), **table}
    if not table:
        return {}
    check_name(what, table[spec.KIND], spec.kinds(what))
    if what == "evolution" and config.critic == "memoryless" and table[spec.KIND] != "memoryless":
        raise ValueError(f"the critic memoryless has the evolution memoryless, got {table[spec.KIND]!r}")
    for name in short:
        takers = [kind for kind, cls in spec.kinds(what).items() if name in spec.settings(cls)]
        if table[spec.KIND] not in takers:
            belongs = f"{name} belongs to the {what} {', '.join(takers)}"
            raise ValueError(f"{belongs}, got {table[spec.KIND]!r}: leave {name} out")
    return table | short


def _default(config: RunConfig, what: str, said: bool) -> dict[str, Any]:
    """The kind where none was named; none if nothing at all was said, and Kova may choose."""
    if what == "observation":
        default = USES[ALGORITHMS[config.algorithm].use or "batches"]
        noise = default.observation(config.critic != "memoryless")
        return {spec.KIND: spec.hyphened(type(noise).__name__)} if said else {}
    if config.critic == "memoryless":
        return {spec.KIND: {"covariance": "isotropic", "evolution": "memoryless"}[what]}
    structure = "kronecker" if config.rank is None else "low-rank"
    return {spec.KIND: {"covariance": structure, "evolution": "leakage"}[what]} if said else {}


def complete(config: RunConfig) -> dict[str, Any]:
    """The filter's settings with the defaults written out; what can be said short is."""
    if config.critic in ("adam", "kfac"):
        return {}
    kova = _filter_of(config)
    out: dict[str, Any] = {"lr": kova["lr"], **dict.fromkeys(SHORT)}
    for what in spec.STRATEGIES:
        table = spec.table(kova[what])
        out |= {name: table.pop(name) for name, of in SHORT.items() if of == what and name in table}
        known = {key: value for key, value in table.items() if value is not None}
        out[what] = known[spec.KIND] if len(known) == 1 else known
    out["loop"] = _settled(config, kova["evolution"])
    prior = out["prior"]
    if isinstance(prior, dict) and prior == {spec.KIND: "fan-in", "scale": 1.0}:
        out["prior"] = "fan-in"
    return out
