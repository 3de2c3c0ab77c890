"""Stable-Baselines3's algorithms with filtered critics. The only part that imports Stable-Baselines3."""

# ruff: noqa: E402  (what is missing is said before the imports that need it)

try:
    import sb3_contrib
    import stable_baselines3
except ImportError as error:
    raise ImportError(
        "kova_rl.sb3 needs Stable-Baselines3 and sb3-contrib: pip install 'kova-rl[sb3]'"
    ) from error
del sb3_contrib, stable_baselines3

from kova_rl.sb3.a2c import KovaA2C
from kova_rl.sb3.acktr import ACKTR
from kova_rl.sb3.ddpg import KovaDDPG, KovaTD3
from kova_rl.sb3.dqn import KovaDQN
from kova_rl.sb3.exploration import Exploration, Optimism, Thompson
from kova_rl.sb3.ppo import KovaPPO
from kova_rl.sb3.sac import KovaSAC
from kova_rl.sb3.settings import KovaSettings
from kova_rl.sb3.trpo import KovaTRPO
from kova_rl.value_loop import ValueLoop

__all__ = [
    "ACKTR",
    "Exploration",
    "KovaA2C",
    "KovaDDPG",
    "KovaDQN",
    "KovaPPO",
    "KovaSAC",
    "KovaSettings",
    "KovaTD3",
    "KovaTRPO",
    "Optimism",
    "Thompson",
    "ValueLoop",
]
