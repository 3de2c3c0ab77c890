"""Modules of the user's, which register environments."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

__all__ = ["import_module"]


def import_module(name: str, expected: str) -> None:
    """Import a module of the user's, which may be in the folder that the command is called from.

    Args:
        name: Of the module.
        expected: How the error begins, such as "--import must name a module".
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except (ImportError, TypeError) as error:  # TypeError of a name that begins with a dot
        meant = Path(name).stem
        hint = f"; did you mean {meant}?" if meant != name and meant.isidentifier() else ""
        raise ValueError(f"{expected} that Python finds, got {name!r} ({error}){hint}") from None
