"""What ``kova=`` takes: the settings of a filtered critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from kova_rl.filter.checks import check_choice, check_lr
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.linear import is_linear
from kova_rl.optimizer import Kova
from kova_rl.parameters import uncompiled
from kova_rl.shorthand import chosen
from kova_rl.value_loop import ValueLoop

__all__ = ["KovaSettings"]


@dataclass(frozen=True)
class KovaSettings(ValueLoop):
    """The settings of a filtered critic. What is None is the default of :class:`~kova_rl.Kova`, but:

    ====================  =========================  ============================================
    DQN, DDPG, TD3, SAC   ``Leakage(0.1)``           targets move with the policy
    PPO, TRPO             ``Leakage(0.01)``,         they do so rollout by rollout, and rewards
                          ``prior=FanIn()``          are usually normalised
    A2C                   ``MaxRatio()``,            batches of a few steps say little of a noise
                          ``Leakage(0.1)``
    ====================  =========================  ============================================

    Args:
        covariance: What is kept of P, see :mod:`kova_rl.covariance`.
        evolution: How P grows between updates, see :mod:`kova_rl.evolution`.
        observation: How noisy the targets are, see :mod:`kova_rl.observation`. With one that has no unit, as
            the paper's ``MaxRatio()``, the default is ``Leakage(0.1)`` and ``prior=1.0``.
        lr: alpha, in (0, 1].
        eta: Short for the default evolution with this ``eta``, as in ``Kova``.
        prior: Short for the default covariance with this ``prior``, as in ``Kova``.
        layers: ``"all"`` of the critic, or its ``"last"`` layer alone; the host's optimizer then keeps the
            others.
        value_passes: And the other settings of the critic's loop, for PPO, TRPO and A2C: see
            :class:`~kova_rl.sb3.ValueLoop`.

    Raises:
        ValueError: A setting out of range, both ``eta`` and ``evolution``, or both ``prior`` and
            ``covariance``.

    Example:
        >>> KovaSettings.of({"eta": 0.01}).eta
        0.01
    """

    covariance: Covariance | None = None
    evolution: Evolution | None = None
    observation: Observation | None = None
    lr: float = 1.0
    eta: float | None = None
    prior: Prior | None = None
    layers: Literal["all", "last"] = "all"

    argument = "kova"
    otherwise = "optimizer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lr(self.lr)
        check_choice("layers", self.layers, ("all", "last"))
        # Refuses what is out of range, or said twice, here and not when the critic is built.
        chosen(self.covariance, self.evolution, self.observation, self.eta, self.prior)

    def build(self, module: nn.Module, use: str) -> Kova:
        """A filter of this module.

        Args:
            module: The critic, or its last layer.
            use: What it learns from; see :func:`kova_rl.defaults.settle`.
        """
        said = (self.covariance, self.evolution, self.observation, self.eta, self.prior)
        return Kova(module, self.lr, *chosen(*said, linear=is_linear(uncompiled(module)), use=use))
