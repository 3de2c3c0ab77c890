"""Kalman Temporal Differences: an unscented Kalman filter over the weights of a value network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from kova_rl.baselines.ktd_equations import Action, Equation, Optimality
from kova_rl.baselines.many import ManyWeights
from kova_rl.errors import InvalidBatch, NonFiniteBatch, NotPositiveDefinite, StateMismatch
from kova_rl.filter.change import Change
from kova_rl.filter.checks import check_choice, check_dtype, check_positive, check_real
from kova_rl.filter.evidence import Workspace
from kova_rl.filter.evolution import Evolution, FadingMemory
from kova_rl.filter.predict import inflation, predict
from kova_rl.filter.windup import guarded
from kova_rl.posterior import Belief

__all__ = ["KTD", "KTDInfo"]

FLOOR = 1e-4
"""The least variance of an innovation, as in the released code."""


class KTDInfo(NamedTuple):
    """What a step found."""

    innovation: float
    """The reward less its prediction."""
    innovation_variance: float
    """What the filter expected the innovation's variance to be, noise included."""


class _Update(NamedTuple):
    """A step before it is made."""

    weights: Tensor
    covariance: Tensor
    info: KTDInfo


PAPER = FadingMemory(0.01 / 1.01)
"""``P- = 1.01 P``, the paper's ``P_v = 0.01 P``."""

OPTIMALITY = Optimality()


