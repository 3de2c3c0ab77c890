"""Checks of settings, made when an object is built. Each says what was expected and what came."""

import math
from numbers import Integral, Real
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64)


def check_real(name: str, value: Any, expected: str, ok: bool) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number for which ``ok`` holds."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and ok):
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _compare(value: Any, test: Any) -> bool:
    return isinstance(value, Real) and bool(test(value))


def check_eta(eta: Any) -> None:
    """The forgetting factor: ``0 <= eta < 1``."""
    check_fraction("eta", eta)


def check_lr(lr: Any, *, allow_zero: bool = False) -> None:
    """The step size alpha: ``0 < lr <= 1``; a scheduler may take it down to 0."""
    expected = "a number in [0, 1]" if allow_zero else "a number in (0, 1]"
    low_enough = _compare(lr, lambda x: x <= 1 and (x >= 0 if allow_zero else x > 0))
    check_real("lr", lr, expected, low_enough)


def check_positive(name: str, value: Any) -> None:
    check_real(name, value, "a number above 0", _compare(value, lambda x: x > 0))


def check_fraction(name: str, value: Any) -> None:
    check_real(name, value, "a number in [0, 1)", _compare(value, lambda x: 0 <= x < 1))


def check_whole(name: str, value: Any, least: int) -> None:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_dtype(dtype: Any) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise ValueError(
            f"dtype must be torch.float32, torch.float64 or None (the weights' own), got {dtype!r}"
        )
