"""What ``kova=`` takes: the settings of a filtered critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from kova_rl.filter.checks import check_choice, check_lr
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.linear import is_linear
from kova_rl.optimizer import Kova
from kova_rl.shorthand import chosen, where_it_belongs

__all__ = ["KovaSettings"]


@dataclass(frozen=True)
class KovaSettings:
    """The settings of a filtered critic. What is None is the default of :class:`~kova_rl.Kova`.

    Args:
        covariance: What is kept of P, see :mod:`kova_rl.covariance`.
        evolution: How P grows between updates, see :mod:`kova_rl.evolution`.
        observation: How noisy the targets are, see :mod:`kova_rl.observation`. None is learned, as in
            ``Kova``, but for PPO, TRPO and A2C: there it is ``MaxRatio()`` on the ratio of the policies,
            because several passes over one rollout would learn too small a noise; ``Leakage(0.1)`` and the
            fan-in prior go with it.
        lr: alpha, in (0, 1].
        eta: Short for the default evolution with this ``eta``, as in ``Kova``.
        prior: Short for the default covariance with this ``prior``, as in ``Kova``.
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
    prior: Prior | None = None
    layers: Literal["all", "last"] = "all"

    def __post_init__(self) -> None:
        check_lr(self.lr)
        check_choice("layers", self.layers, ("all", "last"))
        # Refuses what is out of range, or said twice, here and not when the critic is built.
        chosen(self.covariance, self.evolution, self.observation, self.eta, self.prior)

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
        unknown = [str(name) for name in value if name not in names]
        if unknown:
            raise ValueError(f"kova: {where_it_belongs(unknown, names)}")
        return cls(**value)

    def build(self, module: nn.Module, on_policy: bool = False) -> Kova:
        """A filter of this module.

        Args:
            module: The critic, or its last layer.
            on_policy: Whether the algorithm passes over each rollout several times, which has defaults of its
                own.
        """
        linear = self.covariance is None and is_linear(module)
        kept, grows, noise = chosen(
            self.covariance, self.evolution, self.observation, self.eta, self.prior, linear, on_policy
        )
        return Kova(module, self.lr, kept, grows, noise)
