"""What a run runs with: versions, and the git revision of the code."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import kova_rl

__all__ = ["versions"]

PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "mujoco")


@cache
def _found() -> tuple[tuple[str, Any], ...]:
    found: dict[str, Any] = {"kova-rl": kova_rl.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["machine"] = platform.machine()
    found["git"] = _revision()
    return tuple(found.items())


def versions() -> dict[str, Any]:
    """By name; None for what is not installed, and for the git revision of an installed package."""
    return dict(_found())


def _revision() -> str | None:
    folder = Path(kova_rl.__file__).resolve().parent
    if not (folder.parent.parent / ".git").exists():
        return None
    ask = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
