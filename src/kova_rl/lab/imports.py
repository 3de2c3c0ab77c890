"""Modules of the user's, which register environments, and libraries that may not be installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

__all__ = ["import_module", "require_sb3"]


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


def require_sb3(what: str) -> None:
    """Raise ``ValueError`` if Stable-Baselines3 is not installed, before anything is begun.

    Args:
        what: Needs it, such as "training".
    """
    if not all(importlib.util.find_spec(name) for name in ("stable_baselines3", "sb3_contrib")):
        raise ValueError(f"{what} needs Stable-Baselines3 and sb3-contrib: pip install 'kova-rl[sb3]'")
