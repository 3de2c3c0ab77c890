r"""Gaussian process temporal differences: the recursion that the linear and the kernel form share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from kova_rl.baselines.gptd_input import flag, number, states_of
from kova_rl.errors import InvalidBatch, NonFiniteBatch, StateMismatch
from kova_rl.filter.checks import FLOATS, check_choice, check_positive, check_real
from kova_rl.posterior import Belief

__all__ = ["GPTD", "Basis", "Moments", "update"]


@dataclass(frozen=True)
class Moments:
    r"""The joint belief about k weights w and the noise n of the current state, as a square root.

    .. math:: w = \mu + S z, \qquad n = m + u' z + \sqrt{v}\, e, \qquad z, e \sim N(0, I).

    Sums of squares stay positive whatever is rounded, so no update can spoil it.
    """

    mean: Tensor
    """mu, of shape (k,)."""
    root: Tensor
    """S, of shape (k, k): the covariance of the weights is S S'."""
    along: Tensor
    """u, of shape (k,): what the noise has in common with the weights."""
    carried: float
    """m."""
    spread: float
    """v, the variance of the noise if the weights were known."""

    def grown(self, size: int, scale: float) -> Moments:
        """With weights added up to ``size``, independent of the others, of mean 0 and this deviation."""
        extra = size - len(self.mean)
        if not extra:
            return self
        root = torch.block_diag(self.root, scale * torch.eye(extra, dtype=self.root.dtype))
        pad = self.mean.new_zeros(extra)
        mean, along = torch.cat([self.mean, pad]), torch.cat([self.along, pad])
        return Moments(mean, root, along, self.carried, self.spread)

    def fresh(self, noise: float) -> Moments:
        """With a noise that no reward has told anything about."""
        return Moments(self.mean, self.root, torch.zeros_like(self.along), 0.0, noise)


def update(moments: Moments, h: Tensor, reward: float, noise: float, discount: float) -> Moments:
    r"""Condition on one reward, in O(k^2) (Potter's square root of the Kalman filter).

    .. math::
        r = h'w + n - \gamma n', \qquad n' \sim N(0, \sigma^2) \text{ independent of } w, n

    .. math::
        f &= S'h + u, \quad R = v + \gamma^2\sigma^2, \quad s = f'f + R, \quad
            d = r - h'\mu - m \\
        \mu &\leftarrow \mu + S f\, d/s, \qquad S \leftarrow S - S f f' / (s + \sqrt{s R}) \\
        m &\leftarrow -\gamma\sigma^2 d/s, \qquad u \leftarrow \gamma\sigma^2 f/\sqrt{s R}, \qquad
            v \leftarrow \sigma^2 v/R.

    The noise it returns is that of the next state, n'. With a discount of 0 that is a fresh one, so that
    white noise, and the end of an episode, are this same update.

    Args:
        moments: Before the reward.
        h: ``phi(x) - gamma phi(x')``, or ``phi(x)`` before a terminal state; of shape (k,).
        reward: r.
        noise: sigma^2.
        discount: gamma if the noise of the next state is part of this reward, else 0.

    Raises:
        NonFiniteBatch: A number is too large for the dtype.
    """
    f = torch.mv(moments.root.T, h).add_(moments.along)
    R = moments.spread + discount**2 * noise
    s = float(f.dot(f)) + R
    d = reward - float(h.dot(moments.mean)) - moments.carried
    Sf, both = torch.mv(moments.root, f), math.sqrt(s) * math.sqrt(R)
    mean = moments.mean + Sf * (d / s)
    root = torch.addr(moments.root, Sf, f, alpha=-1 / (s + both))
    known = math.isfinite(s) and math.isfinite(d)
    if not (known and torch.isfinite(mean).all() and torch.isfinite(root).all()):
        raise NonFiniteBatch(
            f"the update overflows {h.dtype} (reward {reward:g}, largest feature "
            f"{float(h.abs().max()):g}). Nothing was changed. Scale rewards and features down."
        )
    along, carried = f * (discount * noise / both), -discount * noise * d / s
    return Moments(mean, root, along, carried, spread=noise * moments.spread / R)


