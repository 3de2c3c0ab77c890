"""Making an environment by its name, or saying in words why not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium

__all__ = ["make_env"]


def make_env(name: str, options: Mapping[str, Any] | None = None) -> gymnasium.Env[Any, Any]:
    """The registered environment of this name.

    Args:
        name: Any Gymnasium id.
        options: Arguments of ``gymnasium.make``.

    Raises:
        ValueError: No such environment, a package that it needs is missing, or an option that it has not.
    """
    try:
        return gymnasium.make(name, **(options or {}))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is not installed: {error}") from None
    except (gymnasium.error.Error, ImportError) as error:
        near = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}? If it is your own, " if near else ""
        raise ValueError(
            f"environment must be registered with Gymnasium, got {name!r} ({error}); {hint}name the "
            "module that registers it: --import MODULE"
        ) from None
    except TypeError as error:
        raise ValueError(
            f"{name} does not take environment_options {dict(options or {})} ({error})"
        ) from None
