"""What to compare with, Bayesian value learners and ACKTR's optimizer: they import nothing but the filter."""

from kova_rl.baselines.gptd_kernel import Gaussian, KernelGPTD
from kova_rl.baselines.gptd_linear import LinearGPTD
from kova_rl.baselines.kfac import KFAC, KFACInfo
from kova_rl.baselines.ktd import KTD, KTDInfo
from kova_rl.baselines.ktd_equations import Equation, Evaluation, Optimality, Sarsa

__all__ = [
    "KFAC",
    "KTD",
    "Equation",
    "Evaluation",
    "Gaussian",
    "KFACInfo",
    "KTDInfo",
    "KernelGPTD",
    "LinearGPTD",
    "Optimality",
    "Sarsa",
]