class Basis(ABC):
    """How a state becomes the k numbers that multiply the weights. Immutable."""

    scale: float
    """Standard deviation of a weight before any reward."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...] | None:
        """Of one state, if it is known."""

    @abstractmethod
    def extended(self, state: Tensor) -> tuple[Basis, Tensor]:
        """The basis after this state was seen, and the state's features in it."""

    @abstractmethod
    def features(self, states: Tensor) -> Tensor:
        """(n, ...) states to (n, k) features."""

    def leftover(self, states: Tensor, features: Tensor) -> Tensor | None:
        """Prior variance of each value that the weights do not span; None is 0."""
        return None

    def leftover_covariance(self, states: Tensor, features: Tensor) -> Tensor | None:
        """The same, n x n."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def loaded(self, saved: Mapping[str, Any]) -> tuple[Basis, int]:
        """The basis of a state dict, and how many features it has; or ``StateMismatch``."""


class GPTD:
    """What :class:`LinearGPTD` and :class:`KernelGPTD` have in common; use one of them."""

    _basis: Basis

    def __init__(self, gamma: float, noise: float, monte_carlo: bool, dtype: torch.dtype) -> None:
        in_range = isinstance(gamma, Real) and 0 <= gamma <= 1
        check_real("gamma", gamma, "a number in [0, 1]", in_range)
        check_positive("noise", noise)
        check_choice("dtype", dtype, FLOATS)
        if not isinstance(monte_carlo, bool):
            raise ValueError(f"monte_carlo must be True or False, got {monte_carlo!r}")
        self.gamma, self.noise, self.monte_carlo = float(gamma), float(noise), monte_carlo
        self.dtype = dtype
        none = torch.zeros(0, dtype=dtype)
        self._moments = Moments(none, none.reshape(0, 0), none, 0.0, self.noise)
        self._last: Tensor | None = None

    def observe(self, state: Any, reward: Any, next_state: Any, done: Any) -> None:
        """Learn from one transition. Consecutive calls are one trajectory, until ``done`` or ``restart``.

        Args:
            state: x_t, without a batch dimension. With ``monte_carlo`` it must be the ``next_state`` of
                the call before, unless that ended the episode.
            reward: r_t.
            next_state: x_{t+1}. Not looked at if ``done``; it may be None.
            done: Whether the episode terminated, so that the value of what follows is 0. An episode that
                was only cut short is not done: call :meth:`restart` after it.

        Raises:
            NonFiniteBatch: Something is NaN or infinite. Nothing changed.
            InvalidBatch: A shape is wrong, or the trajectory has a gap. Nothing changed.
        """
        over, amount = flag("done", done), number("reward", reward)
        here = states_of("state", state, self._basis.shape)
        there = None if over else states_of("next_state", next_state, tuple(here.shape))
        self._check_continues(here)
        basis, h = self._basis.extended(here)
        if there is not None:
            basis, after = basis.extended(there)
            h = torch.cat([h, h.new_zeros(len(after) - len(h))]).sub_(after, alpha=self.gamma)
        before = self._moments.grown(len(h), basis.scale)
        discount = self.gamma if self.monte_carlo and not over else 0.0
        moments = update(before, h, amount, self.noise, discount)
        self._basis, self._moments = basis, moments
        self._last = there.clone() if self.monte_carlo and there is not None else None

    def restart(self) -> None:
        """Break the trajectory without a terminal state, as after a time limit."""
        self._moments, self._last = self._moments.fresh(self.noise), None

    def belief(self, states: Any) -> Belief:
        """The posterior of the values of (n, ...) states, with their joint covariance."""
        basis = self._basis
        batch = states_of("states", states, basis.shape, batch=True).clone()
        features = basis.features(batch)
        moments = self._moments.grown(features.shape[1], basis.scale)
        half = features @ moments.root
        variance = half.square().sum(1)
        leftover = basis.leftover(batch, features)
        if leftover is not None:
            variance = variance + leftover.clamp(min=0.0)

        def joint() -> Tensor:
            rest = basis.leftover_covariance(batch, features)
            spanned = half @ half.T
            return spanned if rest is None else spanned + (rest + rest.T) / 2

        return Belief(features @ moments.mean, variance.sqrt(), joint)

    def value(self, states: Any) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of the values of (n, ...) states, each of shape (n,).

        The deviation is that of the value; the noise of a single return is not in it.
        """
        belief = self.belief(states)
        return belief.mean, belief.std

    def state_dict(self) -> dict[str, Any]:
        """All that was learned and the settings it depends on: tensors and numbers only."""
        m = self._moments
        saved = self._settings() | self._basis.state_dict()
        saved |= {"mean": m.mean.clone(), "root": m.root.clone(), "along": m.along.clone()}
        saved |= {"carried": m.carried, "spread": m.spread}
        return saved if self._last is None else saved | {"last": self._last.clone()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> Self:
        """Take over a ``state_dict`` of the same settings.

        Raises:
            StateMismatch: It is of another form or of other settings. Nothing was loaded.
        """
        missing = (self.state_dict().keys() - {"last", "points", "factor"}) - saved.keys()
        if missing:
            raise StateMismatch(f"the state dict lacks {sorted(missing)}. Nothing was loaded.")
        for key, mine in self._settings().items():
            if saved[key] != mine:
                raise StateMismatch(
                    f"{key}: the state dict has {saved[key]!r}, this GPTD has {mine!r}. Nothing was loaded."
                )
        basis, size = self._basis.loaded(saved)
        tensors = {name: saved[name].to(self.dtype).clone() for name in ("mean", "root", "along")}
        found = {name: tuple(x.shape) for name, x in tensors.items()}
        expected = {"mean": (size,), "root": (size, size), "along": (size,)}
        if found != expected:
            raise StateMismatch(f"expected the shapes {expected}, got {found}. Nothing was loaded.")
        last = saved.get("last")
        self._moments = Moments(**tensors, carried=float(saved["carried"]), spread=float(saved["spread"]))
        self._basis, self._last = basis, None if last is None else last.clone()
        return self

    def _settings(self) -> dict[str, Any]:
        return {"gamma": self.gamma, "noise": self.noise, "monte_carlo": self.monte_carlo}

    def _check_continues(self, here: Tensor) -> None:
        if self._last is None or torch.equal(here.double(), self._last.double()):
            return
        raise InvalidBatch(
            "state must be the next_state of the last call, which was not done: with monte_carlo=True "
            "their noise is shared. Nothing was changed. Call restart() where a trajectory is cut."
        )
