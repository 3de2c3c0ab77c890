r"""GPTD with a kernel, on a dictionary of states that grows only when it must."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kova_rl.baselines.gptd import GPTD, Basis
from kova_rl.baselines.gptd_input import finite_features
from kova_rl.errors import InvalidBatch, NotPositiveDefinite, StateMismatch
from kova_rl.filter.checks import check_positive, check_real, check_whole

__all__ = ["Gaussian", "KernelGPTD"]

Kernel = Callable[[Tensor, Tensor], Tensor]
CHUNK = 256


@dataclass(frozen=True)
class Gaussian:
    r"""``k(x, y) = scale exp(-|x - y|^2 / (2 length^2))``: values of near-by states are alike.

    Args:
        scale: Prior variance of a value.
        length: How far apart states are before their values have little to do with each other.

    Example:
        >>> import torch
        >>> from kova_rl.baselines.gptd_kernel import Gaussian
        >>> Gaussian(scale=2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [9.0]])).round(decimals=4)
        tensor([[2., 0.]])
    """

    scale: float = 1.0
    length: float = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        check_positive("length", self.length)

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        dtype = left.dtype if left.is_floating_point() else torch.float64
        a, b = (x.reshape(len(x), math.prod(x.shape[1:])).to(dtype) / self.length for x in (left, right))
        # differences, not the expanded square, which would lose the digits that near-by states differ in
        distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        return distance.square().mul_(-0.5).exp_().mul_(self.scale)


@dataclass(frozen=True)
class _Dictionary(Basis):
    """m states and the Cholesky factor L of their kernel; a state's features are ``L^-1 k(x)``."""

    kernel: Kernel
    threshold: float
    capacity: int | None
    points: Tensor | None
    factor: Tensor

    scale = 1.0

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.points is None else tuple(self.points.shape[1:])

    def __len__(self) -> int:
        return len(self.factor)

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        found = self.kernel(left, right)
        if found.shape != (len(left), len(right)):
            raise InvalidBatch(
                f"kernel must give shape ({len(left)}, {len(right)}), got {tuple(found.shape)}. "
                "Nothing was changed."
            )
        return finite_features("kernel", found, self.factor.dtype)

    def features(self, states: Tensor) -> Tensor:
        if self.points is None:
            return self.factor.new_zeros(len(states), 0)
        with_points = self(self.points, self._own(states))
        solved: Tensor = torch.linalg.solve_triangular(self.factor, with_points, upper=False)
        return solved.T

    def leftover(self, states: Tensor, features: Tensor) -> Tensor:
        own = self._own(states)
        parts = [self(part, part).diagonal() for part in own.split(CHUNK)] if len(own) else []
        return torch.cat([self.factor.new_zeros(0), *parts]) - features.square().sum(1)

    def leftover_covariance(self, states: Tensor, features: Tensor) -> Tensor:
        own = self._own(states)
        return self(own, own) - features @ features.T

    def extended(self, state: Tensor) -> tuple[_Dictionary, Tensor]:
        own = self._own(state[None])
        row = self.features(own)[0]
        delta = float(self.leftover(own, row[None]))
        whole = delta + float(row.dot(row))
        eps = torch.finfo(row.dtype).eps
        if whole < 0 or delta < -max(1e-6, math.sqrt(eps)) * whole:
            raise NotPositiveDefinite(
                f"kernel must be positive definite, but a state has a conditional variance of {delta:.3g} "
                f"given the dictionary, of {whole:.3g}. Nothing was changed."
            )
        rounding = 8 * (len(self) + 1) * eps * whole
        enough = self.threshold if len(self) else 0.0
        full = self.capacity is not None and len(self) >= self.capacity
        if full or delta <= max(enough, rounding):
            return self, row
        row = torch.cat([row, row.new_tensor([math.sqrt(delta)])])
        factor = torch.zeros(len(row), len(row), dtype=row.dtype)
        factor[:-1, :-1], factor[-1] = self.factor, row
        points = own.clone() if self.points is None else torch.cat([self.points, own])
        return replace(self, points=points, factor=factor), row

    def state_dict(self) -> dict[str, Any]:
        if self.points is None:
            return {}
        return {"points": self.points.clone(), "factor": self.factor.clone()}

    def loaded(self, saved: Mapping[str, Any]) -> tuple[_Dictionary, int]:
        if "prior" in saved or ("points" in saved) != ("factor" in saved):
            raise StateMismatch("the state dict is not of a KernelGPTD. Nothing was loaded.")
        if "points" not in saved:
            return replace(self, points=None, factor=self.factor.new_zeros(0, 0)), 0
        points, factor = saved["points"].clone(), saved["factor"].to(self.factor.dtype).clone()
        if factor.shape != (len(points), len(points)):
            raise StateMismatch(
                f"factor must have shape {(len(points), len(points))}, got {tuple(factor.shape)}. "
                "Nothing was loaded."
            )
        fresh = replace(self, points=points, factor=factor)
        own = fresh(points, points)
        tolerance = 1e3 * len(points) * torch.finfo(factor.dtype).eps * float(own.abs().max())
        if not torch.allclose(factor @ factor.T, own, rtol=0.0, atol=tolerance):
            raise StateMismatch("the state dict is of another kernel. Nothing was loaded.")
        return fresh, len(points)

    def _own(self, states: Tensor) -> Tensor:
        """Floats in the dtype of the computation; whole numbers stay what they are."""
        return states.to(self.factor.dtype) if states.is_floating_point() else states


