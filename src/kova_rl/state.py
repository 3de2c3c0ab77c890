"""Saving and loading the filter's state: tensors, numbers and strings, checked before they are used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kova_rl.errors import StateMismatch
from kova_rl.filter.checks import check_lr
from kova_rl.filter.covariance import Covariance
from kova_rl.parameters import Parameters

FORMAT = 1


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


def pack(
    memory: dict[str, Any], group: dict[str, Any], parameters: Parameters, structure: Covariance
) -> dict[str, Any]:
    """The state dict, in the shape that ``torch.optim`` has."""
    settings = {key: value for key, value in group.items() if key != "params"}
    return {
        "state": {0: copied(memory)},
        "param_groups": [{**settings, "params": list(range(len(parameters.tensors)))}],
        "kova": {"format": FORMAT, **_identity(parameters, structure)},
    }


def unpack(
    state_dict: dict[str, Any], memory: dict[str, Any], parameters: Parameters, structure: Covariance
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The memory and the group's settings, or ``StateMismatch`` before anything is touched."""
    missing = [key for key in ("state", "param_groups", "kova") if key not in state_dict]
    if missing:
        raise StateMismatch(
            f"not a state dict of Kova: {', '.join(missing)} missing (was it another optimizer's?)"
        )
    saved = state_dict["kova"]
    if saved.get("format") != FORMAT:
        raise StateMismatch(f"state dict of format {saved.get('format')}, this version reads {FORMAT}")
    for key, mine in _identity(parameters, structure).items():
        if saved.get(key) != mine:
            raise StateMismatch(f"{key}: the state dict has {saved.get(key)}, this Kova has {mine}")
    if set(state_dict["state"]) != {0} or len(state_dict["param_groups"]) != 1:
        raise StateMismatch("not a state dict of Kova: it must have one state and one parameter group")
    loaded = state_dict["state"][0]
    _check_tree(loaded, memory, "state")
    settings = {key: value for key, value in state_dict["param_groups"][0].items() if key != "params"}
    check_lr(float(settings["lr"]), allow_zero=True)
    return copied(moved(loaded, parameters.tensors[0].device)), settings


def _identity(parameters: Parameters, structure: Covariance) -> dict[str, Any]:
    """What must agree for the numbers of a state to mean the same."""
    return {
        "covariance": type(structure).__name__,
        "parameters": {
            name: list(p.shape) for name, p in zip(parameters.names, parameters.tensors, strict=True)
        },
        "prior": parameters.priors,
    }


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
    elif not isinstance(loaded, int | float):
        raise StateMismatch(f"{path}: the state dict has {loaded!r}, this Kova has {mine!r}")
