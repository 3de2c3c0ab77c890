"""Names and values that a user gives: refused if they are not known, with the nearest one that is."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from typing import Any

__all__ = ["assignment", "check_name"]


def check_name(what: str, name: object, valid: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``name`` is one of these, and say which is nearest.

    Example:
        >>> check_name("critic", "kovva", ("adam", "kova"))
        Traceback (most recent call last):
        ValueError: critic must be one of adam, kova, got 'kovva'; did you mean kova?
    """
    known = sorted(valid)
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}{hint}")


def assignment(option: str, text: str) -> tuple[str, Any]:
    """``name=value``, with a value as TOML has it; what is none is a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{option} must be name=value, got {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if value.startswith("["):
            raise ValueError(
                f'{option}: {text!r} is no list; quote its strings, such as \'{name}=["a", "b"]\''
            ) from None
        return name, value
