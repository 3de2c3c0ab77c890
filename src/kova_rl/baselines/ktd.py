"""Kalman Temporal Differences: an unscented Kalman filter over the weights of a value network."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kova_rl.baselines.ktd_equations import Action, Equation, Optimality
from kova_rl.baselines.ktd_input import batch_of, number, pair, picked
from kova_rl.baselines.ktd_sigma import Update, factor, moments, sigma_points, update
from kova_rl.baselines.many import ManyWeights
from kova_rl.errors import StateMismatch
from kova_rl.filter.checks import check_choice, check_dtype, check_positive, check_real
from kova_rl.filter.evidence import Workspace
from kova_rl.filter.evolution import Evolution, FadingMemory
from kova_rl.filter.predict import predict
from kova_rl.filter.windup import guarded
from kova_rl.posterior import Belief

__all__ = ["KTD", "KTDInfo"]


class KTDInfo(NamedTuple):
    """What a step found."""

    innovation: float
    """The reward less its prediction."""
    innovation_variance: float
    """What the filter expected the innovation's variance to be, noise included."""


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
        step, done = self.steps + 1, bool(terminated)
        states = pair(state, state if done else next_state, self._weights, step)
        observed = number(reward, step)
        change = self.evolution.change(self._memory)
        settings = {"kappa": self.kappa, "prior": self.prior, "noise": self.noise}

        def updated(P: Tensor) -> Update:
            predicted = predict(change, P, step)
            lower = factor(predicted, step)
            here, there = self._network(self._points(lower), states).unbind(1)
            z = self.equation(here, None if done else there, self.gamma, action, next_action)
            return update(self._weights, predicted, lower, z, observed, change, **settings, step=step)

        made = guarded(
            self.evolution,
            change,
            self._P.diagonal,
            step,
            lambda: updated(self._P),
            lambda: updated(self._eye()),
        )
        self._weights = made.weights
        if self._tracked:
            self._P = made.covariance
        self.steps = step
        self.forward_passes += 2 * (2 * len(self._weights) + 1)
        self.evolution.observe(self._memory, made.innovation * made.innovation / made.variance)
        self._network.scatter(self._weights)
        return KTDInfo(made.innovation, made.variance)

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
        inputs = batch_of(states, self._weights)
        values = self._network(self._points(factor(self._P, self.steps + 1)), inputs)
        n, outputs = values.shape[1:]
        if actions is not None:
            values = picked(values, actions)
        shape = (n,) if values.shape[2] == 1 else (n, outputs)
        found = moments(values.flatten(1), self.kappa)
        std = found.variance().sqrt_()
        return Belief(found.mean.view(shape), std.view(shape), found.covariance, self._tracked)

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

    def _points(self, lower: Tensor) -> Tensor:
        d, mean = len(lower), self._weights
        c = math.sqrt(self.prior * (d + self.kappa))
        return sigma_points(mean, lower, c, self._workspace.buffer("points", 2 * d + 1, d, mean))

    def _eye(self) -> Tensor:
        return torch.eye(len(self._weights), dtype=self._weights.dtype, device=self._weights.device)
