r"""Observation noise ``P_n``: how noisy each target is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NoiseNotPositiveDefinite, NonFiniteBatch
from kova_rl.filter.checks import check_choice, check_fraction, check_positive
from kova_rl.filter.step import State

__all__ = [
    "Adaptive",
    "BatchSize",
    "Correlated",
    "ImportanceWeighted",
    "MaxRatio",
    "Observation",
    "PerSample",
    "Robust",
    "kernel",
]

Inputs = Mapping[str, Tensor]


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

    def observe(self, memory: State, innovation: Tensor, predicted_variance: Tensor) -> None:  # noqa: B027
        """Learn from an update just made. Only called where ``learns`` is true."""

    learns: bool = False
    """Whether ``observe`` does anything."""


@dataclass(frozen=True)
class BatchSize(Observation):
    """``N I``: a whole batch is worth one observation of unit noise (the paper's *batch-size*)."""

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        return torch.full_like(innovation, innovation.shape[0])


@dataclass(frozen=True)
class MaxRatio(Observation):
    r"""Noisier where the new policy finds the action unlikely (the paper's *max-ratio*).

    With ``ratio = pi_new/pi_old``, the diagonal is

    .. math::
        \text{code:}\ N \max\Big(1, \frac{1}{\text{ratio} + \epsilon}\Big), \qquad
        \text{paper:}\ N \max\Big(1, \frac{1}{1/\text{ratio} + \epsilon}\Big).

    The paper prints the second; the authors' released code computes the first, which is the sensible
    direction and the default here.

    Args:
        eps: Keeps the noise finite.
        convention: ``"code"`` or ``"paper"``.
    """

    eps: float = 1e-5
    convention: Literal["code", "paper"] = "code"

    inputs = ("ratio",)

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)
        check_choice("convention", self.convention, ("code", "paper"))

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        ratio = _vector("ratio", inputs, innovation, at_least=0.0)
        if self.convention == "paper":
            ratio = 1 / ratio  # infinite where the ratio is 0, and its inverse 0 again
        return len(innovation) * (1 / (ratio + self.eps)).clamp(min=1.0)


@dataclass(frozen=True)
class PerSample(Observation):
    """``diag(variance)``: a variance for each target, in the targets' units squared. No factor N."""

    inputs = ("variance",)
    unit_free = False

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        return _vector("variance", inputs, innovation, above=0.0)


@dataclass(frozen=True)
class ImportanceWeighted(Observation):
    """``N / clip(weight)``: a sample of importance weight w counts as w samples.

    Args:
        floor: Weights below it count as much as it does.
    """

    floor: float = 1e-3

    inputs = ("weight",)

    def __post_init__(self) -> None:
        check_positive("floor", self.floor)

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        weight = _vector("weight", inputs, innovation, at_least=0.0)
        return len(innovation) / weight.clamp(min=self.floor)


@dataclass(frozen=True)
class Correlated(Observation):
    """Targets that are noisy together: a full N x N matrix, passed to ``step`` as ``covariance=``.

    :func:`kernel` builds one from the states.
    """

    inputs = ("covariance",)
    unit_free = False

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        matrix = torch.as_tensor(inputs["covariance"]).detach().to(innovation)
        n = len(innovation)
        if matrix.shape != (n, n):
            raise InvalidBatch(
                f"covariance must be {n} x {n}, one row a sample, got shape {tuple(matrix.shape)}"
            )
        if not torch.isfinite(matrix).all():
            raise NonFiniteBatch("covariance has NaN or infinite entries. Nothing was changed.")
        if not torch.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6 * float(matrix.abs().max())):
            raise NoiseNotPositiveDefinite("covariance must be symmetric. Nothing was changed.")
        if torch.linalg.cholesky_ex(matrix).info.item():
            raise NoiseNotPositiveDefinite(
                f"covariance must be positive definite; its smallest eigenvalue is "
                f"{float(torch.linalg.eigvalsh(matrix)[0]):.3g}. Nothing was changed. Add a little "
                "to its diagonal."
            )
        return matrix


@dataclass(frozen=True)
class Adaptive(Observation):
    r"""Learns one variance from earlier innovations, so that nobody has to know it:

    .. math:: r = \max\big(\text{floor} \cdot \overline{\delta^2},\;
        \overline{\delta^2 - h' P^- h}\big), \qquad P_n = r I,

    with running means (bars) over the updates already made. It needs a filter that is tracked: with
    ``Memoryless`` the expected variance never falls, r ends at its floor, and the steps blow up.

    Args:
        initial: The variance before the first batch, in the targets' units squared.
        decay: Of the running means; ``1/(1 - decay)`` updates are averaged.
        floor: Least share of the innovations that is taken as noise.
    """

    initial: float = 1.0
    decay: float = 0.99
    floor: float = 1e-3

    unit_free = False
    learns = True

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_fraction("decay", self.decay)
        check_positive("floor", self.floor)

    def init(self, like: Tensor) -> State:
        return {"variance": like.new_full((), self.initial), "squared": like.new_zeros(())}

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        learned = torch.maximum(memory["squared"] * self.floor, memory["variance"])
        tiny = torch.finfo(innovation.dtype).tiny ** 0.5  # all targets met exactly
        return learned.clamp(min=tiny).expand_as(innovation)

    def observe(self, memory: State, innovation: Tensor, predicted_variance: Tensor) -> None:
        squared = innovation.square().mean()
        memory["squared"].lerp_(squared, 1 - self.decay)
        memory["variance"].lerp_(squared - predicted_variance.mean(), 1 - self.decay)


