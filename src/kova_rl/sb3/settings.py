"""What ``kova=`` takes: the settings of a filtered critic."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from kova_rl.filter.checks import check_choice, check_lr
from kova_rl.filter.covariance import Covariance, FanIn, LowRank
from kova_rl.filter.evolution import Evolution, Leakage
from kova_rl.filter.observation import BatchSize, Observation
from kova_rl.optimizer import Kova

__all__ = ["KovaSettings"]


@dataclass(frozen=True)
class KovaSettings:
    """The settings of a filtered critic. What is None is the default for the noise that is chosen.

    Args:
        covariance: What is kept of P, see :mod:`kova_rl.covariance`; None is ``LowRank(32)``.
        evolution: How P grows between updates, see :mod:`kova_rl.evolution`.
        observation: How noisy the targets are, see :mod:`kova_rl.observation`. None is the algorithm's own:
            ``MaxRatio()`` on the policy ratio of a minibatch for PPO, TRPO and A2C, ``BatchSize()`` for the
            others.
        lr: alpha, in (0, 1].
        eta: Short for ``evolution=Leakage(eta)``.
        prior: Short for ``covariance=LowRank(prior=prior)``.
        layers: ``"all"`` of the critic, or its ``"last"`` layer alone; the host's optimizer then keeps the
            others.

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
    prior: float | Mapping[str, float] | FanIn | None = None
    layers: Literal["all", "last"] = "all"

    def __post_init__(self) -> None:
        check_lr(self.lr)
        check_choice("layers", self.layers, ("all", "last"))
        for short, long, example in (
            ("eta", "evolution", "Leakage(eta)"),
            ("prior", "covariance", "LowRank(prior=prior)"),
        ):
            if getattr(self, short) is not None and getattr(self, long) is not None:
                raise ValueError(
                    f"{short} and {long} both say the same: pass one, {short} is short for {long}={example}"
                )
        if self.eta is not None:
            Leakage(self.eta)  # refuses what is out of range here, not when the critic is built
        if self.prior is not None:
            LowRank(prior=self.prior)

    @classmethod
    def of(cls, value: KovaSettings | Mapping[str, Any] | None) -> KovaSettings | None:
        """Settings from what a user passed: settings, a dict of their fields, or None."""
        if value is None or isinstance(value, cls):
            return value
        names = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping):
            raise ValueError(
                f"kova must be KovaSettings, a dict of {', '.join(names)}, or None for the host's own "
                f"optimizer, got {value!r}"
            )
        for name in value:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"kova has the fields {', '.join(names)}, got {name!r}{hint}")
        return cls(**value)

    def build(self, module: nn.Module, observation: Observation | None = None) -> Kova:
        """A filter of this module.

        Args:
            module: The critic, or its last layer.
            observation: The algorithm's own noise, for when none was chosen; None is ``BatchSize()``.
        """
        evolution, covariance = self.evolution, self.covariance
        if self.eta is not None:
            evolution = Leakage(self.eta)
        if self.prior is not None:
            covariance = LowRank(prior=self.prior)
        noise = self.observation or observation or BatchSize()
        return Kova(module, lr=self.lr, covariance=covariance, evolution=evolution, observation=noise)
