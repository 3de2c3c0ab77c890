"""Bayesian value learners to compare with: they import nothing but the filter."""

from kova_rl.baselines.gptd_kernel import Gaussian, KernelGPTD
from kova_rl.baselines.gptd_linear import LinearGPTD
from kova_rl.baselines.ktd import KTD, KTDInfo
from kova_rl.baselines.ktd_equations import Equation, Evaluation, Optimality, Sarsa

__all__ = [
    "KTD",
    "Equation",
    "Evaluation",
    "Gaussian",
    "KTDInfo",
    "KernelGPTD",
    "LinearGPTD",
    "Optimality",
    "Sarsa",
]