@dataclass(frozen=True)
class Robust(Observation):
    r"""Takes outliers for noise: multiplies the variances of ``base`` by ``1 + z^2/c^2``.

    ``z`` is the innovation over its running standard deviation, so that an innovation of ``c``
    deviations counts half, and one of ``10 c`` a hundredth.

    Args:
        c: Where an innovation begins to look like an outlier, in standard deviations.
        base: The noise of a sample that is none.
        decay: Of the running variance, to which an innovation contributes at most ``c`` deviations. What
            clipping takes from a Gaussian's variance is put back.
    """

    c: float = 3.0
    base: Observation = field(default_factory=BatchSize)
    decay: float = 0.99

    learns = True

    def __post_init__(self) -> None:
        check_positive("c", self.c)
        check_fraction("decay", self.decay)
        if not isinstance(self.base, Observation):
            raise ValueError(f"base must be an observation noise, got {self.base!r}")

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.base.inputs

    @property
    def unit_free(self) -> bool:  # type: ignore[override]
        return self.base.unit_free

    def init(self, like: Tensor) -> State:
        return {"variance": like.new_zeros(()), "base": self.base.init(like)}

    def _scale(self, memory: State, innovation: Tensor) -> Tensor:
        """The running variance; that of the batch before the first, or if most of the batch is far out.

        What most of a batch is cannot be an outlier: then it is the scale that has changed.
        """
        known, squares = memory["variance"], innovation.square()
        changed = len(squares) >= 5 and bool(squares.median() > max(self.c, 3.0) ** 2 * known)
        return squares.mean() if changed or not known > 0 else known

    def covariance(self, memory: State, innovation: Tensor, inputs: Inputs) -> Tensor:
        base = self.base.covariance(memory["base"], innovation, inputs)
        tiny = torch.finfo(innovation.dtype).tiny ** 0.5
        scale = self._scale(memory, innovation).clamp(min=tiny)
        factor = 1 + innovation.square() / (self.c**2 * scale)
        if base.ndim == 1:
            return base * factor
        return base * factor.sqrt() * factor.sqrt()[:, None]

    def observe(self, memory: State, innovation: Tensor, predicted_variance: Tensor) -> None:
        scale = self._scale(memory, innovation)
        limit = self.c * scale.sqrt()
        clipped = innovation.clamp(-limit, limit)
        typical = clipped.square().mean() / _clipped_variance(self.c)
        memory["variance"].copy_(torch.lerp(scale, typical, 1 - self.decay))
        self.base.observe(memory["base"], clipped, predicted_variance)


def _clipped_variance(c: float) -> float:
    """Mean square of a standard normal number that is clipped at c deviations."""
    inside = math.erf(c / math.sqrt(2))
    return inside - c * math.sqrt(2 / math.pi) * math.exp(-c * c / 2) + c * c * (1 - inside)


def kernel(
    states: Tensor,
    lengthscale: float | None = None,
    variance: float = 1.0,
    correlation: float = 0.5,
) -> Tensor:
    r"""A covariance for :class:`Correlated`: targets of near-by states err together.

    .. math:: K_{ij} = \sigma^2 \Big(\rho\, e^{-|s_i - s_j|^2 / 2 \ell^2} + (1-\rho) [i = j]\Big),

    which is positive definite for every ``rho < 1``, duplicate states included.

    Args:
        states: N x anything.
        lengthscale: l; None takes the median distance between different states.
        variance: sigma^2, in the targets' units squared.
        correlation: rho, what two equal states share, in [0, 1).

    Example:
        >>> import torch
        >>> from kova_rl import observation
        >>> observation.kernel(torch.tensor([[0.0], [0.0]]))
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """
    check_positive("variance", variance)
    check_fraction("correlation", correlation)
    if states.ndim < 1 or len(states) == 0:
        raise InvalidBatch(f"states must be N x anything, got shape {tuple(states.shape)}")
    flat = states.detach().reshape(len(states), -1)
    if not flat.is_floating_point():
        flat = flat.to(torch.get_default_dtype())
    distance = torch.cdist(flat, flat)
    if lengthscale is None:
        apart = distance[distance > 0]
        lengthscale = float(apart.median()) if len(apart) else 1.0
    check_positive("lengthscale", lengthscale)
    shared = torch.exp(-distance.square() / (2 * lengthscale**2)).mul_(correlation)
    shared.diagonal().fill_(1.0)
    return shared.mul_(variance)


def _vector(
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