class KTD:
    r"""Kalman Temporal Differences: an unscented filter that learns a value from one transition at a time.

    The reward is an observation of the weights, ``r = z(theta) + noise``, with z one of
    :class:`Evaluation`, :class:`Sarsa` and :class:`Optimality`. No gradients: z is evaluated at 2d+1 sigma
    points from a Cholesky factor L of the predicted covariance,

    .. math::
        \theta_0 = \theta, \quad \theta_{\pm j} = \theta \pm \sqrt{d + \kappa}\, L_j, \quad
        w_0 = \tfrac{\kappa}{d + \kappa}, \quad w_j = \tfrac{1}{2 (d + \kappa)}, \quad P^- = L L'

    all of them at s and s' in one batched forward pass. Then

    .. math::
        \bar z &= \sum_i w_i z_i, \quad
        S = \max\Big(\sum_i w_i (z_i - \bar z)^2 + P_n,\ 10^{-4}\Big), \quad
        P_{\theta r} = \sum_i w_i (\theta_i - \theta)(z_i - \bar z) = L b, \\
        K &= P_{\theta r} S^{-1}, \quad \theta \leftarrow \theta + K (r - \bar z), \quad
        P \leftarrow P^- - K S K'

    with :math:`b_j = (z_{+j} - z_{-j}) / (2 \sqrt{d + \kappa})`, so that the cross-covariance is one product
    with L. A step costs :math:`O(d^3)` for the factor and 2(2d+1) forward passes. Where the network is
    linear, it is the Kalman filter with :math:`h = \phi(s) - \gamma \phi(s')`.

    The evolutions are Kova's, from :mod:`kova_rl.evolution`. ``DirectionalForgetting`` inflates along
    :math:`P_{\theta r}`, the direction of the statistically linearised observation, and takes
    the spread that no linear map explains, :math:`S - b'b`, for its noise.

    The paper's KTD is ``prior=10, noise=1`` and ``P_v = 0.01 P``, the default here. It winds up:
    ``FadingMemory(0.01 / 1.01, on_windup="ignore")`` runs it as printed, and ``PriorAnchored`` or
    ``DirectionalForgetting`` stay bounded. ``start="zeros"`` is the released code's, and a ReLU or tanh
    network cannot learn from there: with all weights 0 a sigma point moves one weight alone, the product
    of two layers stays 0, and only the biases of the last layer ever move.

    Transitions are taken as deterministic. Where they are random, the estimate is biased, as is any that
    minimises the squared Bellman residual (section 5 of the reference).

    Args:
        module: The value network, one output (V) or one an action (Q). Its weights follow the filter's mean.
        equation: What the reward observes.
        gamma: Discount, in [0, 1].
        kappa: Spread of the sigma points, above -d. Below 0 the update can lose positive definiteness.
        prior: Variance of every weight before the first transition.
        noise: ``P_n``, variance of the reward's noise.
        evolution: How the covariance grows between transitions.
        start: The mean's first value, the ``"network"``'s own weights or ``"zeros"``.
        dtype: Of the filter's mean and covariance; None for that of the weights.

    Example:
        >>> import torch
        >>> from kova_rl.baselines import KTD, Evaluation
        >>> value = torch.nn.Linear(2, 1, bias=False)
        >>> ktd = KTD(value, equation=Evaluation(), gamma=0.5, start="zeros")
        >>> s, t = torch.eye(2)
        >>> for _ in range(300):
        ...     _ = ktd.step(s, 1.0, t, terminated=False)
        ...     _ = ktd.step(t, 2.0, s, terminated=True)
        >>> ktd.posterior(torch.eye(2)).mean  # V(t) = 2, V(s) = 1 + 0.5 V(t)
        tensor([2.0000, 2.0000])

    Reference:
        Geist and Pietquin, Kalman Temporal Differences, JAIR 39, 2010, algorithms 2 to 4.
    """

    def __init__(
        self,
        module: nn.Module,
        equation: Equation = OPTIMALITY,
        gamma: float = 0.95,
        kappa: float = 3.0,
        prior: float = 10.0,
        noise: float = 1.0,
        evolution: Evolution = PAPER,
        start: Literal["network", "zeros"] = "network",
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(equation, Equation):
            raise ValueError(f"equation must be Evaluation(), Sarsa() or Optimality(), got {equation!r}")
        check_real("gamma", gamma, "a number in [0, 1]", isinstance(gamma, int | float) and 0 <= gamma <= 1)
        check_positive("prior", prior)
        check_positive("noise", noise)
        if not isinstance(evolution, Evolution):
            raise ValueError(f"evolution must be one of kova_rl.evolution's objects, got {evolution!r}")
        check_choice("start", start, ("network", "zeros"))
        check_dtype(dtype)
        self._network = ManyWeights(module)
        d = self._network.size
        above = isinstance(kappa, int | float) and kappa > -d
        check_real("kappa", kappa, f"a number above -d = -{d}", above)
        self.equation, self.gamma, self.kappa = equation, gamma, kappa
        self.prior, self.noise, self.evolution = prior, noise, evolution
        weights = self._network.gather().to(dtype or self._network.parameters[0].dtype)
        self._weights = weights if start == "network" else torch.zeros_like(weights)
        self._P = self._eye()  # in units of the prior, as in all of the filter
        self._memory = evolution.init(weights)
        self._workspace = Workspace()
        self._tracked = evolution.tracked
        self.steps = 0
        """Transitions seen."""
        self.forward_passes = 0
        """Network evaluations that ``step`` has made, 2(2d+1) each time."""
        self._network.scatter(self._weights)

    @property
    def mean(self) -> Tensor:
        """The mean of the weights, in the order of ``module.parameters()``."""
        return self._weights.clone()

    @property
    def covariance(self) -> Tensor:
        """The covariance P of the weights, d x d."""
        return self._P * self.prior

    @torch.no_grad()
    def step(
        self,
        state: Any,
        reward: Any,
        next_state: Any,
        terminated: Any,
        action: Action = None,
        next_action: Action = None,
    ) -> KTDInfo:
        """Learn from one transition.

        Args:
            state: One observation, without a batch dimension: a tensor or an array.
            reward: One number.
            next_state: The next observation; not looked at if ``terminated``.
            terminated: Whether the episode ended in ``next_state``, so that nothing follows. A
                truncated episode goes on: False.
            action: The action taken, for ``Sarsa`` and ``Optimality``.
            next_action: The action taken next, for ``Sarsa``, unless ``terminated``.

        Raises:
            InvalidBatch: A shape or an action is wrong.
            NonFiniteBatch: An input, or a prediction at a sigma point, is NaN or infinite.
            NotPositiveDefinite: The covariance has no Cholesky factor.
            CovarianceWindup: The evolution's guard found it too large.

        After an error nothing has changed.
        """
        done = bool(terminated)
        states = self._pair(state, state if done else next_state)
        observed = self._number(reward)

        def rewards(values: Tensor) -> Tensor:
            there = None if done else values[:, 1]
            return self.equation(values[:, 0], there, self.gamma, action, next_action)

        change = self.evolution.change(self._memory)
        made = guarded(
            self.evolution,
            change,
            self._P.diagonal,
            self.steps + 1,
            lambda: self._update(self._P, change, states, observed, rewards),
            lambda: self._update(self._eye(), change, states, observed, rewards),
        )
        self._weights = made.weights
        if self._tracked:
            self._P = made.covariance
        self.steps += 1
        self.forward_passes += 2 * (2 * len(self._weights) + 1)
        innovation, variance = made.info
        self.evolution.observe(self._memory, innovation * innovation / variance)
        self._network.scatter(self._weights)
        return made.info

    @torch.no_grad()
    def posterior(self, states: Any, actions: Any = None) -> Belief:
        """What the filter believes of the values, by the unscented transform of the network.

        Args:
            states: n observations.
            actions: n actions to read Q at; None for all outputs.

        Returns:
            A belief whose mean and std are (n,), or n x (actions) for a network with several outputs and no
            ``actions``; its joint covariance then takes the entries row by row, and ``sample`` needs
            ``actions``.
        """
        inputs = self._tensor(states)
        if inputs.ndim < 2 or not torch.isfinite(inputs).all():
            raise InvalidBatch(
                f"states must be a batch of finite observations, got shape {tuple(inputs.shape)}"
            )
        values = self._network(self._points(self._factor(self._P)), inputs)
        n, outputs = values.shape[1:]
        if actions is not None:
            chosen = torch.as_tensor(actions, device=inputs.device)
            whole = not chosen.is_floating_point() and chosen.shape == (n,)
            if not whole or bool(((chosen < 0) | (chosen >= outputs)).any()):
                raise InvalidBatch(
                    f"actions must be {n} whole numbers in [0, {outputs}), got {chosen.dtype} of shape "
                    f"{tuple(chosen.shape)}"
                )
            values = values.gather(2, chosen.long().expand(len(values), n)[:, :, None])
        shape = (n,) if values.shape[2] == 1 else (n, outputs)
        mean, centre, rest = self._moments(values.flatten(1))
        w0, w = self._sigma_weights()
        variance = (w0 * centre.square()).add_(rest.square().sum(0), alpha=w).clamp_(min=0.0)

        def joint() -> Tensor:
            found = torch.addr(w * (rest.T @ rest), centre, centre, alpha=w0)
            return found.add(found.T).mul_(0.5)

        return Belief(mean.view(shape), variance.sqrt().view(shape), joint, self._tracked)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on, bit for bit. Settings are not part of it."""
        return {
            "ktd": self._identity(),
            "weights": self._weights.clone(),
            "covariance": self._P.clone(),
            "memory": dict(self._memory),
            "steps": self.steps,
            "forward_passes": self.forward_passes,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; the module gets its weights. ``StateMismatch`` loads nothing."""
        mine = self.state_dict()
        if not isinstance(state_dict, dict) or state_dict.keys() != mine.keys():
            raise StateMismatch(f"not a state dict of KTD, which has {', '.join(mine)}")
        if state_dict["ktd"] != mine["ktd"]:
            raise StateMismatch(f"the state dict is of {state_dict['ktd']}, this KTD is {mine['ktd']}")
        if state_dict["memory"].keys() != self._memory.keys():
            raise StateMismatch(
                f"the evolution remembered {sorted(state_dict['memory'])}, {self.evolution} remembers "
                f"{sorted(self._memory)}"
            )
        for key in ("weights", "covariance"):
            theirs, ours = state_dict[key], mine[key]
            if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
                raise StateMismatch(
                    f"{key}: the state dict has {theirs.dtype} {tuple(theirs.shape)}, this KTD has "
                    f"{ours.dtype} {tuple(ours.shape)}"
                )
        self._weights = state_dict["weights"].to(self._weights.device, copy=True)
        self._P = state_dict["covariance"].to(self._P.device, copy=True)
        self._memory = dict(state_dict["memory"])
        self.steps, self.forward_passes = state_dict["steps"], state_dict["forward_passes"]
        self._network.scatter(self._weights)

    def _identity(self) -> dict[str, Any]:
        """What must agree for the numbers of a state to mean the same."""
        return {"format": 1, "parameters": self._network.shapes, "prior": float(self.prior)}

    def _update(
        self,
        P: Tensor,
        change: Change,
        states: Tensor,
        reward: float,
        rewards: Callable[[Tensor], Tensor],
    ) -> _Update:
        predicted = predict(change, P, self.steps + 1)
        lower = self._factor(predicted)
        z = rewards(self._network(self._points(lower), states))
        mean, centre, rest = self._moments(z)
        w0, w = self._sigma_weights()
        expected, spread = float(mean), float(w0 * centre * centre + w * rest.dot(rest))
        if not math.isfinite(expected + spread):
            bad = int((~torch.isfinite(z)).sum())
            self._refuse(
                f"{bad} of {len(z)} sigma points predict no finite reward, or their spread overflows"
            )
        d = len(P)
        b = (z[1 : d + 1] - z[d + 1 :]).mul_(0.5 / math.sqrt(d + self.kappa))
        S, explained = max(spread + self.noise, FLOOR), float(b.dot(b))
        g = inflation(change, explained / max(S - explained, self.noise))
        S += (g - 1) * explained
        cross = torch.mv(lower, b)  # P_theta_r = L b, before the inflation
        innovation = reward - expected
        weights = self._weights.add(cross, alpha=g / S * innovation * math.sqrt(self.prior))
        if not torch.isfinite(weights).all():
            self._refuse("the new weights would not be finite")
        share = ((g - 1) / explained if g > 1 and explained > 0 else 0.0) - g**2 / S
        root = cross.mul_(math.sqrt(abs(share)))  # one vector, so that P stays symmetric to the bit
        posterior = predicted.addcmul_(root[:, None], root, value=math.copysign(1.0, share))  # P- - K S K'
        return _Update(weights, posterior, KTDInfo(innovation, S))

    def _moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean over the sigma points, and how far from it the centre and the others are."""
        mean = z[0] + self._sigma_weights()[1] * (z[1:] - z[0]).sum(0)
        return mean, z[0] - mean, z[1:] - mean

    def _sigma_weights(self) -> tuple[float, float]:
        """Of the centre, and of each of the others."""
        total = len(self._weights) + self.kappa
        return self.kappa / total, 0.5 / total

    def _points(self, lower: Tensor) -> Tensor:
        """The sigma points as rows, (2d+1) x d: the centre, theta + c L_j, theta - c L_j."""
        d, mean = len(lower), self._weights
        c = math.sqrt(self.prior * (d + self.kappa))
        points = self._workspace.buffer("points", 2 * d + 1, d, mean)
        points[0] = mean
        torch.add(mean, lower.mT, alpha=c, out=points[1 : d + 1])
        torch.sub(mean, lower.mT, alpha=c, out=points[d + 1 :])
        return points

    def _factor(self, P: Tensor) -> Tensor:
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(P)
        if failed.item():
            lowest, highest = (float(x) for x in torch.aminmax(P.diagonal()))
            raise NotPositiveDefinite(
                f"step {self.steps + 1}: the covariance is not positive definite (its variances are "
                f"{lowest:.3g} to {highest:.3g} times the prior's), so it has no sigma points. Nothing was "
                "changed. Use dtype=torch.float64, or evolution.PriorAnchored or DirectionalForgetting, "
                "which stay below the prior."
            )
        return lower

    def _refuse(self, why: str) -> NoReturn:
        raise NonFiniteBatch(
            f"step {self.steps + 1}: {why}. Nothing was changed. Normalise the observations; if the "
            "covariance has wound up, use a bounded evolution such as PriorAnchored."
        )

    def _eye(self) -> Tensor:
        return torch.eye(len(self._weights), dtype=self._weights.dtype, device=self._weights.device)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=self._weights.dtype, device=self._weights.device)

    def _pair(self, state: Any, next_state: Any) -> Tensor:
        """s and s', stacked and checked."""
        here, there = self._tensor(state), self._tensor(next_state)
        if here.shape != there.shape or not here.ndim:
            raise InvalidBatch(
                "state and next_state must be one observation each, of one shape, without a batch dimension, "
                f"got {tuple(here.shape)} and {tuple(there.shape)}"
            )
        states = torch.stack((here, there))
        if not torch.isfinite(states).all():
            self._refuse("state or next_state is not finite")
        return states

    def _number(self, reward: Any) -> float:
        found = torch.as_tensor(reward, dtype=torch.float64).detach()
        if found.numel() != 1:
            raise InvalidBatch(f"reward must be one number, got shape {tuple(found.shape)}")
        number = float(found)
        if not math.isfinite(number):
            self._refuse(f"the reward is {number}")
        return number
