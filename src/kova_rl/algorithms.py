"""The algorithms: what each is called, whose it is, and what its critic learns from.

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
    use: str | None
    """What its critic learns from, in the words of :mod:`kova_rl.defaults`; None if it can't be filtered."""

    @property
    def filtered(self) -> bool:
        """Whether its critic can be filtered."""
        return self.use is not None

    @property
    def loops(self) -> bool:
        """Whether its critic has a loop of its own through each rollout."""
        return self.use in ("rollouts", "steps")


SB3, CONTRIB = "stable_baselines3", "sb3_contrib"
ALGORITHMS = {
    "a2c": Algorithm("KovaA2C", SB3, "steps"),
    "acktr": Algorithm("ACKTR", None, None),
    "ddpg": Algorithm("KovaDDPG", SB3, "replay"),
    "dqn": Algorithm("KovaDQN", SB3, "replay"),
    "ppo": Algorithm("KovaPPO", SB3, "rollouts"),
    "sac": Algorithm("KovaSAC", SB3, "replay"),
    "td3": Algorithm("KovaTD3", SB3, "replay"),
    "trpo": Algorithm("KovaTRPO", CONTRIB, "rollouts"),
}
"""By the name that ``kova train`` takes."""
FOREIGN = dict.fromkeys(("ARS", "CrossQ", "QRDQN", "TQC"), CONTRIB)
"""Algorithms whose policies can be evaluated, and whose critics can't be filtered, with their package."""
