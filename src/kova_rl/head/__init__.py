"""A critic's last layer solved in closed form, with error bars that hold where targets bootstrap."""

from kova_rl.head.head import Head
from kova_rl.head.lstd import solve
from kova_rl.head.solution import Solution
from kova_rl.head.stream import Stream

__all__ = ["Head", "Solution", "Stream", "solve"]
