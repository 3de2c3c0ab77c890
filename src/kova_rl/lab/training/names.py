"""Refusing names that are not known, with the nearest one that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["check_name"]


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
