"""The critics of a run: Kova's settings by name, so that a file or a command line can state them."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.defaults import settle
from kova_rl.filter.covariance.isotropic import Isotropic
from kova_rl.lab.training.names import check_name

if TYPE_CHECKING:
    from kova_rl.lab.training.config import RunConfig

__all__ = [
    "COVARIANCES",
    "CRITICS",
    "EVOLUTIONS",
    "FILTER",
    "OBSERVATIONS",
    "check_critic",
    "kova_of",
    "named",
]

CRITICS = ("adam", "kfac", "kova", "memoryless")
"""kova: the tracked filter. memoryless: the paper's released code. adam: the algorithm's own optimizer.
kfac: ACKTR, whose natural gradient moves the critic too."""

FILTER = ("lr", "eta", "covariance", "rank", "evolution", "observation", "prior")
"""The settings that only filtered critics have."""

COVARIANCES: dict[str, type[covariance.Covariance]] = {
    "diagonal": covariance.Diagonal,
    "full": covariance.Full,
    "isotropic": Isotropic,
    "kronecker": covariance.Kronecker,
    "layer-blocks": covariance.LayerBlocks,
    "low-rank": covariance.LowRank,
    "neuron-blocks": covariance.NeuronBlocks,
}
EVOLUTIONS: dict[str, type[evolution.Evolution]] = {
    "directional-forgetting": evolution.DirectionalForgetting,
    "fading-memory": evolution.FadingMemory,
    "leakage": evolution.Leakage,
    "memoryless": evolution.Memoryless,
    "prior-anchored": evolution.PriorAnchored,
    "stationary": evolution.Stationary,
    "variable-leakage": evolution.VariableLeakage,
}
OBSERVATIONS: dict[str, type[observation.Observation]] = {
    "adaptive": observation.Adaptive,
    "batch-size": observation.BatchSize,
    "importance-weighted": observation.ImportanceWeighted,
    "max-ratio": observation.MaxRatio,
    "robust": observation.Robust,
}


REPLAYED = ("dqn", "ddpg", "sac")
"""Algorithms that learn from a replay buffer."""
MAX_RATIO = ("a2c", "ppo", "trpo")
"""Algorithms whose targets have a policy ratio, from which the paper takes the noise."""


def check_critic(config: RunConfig) -> None:
    """Raise ``ValueError`` for a critic that is not known, or settings that it does not have."""
    check_name("critic", config.critic, CRITICS)
    if (config.algorithm == "acktr") != (config.critic == "kfac"):
        raise ValueError(
            f"the critic kfac belongs to acktr, and to it alone, got {config.critic} for {config.algorithm}"
        )
    given = [name for name in FILTER if getattr(config, name) is not None]
    if config.critic in ("adam", "kfac"):
        if given:
            other = " (Adam's is learning_rate)" if "lr" in given else ""
            raise ValueError(
                f"the critic {config.critic} has no {', '.join(given)}{other}, which kova and memoryless "
                "have: leave it out (in a sweep, put it into a [[grid]] of its own)"
            )
        return
    for what, table in (
        ("covariance", COVARIANCES),
        ("evolution", EVOLUTIONS),
        ("observation", OBSERVATIONS),
    ):
        if getattr(config, what) is not None:
            check_name(what, getattr(config, what), table)
    if config.critic == "memoryless" and config.evolution not in (None, "memoryless"):
        raise ValueError(f"the critic memoryless has the evolution memoryless, got {config.evolution!r}")
    if isinstance(config.prior, str) and config.prior != "fan-in":
        raise ValueError(f"prior must be a number above 0 or 'fan-in', got {config.prior!r}")
    if config.rank is not None and config.covariance not in (None, "low-rank"):
        raise ValueError(
            f"rank belongs to the covariance low-rank, got {config.covariance!r}: leave rank out"
        )
    if config.eta is not None and config.evolution == "stationary":
        raise ValueError("the evolution stationary forgets nothing and has no eta: leave eta out")
    kova = kova_of(config)
    assert kova is not None
    kova.pop("layers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will say it: the paper's table has an lr of 0.01
        Kova(nn.Linear(1, 1), **kova)  # numbers out of range, and what does not go together


def objects(config: RunConfig) -> tuple[Any, Any, Any]:
    """Covariance, evolution and observation; what the configuration leaves open is Kova's default."""
    noise = None if config.observation is None else OBSERVATIONS[config.observation]()
    evolved: Any = None
    name = "memoryless" if config.critic == "memoryless" else config.evolution
    if name is None and config.eta is not None:
        name = "leakage"
    if name is not None:
        evolved = EVOLUTIONS[name](**({} if config.eta is None else {"eta": config.eta}))
    given = config.covariance or ("isotropic" if config.critic == "memoryless" else None)
    if given is None and config.rank is not None:
        given = "low-rank"
    if noise is None and config.algorithm in MAX_RATIO:
        noise = observation.MaxRatio()
    kept = None if given is None else COVARIANCES[given]()
    structure, evolved, noise = settle(kept, evolved, noise, replayed=config.algorithm in REPLAYED)
    changes: dict[str, Any] = {} if config.rank is None else {"rank": config.rank}
    if config.prior is not None:
        changes["prior"] = covariance.FanIn() if config.prior == "fan-in" else config.prior
    return replace(structure, **changes), evolved, noise  # type: ignore[type-var]


def kova_of(config: RunConfig) -> dict[str, Any] | None:
    """What the algorithm takes as ``kova=``; None keeps its own optimizer."""
    if config.critic in ("adam", "kfac"):
        return None
    structure, evolved, noise = objects(config)
    return {
        "covariance": structure,
        "evolution": evolved,
        "observation": noise,
        "lr": 1.0 if config.lr is None else config.lr,
        "layers": config.layers,
    }


def named(config: RunConfig) -> dict[str, Any]:
    """The filter's settings with the defaults written out, so that a later default is another run."""
    kova = kova_of(config)
    if kova is None:
        return {}
    structure, evolved, noise = kova["covariance"], kova["evolution"], kova["observation"]
    prior = "fan-in" if isinstance(structure.prior, covariance.FanIn) else structure.prior
    has = {field.name for kind in (structure, evolved) for field in fields(kind)}
    return {
        "lr": kova["lr"],
        "covariance": _name(structure, COVARIANCES),
        "evolution": _name(evolved, EVOLUTIONS),
        "observation": _name(noise, OBSERVATIONS),
        "prior": prior,
        "rank": structure.rank if "rank" in has else None,
        "eta": evolved.eta if "eta" in has else None,
    }


def _name(value: object, table: dict[str, Any]) -> str:
    return next(name for name, kind in table.items() if kind is type(value))
