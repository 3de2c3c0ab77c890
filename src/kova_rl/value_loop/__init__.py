"""The critic's own loop of an on-policy algorithm: what it learns from a rollout, and how often."""

from kova_rl.value_loop.learning import Learner, Passes
from kova_rl.value_loop.rollout import Estimate, Rollout, in_chunks, rows_of
from kova_rl.value_loop.settings import PASSES, ValueLoop
from kova_rl.value_loop.solved import solve_head

__all__ = [
    "PASSES",
    "Estimate",
    "Learner",
    "Passes",
    "Rollout",
    "ValueLoop",
    "in_chunks",
    "rows_of",
    "solve_head",
]
