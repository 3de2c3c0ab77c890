r"""GPTD with a value that is linear in given features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kova_rl.baselines.gptd import GPTD, Basis
from kova_rl.baselines.gptd_input import finite_features
from kova_rl.errors import InvalidBatch, StateMismatch
from kova_rl.filter.checks import check_positive, check_whole

__all__ = ["LinearGPTD"]


@dataclass(frozen=True)
class _Features(Basis):
    """phi, and how many numbers it gives once that is known."""

    phi: Callable[[Tensor], Tensor] | None
    size: int | None
    scale: float
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        return (self.size,) if self.phi is None and self.size is not None else None

    def features(self, states: Tensor) -> Tensor:
        found = states if self.phi is None else self.phi(states)
        rows = (len(states), self.size if self.size is not None else "k")
        if found.ndim != 2 or len(found) != len(states) or self.size not in (None, found.shape[1]):
            raise InvalidBatch(
                f"features must have shape ({rows[0]}, {rows[1]}), got {tuple(found.shape)}. "
                "Nothing was changed."
            )
        return finite_features("features", found, self.dtype)

    def extended(self, state: Tensor) -> tuple[_Features, Tensor]:
        row = self.features(state[None])[0]
        return replace(self, size=len(row)), row

    def state_dict(self) -> dict[str, Any]:
        return {"prior": self.scale**2}

    def loaded(self, saved: Mapping[str, Any]) -> tuple[_Features, int]:
        if not math.isclose(saved["prior"], self.scale**2, rel_tol=1e-12):
            raise StateMismatch(
                f"prior: the state dict has {saved['prior']!r}, this GPTD has {self.scale**2!r}. "
                "Nothing was loaded."
            )
        found = len(saved["mean"])
        seen = found > 0  # nothing was observed yet
        if seen and self.size not in (None, found):
            raise StateMismatch(
                f"the state dict has {found} features, this GPTD has {self.size}. Nothing was loaded."
            )
        return (replace(self, size=found) if seen else self), found


class LinearGPTD(GPTD):
    r"""Gaussian process temporal differences with a value linear in features.

    .. math:: V(x) = \phi(x)'w, \quad w \sim N(0, \text{prior}\, I), \qquad
        r_t = V(x_t) - \gamma V(x_{t+1}) + N_t,

    with V = 0 after a terminal state. Two models of the noise:

    * ``monte_carlo=False``, the model of 2003: N white, of variance ``noise``. Right where transitions are
      deterministic. Where they are not, the next value that was drawn stands on both sides of the
      equation, and the mean tends to the minimum of the squared Bellman residual, which is not the value.
    * ``monte_carlo=True``, the model of 2005: N_t = n_t - gamma n_{t+1}, with n white of variance
      ``noise``: the return of a state scatters around its value. The covariance of an episode is
      ``noise H H'``, with H the matrix of the (1, -gamma) pairs. For whole episodes this is regression on
      their discounted returns, which is consistent for stochastic transitions too. The model has the
      returns of successive states scatter independently. Where randomness is in the transitions they
      scatter together, and the standard deviation is then too small.

    Rewards are taken in one at a time, in O(k^2) (:func:`~kova_rl.baselines.gptd.update`); the result is
    the posterior given all of them, not an approximation. All is kept on the CPU.

    Args:
        features: Maps (n, ...) states to (n, k) features. A whole number k: states are their own features.
        gamma: Discount, in [0, 1].
        prior: Variance of each weight.
        noise: sigma^2, a variance in units of reward squared.
        monte_carlo: Which noise.
        dtype: Of all that is computed.

    Example:
        >>> import torch
        >>> from kova_rl.baselines.gptd_linear import LinearGPTD
        >>> gptd = LinearGPTD(features=2, gamma=0.5, prior=100.0, noise=0.01)
        >>> first, second = torch.eye(2)
        >>> for _ in range(100):
        ...     gptd.observe(first, 1.0, second, done=False)
        ...     gptd.observe(second, 2.0, None, done=True)
        >>> mean, std = gptd.value(torch.eye(2))
        >>> mean.numpy().round(2), std.numpy().round(3)
        (array([2., 2.]), array([0.011, 0.01 ]))

    Reference:
        Engel, Mannor, Meir: *Bayes Meets Bellman: The Gaussian Process Approach to Temporal Difference
        Learning*, ICML 2003 (white noise); *Reinforcement Learning with Gaussian Processes*, ICML 2005
        (coloured noise). Engel: *Algorithms and Representations for Reinforcement Learning*, PhD thesis,
        Hebrew University, 2005, for the parametric form.
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor] | int,
        gamma: float = 0.95,
        prior: float = 1.0,
        noise: float = 1.0,
        monte_carlo: bool = False,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(gamma, noise, monte_carlo, dtype)
        check_positive("prior", prior)
        scale = math.sqrt(prior)
        if callable(features):
            self._basis = _Features(features, None, scale, dtype)
            return
        check_whole("features", features, least=1)
        self._basis = _Features(None, int(features), scale, dtype)

    @property
    def mean(self) -> Tensor:
        """Posterior mean of the weights, (k,). Empty before the first transition."""
        return self._moments.mean.clone()

    @property
    def covariance(self) -> Tensor:
        """Posterior covariance of the weights, (k, k)."""
        return self._moments.root @ self._moments.root.T
