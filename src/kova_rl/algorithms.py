"""The algorithms: what each is called, whose it is, and what its critic's noise is.

Imports nothing, so that names can be checked where Stable-Baselines3 is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALGORITHMS", "FOREIGN", "Algorithm"]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of :mod:`kova_rl.sb3`."""

    ours: str
    """Our class."""
    host: str | None
    """The package of the class that it extends, which has the algorithm's name; None if it is our own."""
    noise: str | None = None
    """The observation noise that it has by itself, in :mod:`kova_rl.lab.spec`'s words; None is Kova's."""
    replayed: bool = False
    """Whether it learns from a replay buffer."""
    loops: bool = False
    """Whether its critic has a loop of its own through each rollout."""
    filtered: bool = True
    """Whether its critic can be filtered."""


SB3, CONTRIB = "stable_baselines3", "sb3_contrib"
ALGORITHMS = {
    "a2c": Algorithm("KovaA2C", SB3, "max-ratio", loops=True),
    "acktr": Algorithm("ACKTR", None, filtered=False),
    "ddpg": Algorithm("KovaDDPG", SB3, replayed=True),
    "dqn": Algorithm("KovaDQN", SB3, replayed=True),
    "ppo": Algorithm("KovaPPO", SB3, "max-ratio", loops=True),
    "sac": Algorithm("KovaSAC", SB3, replayed=True),
    "td3": Algorithm("KovaTD3", SB3, replayed=True),
    "trpo": Algorithm("KovaTRPO", CONTRIB, "max-ratio", loops=True),
}
"""By the name that ``kova train`` takes."""
FOREIGN = dict.fromkeys(("ARS", "CrossQ", "QRDQN", "TQC"), CONTRIB)
"""Algorithms whose policies can be evaluated, and whose critics can't be filtered, with their package."""