class KernelGPTD(GPTD):
    r"""Gaussian process temporal differences with a kernel and a sparse dictionary.

    .. math:: V \sim GP(0, k), \qquad r_t = V(x_t) - \gamma V(x_{t+1}) + N_t,

    with V = 0 after a terminal state, and the two noises of
    :class:`~kova_rl.baselines.gptd_linear.LinearGPTD`. A state joins the dictionary unless it is
    approximately linearly dependent on it: with K the kernel matrix of the dictionary and k(x) the vector
    of the kernel of x with its members,

    .. math:: a = K^{-1} k(x), \qquad \delta = k(x, x) - k(x)'a > \nu.

    Otherwise its value is taken to be a' times those of the members. The posterior is then

    .. math:: E V(x) = k(x)'\alpha, \qquad \mathrm{var}\, V(x) = k(x, x) - k(x)' C\, k(x),

    with :math:`\alpha = \tilde H' Q r`, :math:`C = \tilde H' Q \tilde H`,
    :math:`Q = (\tilde H K \tilde H' + \Sigma)^{-1}` and the rows :math:`a_t' - \gamma a_{t+1}'` in
    :math:`\tilde H`. It is kept as the belief about w in :math:`V(x) = (L^{-1}k(x))'w`, with K = LL' and
    w of prior N(0, I): a new member is one more weight, and
    :math:`\alpha = L^{-T} E w,\; C = L^{-T}(I - \mathrm{cov}\, w)L^{-1}`. A transition costs O(m^2).

    Args:
        kernel: Maps (n, ...) and (m, ...) states to the (n, m) matrix, such as :class:`Gaussian`.
        gamma: Discount, in [0, 1].
        noise: sigma^2, a variance in units of reward squared.
        threshold: nu, in units of the kernel. The first state always joins. 0 leaves out only what is
            dependent up to rounding, and the posterior is the exact one.
        monte_carlo: False for white noise (2003), True for that of returns (2005).
        capacity: Most members of the dictionary. When it is full no more are added, and new states are
            projected on those it has, however badly. None is no limit.
        dtype: Of all that is computed.

    Example:
        >>> import torch
        >>> from kova_rl.baselines.gptd_kernel import Gaussian, KernelGPTD
        >>> gptd = KernelGPTD(Gaussian(scale=25.0), gamma=0.5, noise=0.01)
        >>> for _ in range(20):
        ...     gptd.observe([0.0], 1.0, [3.0], done=False)
        ...     gptd.observe([3.0], 2.0, None, done=True)
        >>> mean, std = gptd.value([[0.0], [3.0], [9.0]])
        >>> mean.numpy().round(2) + 0.0, std.numpy().round(2)
        (array([2., 2., 0.]), array([0.02, 0.02, 5.  ]))
        >>> len(gptd)
        2

    Reference:
        Engel, Mannor, Meir: *Bayes Meets Bellman*, ICML 2003 (white noise, and the dictionary);
        *Reinforcement Learning with Gaussian Processes*, ICML 2005 (coloured noise).
    """

    _basis: _Dictionary

    def __init__(
        self,
        kernel: Kernel,
        gamma: float = 0.95,
        noise: float = 1.0,
        threshold: float = 1e-3,
        monte_carlo: bool = False,
        capacity: int | None = None,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(gamma, noise, monte_carlo, dtype)
        if not callable(kernel):
            raise ValueError(f"kernel must be callable, such as Gaussian(), got {kernel!r}")
        enough = isinstance(threshold, Real) and threshold >= 0
        check_real("threshold", threshold, "a number, at least 0", enough)
        if capacity is not None:
            check_whole("capacity", capacity, least=1)
        self._basis = _Dictionary(kernel, threshold, capacity, None, torch.zeros(0, 0, dtype=dtype))

    def __len__(self) -> int:
        """How many states the dictionary has."""
        return len(self._basis)

    @property
    def dictionary(self) -> Tensor | None:
        """The members, (m, ...), in the order in which they joined. None before the first."""
        return None if self._basis.points is None else self._basis.points.clone()
