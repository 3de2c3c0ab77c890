"""Agents that learn by a critic alone: the double Q-learning of the maze experiments.

Example:
    >>> import gymnasium, torch, kova_rl.envs
    >>> from kova_rl import Kova
    >>> from kova_rl.agents import DoubleQ, FromReplay
    >>> env = gymnasium.make("kova/Maze4-v0")
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> agent = DoubleQ(env, network, FromReplay(network, Kova(network)), seed=0)
    >>> history = agent.learn(200)
    >>> len(history) > 0
    True
"""

from kova_rl.agents.double_q import DoubleQ, History, Settings
from kova_rl.agents.learners import FromReplay, Learner, OneTransition
from kova_rl.agents.replay import Replay, Transition, Transitions

__all__ = [
    "DoubleQ",
    "FromReplay",
    "History",
    "Learner",
    "OneTransition",
    "Replay",
    "Settings",
    "Transition",
    "Transitions",
]
