"""Loading a model that Stable-Baselines3 saved."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

__all__ = ["load"]

ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")


def load(path: Path, algorithm: str) -> Any:
    """The model in this file, on the CPU.

    Args:
        path: What ``model.save`` wrote.
        algorithm: The class that saved it: A2C, DDPG, DQN, PPO, SAC or TD3.

    Raises:
        ValueError: No such algorithm or file, or the file is of another algorithm.
    """
    name = algorithm.upper()
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}{hint}")
    found = next((p for p in (path, path.with_name(path.name + ".zip")) if p.is_file()), None)
    if found is None:
        raise ValueError(f"policy must be a model that model.save() wrote, got {path}, which is not there")
    try:
        import stable_baselines3
    except ImportError:
        raise ValueError("models need Stable-Baselines3: pip install 'kova-rl[sb3]'") from None
    try:
        return getattr(stable_baselines3, name).load(found, device="cpu")
    except Exception as error:  # whatever a foreign or damaged file raises
        raise ValueError(
            f"{found} could not be loaded as a model of {name} ({type(error).__name__}: {error}). "
            "Name the algorithm that saved it: --algorithm"
        ) from None
