"""A critic examined on every rollout of a stream before it learns it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kova_rl import Kova, targets
from kova_rl.head.features import Features, last_layer
from kova_rl.lab.streams.store import Stream
from kova_rl.sb3.settings import KovaSettings
from kova_rl.value_loop import Learner, Passes, Rollout, ValueLoop, solve_head

__all__ = ["Examination", "examine", "free_returns"]

BATCH = 64
RATE = 3e-4
"""Of Adam, as Stable-Baselines3's PPO has it."""
ADAM_PASSES = 10
"""Stable-Baselines3's epochs."""
NEGLIGIBLE = 0.01
"""Share of a return that the state after its last reward may have for the return to count as free of it."""
ASKED = 512
"""Observations of a rollout that the error bars are computed of."""


class Examination(NamedTuple):
    """One number a rollout each, from the second on; NaN where it can't be told."""

    noise: Tensor
    """Standard deviation of the advantages, over that of the rewards."""
    error: Tensor
    """Root mean square of value less return, over the deviation of the returns that contain no critic."""
    bias: Tensor
    """Their mean, likewise."""
    coverage: Tensor
    """Share of lambda-returns in the 95% intervals of the filter, posterior and learned noise."""
    seconds: float
    """Of the processor, to learn the whole stream."""

    @property
    def halves(self) -> tuple[float, float]:
        """Noise in the first and the second half of the stream."""
        first, second = self.noise.chunk(2)
        return float(first.mean()), float(second.mean())


@dataclass
class _Critic:
    network: nn.Module
    learner: Learner
    passes: int
    settings: ValueLoop
    permute: np.random.RandomState

    def values(self, observations: Tensor) -> Tensor:
        found: Tensor = self.network(observations).squeeze(-1)
        return found


def examine(stream: Stream, settings: ValueLoop, seed: int = 0) -> Examination:
    """Examine a critic on a stream, and let it learn.

    Args:
        stream: Recorded rollouts.
        settings: ``KovaSettings`` for a filter, or a plain ``ValueLoop`` for Adam.
        seed: Of the critic's weights and minibatches.
    """
    critic = _built(stream.inputs, settings, seed)
    gamma, lam = stream.meta.gamma, stream.meta.lam
    rows, seconds = [], 0.0
    for index, (rollout, ratio) in enumerate(zip(stream.rollouts, stream.ratios, strict=True)):
        if index:
            rows.append(_examined(critic, rollout, gamma, lam))
        start = time.process_time()
        _learn(critic, rollout, ratio, gamma, lam)
        seconds += time.process_time() - start
    return Examination(*torch.tensor(rows, dtype=torch.float64).T, seconds)  # type: ignore[call-arg]


def _built(inputs: int, settings: ValueLoop, seed: int) -> _Critic:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
        for at, gain in ((0, 2**0.5), (2, 2**0.5), (4, 1.0)):
            nn.init.orthogonal_(layers[at].weight, gain)  # type: ignore[arg-type]
            nn.init.zeros_(layers[at].bias)  # type: ignore[arg-type]
    network = nn.Sequential(*layers)
    kova, adam, usual = None, None, ADAM_PASSES
    if isinstance(settings, KovaSettings):
        kova = settings.build(network, "rollouts")
        usual = 1 if kova.tracked else ADAM_PASSES
    else:
        adam = torch.optim.Adam(network.parameters(), lr=settings.value_lr or RATE, eps=1e-5)
    weights = list(network.parameters())
    learner = Learner(network, kova, adam, weights, factor=0.5, max_norm=0.5)
    return _Critic(network, learner, settings.value_passes or usual, settings, np.random.RandomState(seed))


def _learn(critic: _Critic, rollout: Rollout, ratio: Tensor, gamma: float, lam: float) -> None:
    """The passes of the algorithms, without their policy."""
    settings = critic.settings
    own = lam if settings.value_lambda is None else settings.value_lambda
    passes = Passes(critic.learner, settings.value_batch or BATCH, critic.passes, critic.permute.permutation)
    goals = None
    for _ in range(critic.passes):
        if goals is None or settings.recompute == "each":
            goals = rollout.estimate(critic.values, gamma, own).returns.T.flatten()
        noise = torch.ones_like(ratio) if settings.value_first else ratio
        passes.go(rollout.observations, goals, {"ratio": noise, "weight": noise})
    if settings.head is not None:
        solve_head(Features(critic.network, last_layer(critic.network)), rollout, gamma, own, settings.head)


def _examined(critic: _Critic, rollout: Rollout, gamma: float, lam: float) -> tuple[float, ...]:
    found = rollout.estimate(critic.values, gamma, lam)
    noise = float(found.advantages.std() / rollout.rewards.std())
    returns, free = free_returns(rollout, gamma)
    error = bias = float("nan")
    if int(free.sum()) > 1:
        off, scale = (found.values - returns)[free].double(), returns[free].double().std()
        error, bias = float(off.square().mean().sqrt() / scale), float(off.mean() / scale)
    return noise, error, bias, _coverage(critic.learner.kova, critic, rollout, found.returns.T.flatten())


def free_returns(rollout: Rollout, gamma: float) -> tuple[Tensor, Tensor]:
    """Discounted sums of rewards to the end, and where no value of a critic has a share in them.

    That is so up to a termination, and so long before a cut that what would have followed does not count.
    """
    nothing = torch.zeros_like(rollout.rewards)
    flags = (rollout.terminated, rollout.truncated, gamma, None)
    share = targets.k_step(nothing, torch.ones_like(nothing), *flags)
    return targets.k_step(rollout.rewards, nothing, *flags), share < NEGLIGIBLE


def _coverage(kova: Kova | None, critic: _Critic, rollout: Rollout, goals: Tensor) -> float:
    if kova is None or kova.observation.unit_free or not kova.tracked:
        return float("nan")
    step = max(1, len(goals) // ASKED)
    asked, wanted = rollout.observations[::step], goals[::step]
    belief = kova.posterior(lambda: critic.values(asked))
    off = wanted - belief.mean
    learned = kova.observation.covariance(kova._memory()["observation"], off, {})
    return float((off.abs() <= 1.96 * (belief.std.square() + learned).sqrt()).float().mean())
