"""Saving and loading the filter's state: tensors, numbers and strings, checked before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from kova_rl.errors import StateMismatch
from kova_rl.filter.checks import check_lr
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.parameters import Parameters

FORMAT = 4


def moved(tree: Any, device: torch.device) -> Any:
    """A tree of dicts with its tensors on another device."""
    if isinstance(tree, dict):
        return {key: moved(value, device) for key, value in tree.items()}
    return tree.to(device) if isinstance(tree, Tensor) else tree


def copied(tree: Any) -> Any:
    """A tree of dicts with its tensors copied, each with a storage of its own."""
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return tree.detach().clone() if isinstance(tree, Tensor) else tree


def identity(
    parameters: Parameters, structure: Covariance, evolution: Evolution, observation: Observation
) -> dict[str, Any]:
    """What must agree for the numbers of a state to mean the same.

    The numbers of the settings (eta, decay ...) may change when a state is loaded, as in ``torch.optim``:
    they say what happens next, not what has been learned. The prior may not: it is the unit of the state.
    """
    return {
        "covariance": type(structure).__name__,
        "parameters": {
            name: list(p.shape) for name, p in zip(parameters.names, parameters.tensors, strict=True)
        },
        "prior": parameters.priors,
        "evolution": type(evolution).__name__,
        "observation": _kind(observation),
    }


def _kind(observation: Observation) -> str:
    """The class of a noise, with what is chosen in it by a word or by another noise."""
    chosen = []
    names: list[str] = [field.name for field in fields(observation)] if is_dataclass(observation) else []
    for name in names:
        value = getattr(observation, name)
        if isinstance(value, Observation | str):
            chosen.append(f"{name}={_kind(value) if isinstance(value, Observation) else repr(value)}")
    return f"{type(observation).__name__}({', '.join(chosen)})"


def pack(memory: dict[str, Any], group: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """The state dict, in the shape that ``torch.optim`` has; ``mine`` is the :func:`identity`."""
    settings = {key: value for key, value in group.items() if key != "params"}
    return {
        "state": {0: copied(memory)},
        "param_groups": [{**settings, "params": list(range(len(mine["parameters"])))}],
        "kova": {"format": FORMAT, **mine},
    }


def unpack(
    state_dict: dict[str, Any],
    memory: dict[str, Any],
    mine: dict[str, Any],
    variances: Callable[[dict[str, Any]], Tensor],
    device: torch.device,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The memory and the group's settings, or ``StateMismatch`` before anything is touched.

    Args:
        state_dict: What :func:`pack` made.
        memory: That of the optimizer, whose keys, shapes and dtypes the state must have.
        mine: The :func:`identity` of the optimizer.
        variances: The diagonal of a covariance's state.
        device: Where the tensors go.
    """
    missing = [key for key in ("state", "param_groups", "kova") if key not in state_dict]
    if missing:
        raise StateMismatch(
            f"not a state dict of Kova: {', '.join(missing)} missing (was it another optimizer's?)"
        )
    saved = state_dict["kova"]
    if saved.get("format") != FORMAT:
        raise StateMismatch(f"state dict of format {saved.get('format')}, this version reads {FORMAT}")
    for key, value in mine.items():
        if saved.get(key) != value:
            raise StateMismatch(f"{key}: the state dict has {saved.get(key)}, this Kova has {value}")
    if set(state_dict["state"]) != {0} or len(state_dict["param_groups"]) != 1:
        raise StateMismatch("not a state dict of Kova: it must have one state and one parameter group")
    _check_tree(state_dict["state"][0], memory, "state")
    loaded = copied(moved(state_dict["state"][0], device))
    _check_numbers(loaded, variances)
    settings = {key: value for key, value in state_dict["param_groups"][0].items() if key != "params"}
    check_lr(float(settings["lr"]), allow_zero=True)
    return loaded, settings


def _check_numbers(loaded: dict[str, Any], variances: Callable[[dict[str, Any]], Tensor]) -> None:
    """Refuse numbers that no filter could have come to: they would fail, or teach nonsense, steps later."""
    for key in ("step", "jitters", "nis"):
        if loaded[key] < 0:
            raise StateMismatch(f"state.{key}: the state dict has {loaded[key]}, which can't be below 0")
    if loaded["covariance"]:
        try:
            found = variances(loaded["covariance"])
            good = bool((found > 0).all()) and bool(torch.isfinite(found).all())
        except RuntimeError:  # of a factorisation
            good = False
        if not good:
            raise StateMismatch(
                "state.covariance: the state dict has variances that are not above 0, or not finite: it is "
                "damaged. Load an earlier one"
            )


def _check_tree(loaded: Any, mine: Any, path: str) -> None:
    if isinstance(mine, dict):
        if not isinstance(loaded, dict) or loaded.keys() != mine.keys():
            has = sorted(loaded) if isinstance(loaded, dict) else type(loaded).__name__
            raise StateMismatch(
                f"{path}: the state dict has {has}, this Kova has {sorted(mine)} (another noise?)"
            )
        for key, value in mine.items():
            _check_tree(loaded[key], value, f"{path}.{key}")
    elif isinstance(mine, Tensor):
        if not isinstance(loaded, Tensor) or loaded.shape != mine.shape or loaded.dtype != mine.dtype:
            got = f"{loaded.dtype} {tuple(loaded.shape)}" if isinstance(loaded, Tensor) else repr(loaded)
            raise StateMismatch(
                f"{path}: the state dict has {got}, this Kova has {mine.dtype} {tuple(mine.shape)}"
            )
        if not bool(torch.isfinite(loaded).all()):
            raise StateMismatch(f"{path}: the state dict has NaN or infinite numbers: it is damaged")
    elif not isinstance(loaded, type(mine) if isinstance(mine, int) else int | float):
        raise StateMismatch(f"{path}: the state dict has {loaded!r}, this Kova has {mine!r}")
    elif not math.isfinite(loaded):
        raise StateMismatch(f"{path}: the state dict has {loaded!r}: it is damaged")
