"""What every covariance structure can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kova_rl.filter.change import Change
from kova_rl.filter.checks import check_dtype, check_positive
from kova_rl.filter.evidence import Evidence, Jacobian
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update

ANY = None
"""Works at any size."""
SMALL = 512
"""Works where no block is larger than this: a step inverts each block."""

Accepted = Mapping[type[Change], int | None]


@dataclass(frozen=True)
class FanIn:
    """Prior variance ``scale / fan_in`` for weights and ``scale`` for biases.

    ``P_0 = I`` makes ``h'P_0 h`` grow with the width of the network, so that a wide critic takes
    bolder steps than a narrow one. With this prior it is about the same at any width, and one
    setting serves all of them.

    Example:
        >>> from kova_rl import covariance
        >>> covariance.LowRank(rank=32, prior=covariance.FanIn(1.0))
        LowRank(rank=32, prior=FanIn(scale=1.0), dtype=None)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive("FanIn's scale", self.scale)


Prior = float | Mapping[str, float] | FanIn


class Spread(NamedTuple):
    """``H' P H``, of which most callers want the diagonal only. Later updates change neither."""

    variances: Tensor
    """Its diagonal, N."""
    joint: Callable[[], Tensor]
    """Computes all of it, N x N."""

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Spread:
        """``left' right``."""
        return cls((left * right).sum(0), partial(torch.mm, left.T, right))


class Covariance(ABC):
    """Structure of the covariance P of the weights: what is kept of it, and how it is updated.

    A structure is a setting without state. ``init`` returns the state, a dict of tensors, and the
    other methods take it. All work in coordinates whitened by the prior, so that ``P_0 = I``.

    Args:
        prior: Variance of every weight before the first batch. One number, a dict from the name of
            a layer (as in ``module.named_modules()``) to its number, or :class:`FanIn`.
        dtype: ``torch.float32``, ``torch.float64``, or None for that of the weights.
    """

    prior: Prior
    dtype: torch.dtype | None

    tracked: ClassVar[bool] = True
    """Whether P is carried from one update to the next, so that it is a posterior."""
    factored: ClassVar[bool] = False
    """Whether a step needs the factors of H in each layer, so that all weights must be ``nn.Linear``'s."""

    accepts: ClassVar[Accepted]
    """The kinds of change that :meth:`step` can make of P, and the largest block for which it can."""

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        if isinstance(self.prior, FanIn):
            return
        if isinstance(self.prior, Mapping):
            if not self.prior:
                raise ValueError("prior must name at least one layer, got an empty dict")
            for name, value in self.prior.items():
                check_positive(f"prior[{name!r}]", value)
        else:
            check_positive("prior", self.prior)

    def largest_block(self, segments: Sequence[Segment]) -> int:
        """The size of the largest matrix that a step may have to invert."""
        return 0

    def work(self, segments: Sequence[Segment], n: int) -> float:
        """About how many operations a step with n samples takes beyond its gradients; 0 for few."""
        return 0.0

    @abstractmethod
    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        """The state for ``P = P_0``, on the device and of the dtype of ``like``, for changes of one kind."""

    @abstractmethod
    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        """Predict with ``change`` and update with ``evidence``."""

    @abstractmethod
    def variances(self, state: State) -> Tensor:
        """The diagonal of P, of length d."""

    @abstractmethod
    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        """``H' P H`` of predictions."""

    @abstractmethod
    def draw(self, state: State, normal: Tensor) -> Tensor:
        """A draw from N(0, P), made of the d independent standard normal numbers ``normal``."""
