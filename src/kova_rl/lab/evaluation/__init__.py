"""Policy evaluation: value error and coverage of critics where the true values are known."""

from kova_rl.lab.evaluation.own import evaluate
from kova_rl.lab.evaluation.protocol import evaluate_one

__all__ = ["evaluate", "evaluate_one"]
