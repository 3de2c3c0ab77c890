"""Stable-Baselines3's algorithms with filtered critics. The only part that imports Stable-Baselines3."""

from kova_rl.sb3.a2c import KovaA2C
from kova_rl.sb3.acktr import ACKTR
from kova_rl.sb3.ddpg import KovaDDPG, KovaTD3
from kova_rl.sb3.dqn import KovaDQN
from kova_rl.sb3.exploration import Exploration, Optimism, Thompson
from kova_rl.sb3.ppo import KovaPPO
from kova_rl.sb3.sac import KovaSAC
from kova_rl.sb3.settings import KovaSettings
from kova_rl.sb3.trpo import KovaTRPO

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
]
