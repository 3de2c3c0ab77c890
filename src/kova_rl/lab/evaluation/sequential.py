"""Critics that see each transition once: LSTD, KTD and GPTD."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from kova_rl.baselines import KTD, Evaluation, KernelGPTD, LinearGPTD
from kova_rl.evolution import PriorAnchored, Stationary
from kova_rl.lab.evaluation.transitions import Array, Transitions


class LSTD:
    r"""Least-squares temporal differences: the fixed point of TD with linear values, :math:`V = \phi'w`.

    .. math:: A = \sum_t \lambda^{T-t} \rho_t\, \phi_t (\phi_t - \gamma \phi'_t)', \quad
        b = \sum_t \lambda^{T-t} \rho_t\, \phi_t r_t, \quad (A + \epsilon I) w = b

    with :math:`\phi' = 0` after the end, :math:`\rho` the importance weights, and :math:`\lambda < 1` only
    where the past is to be forgotten: about ``window`` samples are remembered.

    Args:
        inputs: k, how many features.
        gamma: Discount.
        window: How many samples are remembered; None for all.
        ridge: epsilon.

    Reference:
        Bradtke and Barto, "Linear least-squares algorithms for temporal difference learning", 1996; Boyan,
        "Technical update: least-squares temporal difference learning", 2002.
    """

    def __init__(self, inputs: int, gamma: float, window: int | None = None, ridge: float = 1e-2) -> None:
        self.gamma, self.ridge = gamma, ridge
        self.keep = 1.0 if window is None else 1.0 - 1.0 / window
        self.A: Array = np.zeros((inputs, inputs))
        self.b: Array = np.zeros(inputs)

    def observe(self, batch: Transitions) -> None:
        """Add the transitions to A and b."""
        age = np.arange(len(batch))[::-1]
        rows = (batch.weights * self.keep**age)[:, None] * batch.states
        past = self.keep ** len(batch)
        self.A = past * self.A + rows.T @ (batch.states - self.gamma * batch.next_states)
        self.b = past * self.b + rows.T @ batch.rewards

    def weights(self) -> Array:
        """w, of shape (k,)."""
        return np.linalg.solve(self.A + self.ridge * np.eye(len(self.b)), self.b).astype(np.float64)

    def mean_std(self, states: Array) -> tuple[Array, None]:
        """Values of states; LSTD has no deviations."""
        return states @ self.weights(), None


class KTDCritic:
    """Kalman temporal differences, on a network or on the features; no correction for another policy.

    It takes the reward's noise for white. Where transitions are random it is not: the value that was
    drawn next is in it and in the prediction, and the filter tends to the least squared Bellman
    residual, which is not the value (Geist and Pietquin 2010, section 4).
    """

    def __init__(
        self, module: nn.Module, gamma: float, noise: float, *, prior: float = 1.0, eta: float = 0.0
    ) -> None:
        evolution = PriorAnchored(eta) if eta > 0 else Stationary()
        self.ktd = KTD(
            module.double(), equation=Evaluation(), gamma=gamma, prior=prior, noise=noise, evolution=evolution
        )

    def observe(self, batch: Transitions) -> None:
        """Filter the transitions one by one; the importance weights are not looked at."""
        before, after = torch.from_numpy(batch.states), torch.from_numpy(batch.next_states)
        for t in range(len(batch)):
            self.ktd.step(before[t], float(batch.rewards[t]), after[t], bool(batch.terminated[t]))

    def mean_std(self, states: Array) -> tuple[Array, Array]:
        """Values of states and their standard deviations."""
        belief = self.ktd.posterior(torch.from_numpy(states))
        return belief.mean.numpy(), belief.std.numpy()


class GPTDCritic:
    """Gaussian process temporal differences, linear or with a kernel; no correction for another policy.

    With ``monte_carlo`` the noise is that of the returns (2005), right for random transitions; without
    it is white (2003), and biased as KTD is.
    """

    def __init__(self, gptd: LinearGPTD | KernelGPTD) -> None:
        self.gptd = gptd

    def observe(self, batch: Transitions) -> None:
        """Condition on the rewards one by one; the importance weights are not looked at."""
        before, after = torch.from_numpy(batch.states), torch.from_numpy(batch.next_states)
        for t in range(len(batch)):
            over = bool(batch.terminated[t])
            self.gptd.observe(before[t], float(batch.rewards[t]), None if over else after[t], over)
            if batch.truncated[t]:
                self.gptd.restart()

    def mean_std(self, states: Array) -> tuple[Array, Array]:
        """Values of states and their standard deviations."""
        mean, std = self.gptd.value(torch.from_numpy(states))
        return mean.numpy(), std.numpy()
