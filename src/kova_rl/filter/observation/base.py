"""What every observation noise can do, and the checks that they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch
from kova_rl.filter.step import State

Inputs = Mapping[str, Tensor]
Gram = Callable[[], Tensor]


class Observation(ABC):
    """How noisy the targets of a batch are. A setting without state, as structures are."""

    inputs: tuple[str, ...] = ()
    """Keywords that ``Kova.step`` must be given."""
    unit_free: bool = True
    """Whether the noise does not know the unit of the rewards, so that std must be scaled to it."""

    def init(self, like: Tensor) -> State:
        """What the noise itself remembers; most remember nothing."""
        return {}

    @abstractmethod
    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        """P_n of a batch: N variances, or an N x N matrix."""

    def observe(  # noqa: B027
        self, memory: State, innovation: Tensor, predicted_variance: Tensor, gram: Gram | None = None
    ) -> None:
        """Learn from an update just made. Only called where ``learns`` is true.

        Args:
            memory: What :meth:`init` gave, to be changed.
            innovation: Targets less predictions.
            predicted_variance: What the filter expected of them without noise, the diagonal of ``H' P- H``.
            gram: Computes ``H' P_0 H``, what the prior expects, for those who ask.
        """

    def valid(self, memory: State) -> float:
        """The share of what was learned that still holds, in (0, 1]: less than 1 after a surprise."""
        return 1.0

    learns: bool = False
    """Whether ``observe`` does anything."""


def vector_of(
    name: str,
    inputs: Inputs,
    innovation: Tensor,
    *,
    at_least: float | None = None,
    above: float | None = None,
) -> Tensor:
    """One number a sample, checked."""
    values = torch.as_tensor(inputs[name]).detach().to(innovation)
    if values.shape != innovation.shape:
        raise InvalidBatch(
            f"{name} must have one number a sample, shape {tuple(innovation.shape)}, "
            f"got shape {tuple(values.shape)}"
        )
    least = float(values.min()) if values.numel() else math.inf
    bound = at_least if at_least is not None else above or 0.0
    fine = least >= bound if at_least is not None else least > bound
    if fine and math.isfinite(float(values.sum())):  # the usual case, with few calls
        return values
    if not torch.isfinite(values).all():
        bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
        raise NonFiniteBatch(
            f"{name} is not finite for {len(bad)} of {len(values)} samples (first: sample {bad[0]}, "
            f"{float(values[bad[0]])}). Nothing was changed."
        )
    too_low = values < at_least if at_least is not None else values <= (above or 0.0)
    if too_low.any():
        expected = f"at least {at_least:g}" if at_least is not None else f"above {above or 0.0:g}"
        worst = int(values.argmin())
        raise InvalidBatch(
            f"{name} must be {expected}; sample {worst} has {float(values[worst]):g}. Nothing was changed."
        )
    return values
