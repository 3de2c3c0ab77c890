"""Policy evaluation: value error and coverage of critics where the true values are known."""

from kova_rl.lab.evaluation.compare import compare
from kova_rl.lab.evaluation.estimate import evaluate_data
from kova_rl.lab.evaluation.own import evaluate
from kova_rl.lab.evaluation.protocol import evaluate_one

__all__ = ["compare", "evaluate", "evaluate_data", "evaluate_one"]
