"""The command ``kova info``."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from kova_rl.lab.backends import cores
from kova_rl.lab.versions import versions

__all__ = ["Info"]


@dataclass
class Info:
    """Print versions and the system, for a bug report."""

    def run(self) -> None:
        """Print them."""
        found = versions() | {"torch": torch.__version__, "system": platform.platform(), "cores": cores()}
        for name, value in found.items():
            print(f"{name} {'not installed' if value is None else value}")
